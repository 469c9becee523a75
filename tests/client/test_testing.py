"""FakeEncoder answers like a server: the same rules, and vectors that tests can predict."""

import math
from typing import Any, get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from headwaiter_client import (
    Cancelled,
    Client,
    DeadlineExceeded,
    FakeEncoder,
    InvalidInput,
    ModelNotFound,
    ModelVersion,
    Overloaded,
    SequenceTooLong,
    Unavailable,
    Unimplemented,
    fake_inputs,
)
from headwaiter_client.calls.options import Pooling
from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.pooling import POOLINGS_OF_GRAPHS
from headwaiter_proto.rules.sequences import MAX_BYTES_OF_ONE_TEXT


@pytest.fixture
def client() -> Client:
    return Client(transport=FakeEncoder(max_tokens=16))


def _pooled(client: Client, text: str, **options: object) -> NDArray[np.float32]:
    pooled = client.encode([text], **options).pooled  # type: ignore[call-overload]
    assert pooled is not None
    row: NDArray[np.float32] = pooled[0]
    return row


def test_equal_texts_have_equal_vectors_and_similar_texts_similar_ones(client: Client) -> None:
    cat = _pooled(client, "a cat sat")
    np.testing.assert_array_equal(cat, _pooled(Client(transport=FakeEncoder()), "a cat sat"))
    assert cat @ cat == pytest.approx(1)
    assert cat @ _pooled(client, "a cat ate") > cat @ _pooled(client, "wholly different words")


def test_output_options_are_applied(client: Client) -> None:
    encoding = client.encode(["one two"], hidden=True, pooling="max", normalize=False, dtype="float16")
    np.testing.assert_array_equal(encoding.pooled[0], encoding.hidden[0].max(axis=0))
    assert encoding.pooled.dtype == np.float16
    assert not hasattr(client.encode(["one"], pooled=False, hidden=True), "pooled")
    for pooling, row in (("cls", 0), ("last", -1)):
        pooled = _pooled(client, "one two", pooling=pooling, normalize=False)
        np.testing.assert_array_equal(pooled, client.encode(["one two"], hidden=True).hidden[0][row])
    short = _pooled(client, "one two", dimensions=3)
    assert short.shape == (3,)
    assert np.linalg.norm(short) == pytest.approx(1)


def test_vectors_of_ids_and_features_depend_on_their_values(client: Client) -> None:
    first, second, third = client.encode_tokens([[5, 6], [5, 6], [5, 7]]).pooled
    assert (first == second).all()
    assert (first != third).any()
    rows = np.ones((2, 8))
    first, second, third = client.encode_features([rows, rows, 2 * rows]).pooled
    assert (first == second).all()
    assert (first != third).any()


def test_a_sparse_fake_returns_the_numbers_above_zero() -> None:
    with Client(transport=FakeEncoder(width=40, sparse=True)) as sparse:
        encoding, dense = sparse.encode(["a b", "b"]), sparse.encode(["a b", "b"], dense=True).pooled
        assert sparse.model().sparse
    for entries, vector in zip(encoding.sparse, dense, strict=True):
        assert entries["index"].tolist() == np.flatnonzero(vector).tolist()
        np.testing.assert_array_equal(entries["value"], vector[vector > 0])
        assert 0 < len(entries) < 40
    long = [*["a b"] * 3, "b"]
    with Client(transport=FakeEncoder(width=40, sparse=True, max_request_sequences=2)) as sparse:
        joined = sparse.encode(long).sparse
        streamed = [each.sparse for each in sparse.encode_stream(long)]
    for entries, of_stream, text in zip(joined, streamed, long, strict=True):
        np.testing.assert_array_equal(entries, encoding.sparse[["a b", "b"].index(text)])
        np.testing.assert_array_equal(of_stream, entries)


# Further bad requests are in tests/support/e2e/bad_requests.py.
@pytest.mark.parametrize(
    ("method", "sequence", "options", "field", "values"),
    [
        ("encode", ["a"], {"request_id": "a\nb"}, "request_id", [r"'\n'"]),
        ("attend", "a " * 15, {}, "texts", ["sequence 0", "17", "16"]),
        ("attend", b"a", {}, "images", ["takes no images"]),
        ("attend", ("a", "b"), {}, "pairs", ["takes no pairs"]),
    ],
)
def test_a_fake_refuses_options_and_sequences_that_servers_refuse(
    client: Client, method: str, sequence: Any, options: dict[str, Any], field: str, values: list[str]
) -> None:
    with pytest.raises(InvalidInput) as caught:
        getattr(client, method)(sequence, **options)
    assert caught.value.field == field
    for value in values:
        assert value in str(caught.value)


def test_a_fake_accepts_all_inputs_that_its_description_allows() -> None:
    client = Client(transport=FakeEncoder(vocabulary_size=100, feature_width=3, max_request_tokens=64))
    model = client.model()
    assert (model.vocabulary_size, model.feature_width) == (100, 3)
    assert client.encode_tokens([[0, model.vocabulary_size - 1]]).lengths.tolist() == [2]
    assert client.encode_features([np.ones((2, model.feature_width))]).lengths.tolist() == [2]
    of_graphs = {pb.Pooling.Name(each).removeprefix("POOLING_").lower() for each in POOLINGS_OF_GRAPHS}
    assert set(model.poolings) == set(get_args(Pooling)) - of_graphs
    for pooling in model.poolings:
        assert client.encode(["a b"], pooling=pooling).pooled.any()


def test_a_fake_refuses_attention_weights_over_its_limit() -> None:
    client = Client(transport=FakeEncoder(max_tokens=4096, max_request_tokens=4096))
    with pytest.raises(InvalidInput) as caught:
        client.attend([1] * 4096)
    assert (caught.value.limit, caught.value.actual) == (client.model().limits.max_attend_bytes, 4 * 2 * 3 * 4096**2)


@pytest.mark.parametrize("timeout_s", [0, -1, math.nan])
def test_a_deadline_in_the_past_is_exceeded(timeout_s: float) -> None:
    with pytest.raises(DeadlineExceeded):
        FakeEncoder().unary("/headwaiter.v1.Encoder/ListModels", b"", timeout_s)


def test_each_queued_error_is_raised_once() -> None:
    fake = FakeEncoder()
    fake.errors.extend([Overloaded("full", retry_after_s=1.0), Cancelled("gone")])
    client = Client(transport=fake)
    for error in (Overloaded, Cancelled):
        with pytest.raises(error):
            client.encode(["a"])
    assert len(client.encode(["a"]).lengths) == 1
    assert [type(request) for request in fake.requests] == [pb.EncodeRequest]


def test_a_queued_error_must_be_an_instance() -> None:
    fake = FakeEncoder()
    fake.errors.append(Overloaded)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"<class .*Overloaded'>"):
        Client(transport=fake).encode(["a"])


@pytest.mark.parametrize(("sequence", "tokens"), [("one two", ["[CLS]", "one", "two", "[SEP]"]), ([7] * 4, None)])
def test_attention_weights_are_equal_for_all_tokens(client: Client, sequence: object, tokens: list[str] | None) -> None:
    attention = client.attend(sequence, layers=[1], query=0)  # type: ignore[arg-type]
    np.testing.assert_array_equal(attention.weights, np.full((1, 3, 4, 4), 0.25))
    assert getattr(attention, "tokens", None) == tokens
    assert attention.context.shape == (1, 3, 8)
    assert not hasattr(client.attend(sequence, heads=[0, 2]), "context")  # type: ignore[arg-type]
    assert not hasattr(attention, "vectors")


def test_attention_across_a_pair_has_the_tokens_of_both_texts() -> None:
    client = Client(transport=FakeEncoder(labels=["relevance"]))
    attention = client.attend(("one", "two three"), query=1)
    assert attention.tokens == ["[CLS]", "one", "[SEP]", "two", "three", "[SEP]"]
    assert attention.weights.shape[2:] == (6, 6)


def test_attention_vectors_multiply_out_to_the_context(client: Client) -> None:
    attention = client.attend("one two", layers=[1], heads=[2], query=0, vectors=True)
    vectors, weights = attention.vectors, attention.weights[0, 0, 0]
    np.testing.assert_allclose(weights @ vectors.values, attention.context[0, 0], rtol=1e-6)
    raw = np.exp(vectors.keys @ vectors.query_vector)
    np.testing.assert_allclose(raw / raw.sum(), weights)


def test_a_fake_describes_its_model() -> None:
    fake = FakeEncoder(model="mine", width=16)
    client = Client(transport=fake)
    model = client.model().model
    assert model.digest != model.results_digest
    assert client.models() == [
        ModelVersion("mine", "", "ready", digest=model.digest, precision="fp32", results_digest=model.results_digest)
    ]
    assert client.model("mine").width == 16
    assert client.batches() == client.batches("mine") == []
    with pytest.raises(ModelNotFound):
        client.batches("other")
    assert client.is_serving()
    fake.serving = False
    assert not client.is_serving()
    calls = (lambda: client.encode(["a"]), lambda: client.attend("a"), client.models, client.model)
    for call in calls:
        with pytest.raises(Unavailable, match="SERVING"):
            call()
    assert fake.requests == []


def test_a_closed_fake_cancels_calls(client: Client) -> None:
    client.close()
    with pytest.raises(Cancelled, match="closed"):
        client.encode(["a"])


def test_an_unknown_method_is_unimplemented() -> None:
    with pytest.raises(Unimplemented, match="Decode"):
        FakeEncoder().unary("/headwaiter.v1.Encoder/Decode", b"", timeout_s=1.0)


def test_a_model_takes_only_the_inputs_that_it_is_given_a_size_for() -> None:
    texts = Client(transport=FakeEncoder(feature_width=0, max_text_tokens=4)).model()
    assert (texts.takes_tokens, texts.takes_texts, texts.takes_features, texts.max_text_tokens) == (
        True,
        True,
        False,
        4,
    )
    features = Client(transport=FakeEncoder(vocabulary_size=0)).model()
    assert (features.takes_tokens, features.takes_texts, features.takes_features) == (False, False, True)


def test_a_long_text_is_truncated_on_request_and_keeps_its_special_tokens() -> None:
    for truncation, max_tokens, spans in (
        ("right", 4, [[0, 0], [0, 1], [2, 3], [0, 0]]),
        ("left", 4, [[0, 0], [4, 5], [6, 7], [0, 0]]),
        ("left", 2, [[0, 0], [0, 0]]),
    ):
        client = Client(transport=FakeEncoder(max_tokens=max_tokens))
        encoding = client.encode(["a b c d"], truncation=truncation, offsets=True)  # type: ignore[call-overload]
        assert (encoding.lengths.tolist(), encoding.truncated) == ([max_tokens], {0: 6})
        assert encoding.offsets[0].tolist() == spans


def test_a_text_of_two_words_and_40000_spaces_is_not_too_long() -> None:
    encoding = Client(transport=FakeEncoder(max_tokens=4)).encode(["hello" + " " * 40_000 + "world"], partial=True)
    assert (encoding.failures, encoding.lengths.tolist()) == ({}, [4])


@pytest.mark.parametrize("limits", [{"max_tokens": 1}, {"max_text_tokens": 1}])
def test_special_tokens_are_never_cut_so_a_lower_limit_refuses_every_text(limits: dict[str, int]) -> None:
    client = Client(transport=FakeEncoder(**limits))  # type: ignore[arg-type]
    result = client.encode(["a b c"], truncation="left", partial=True)
    assert (result.lengths.tolist(), result.truncated) == ([0], {})
    failure = result.failures[0]
    assert (type(failure), failure.field, failure.limit, failure.actual) == (SequenceTooLong, "texts", 1, 5)


def test_a_text_that_has_failed_is_neither_tokenized_nor_given_to_the_function_of_vectors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[str] = []
    tokenize = fake_inputs.tokenize
    monkeypatch.setattr(fake_inputs, "tokenize", lambda texts, prompt: seen.extend(texts) or tokenize(texts, prompt))  # type: ignore[func-returns-value]
    client = Client(transport=FakeEncoder(width=2, vectors=lambda text: [len(text), 0]))
    result = client.encode(["a", "x" * (MAX_BYTES_OF_ONE_TEXT + 1), "bc"], partial=True, normalize=False)
    assert (sorted(seen), list(result.failures)) == (["", "a", "bc"], [1])
    assert result.pooled.tolist() == [[1, 0], [0, 0], [2, 0]]


def test_vectors_come_from_a_function_of_the_sequence() -> None:
    seen: list[Any] = []

    def vectors(sequence: Any) -> list[float]:
        seen.append(sequence)
        return [3, 4]

    client = Client(transport=FakeEncoder(width=2, feature_width=1, max_tokens=4, vectors=vectors))
    assert _pooled(client, "a", prompt="query").tolist() == pytest.approx([0.6, 0.8])
    assert _pooled(client, "a", normalize=False, pooling="max").tolist() == [3, 4]
    assert _pooled(client, "a", dimensions=1).tolist() == [1]
    hidden = client.encode_tokens([[5, 6]], hidden=True).hidden
    assert hidden is not None
    assert hidden[0].tolist() == [[3, 4], [3, 4]]
    client.encode_features([[[7], [8]]])
    assert seen[:3] == ["a", "a", "a"]
    assert [each.tolist() for each in seen[3:]] == [[5, 6], [[7], [8]]]


def test_a_vector_of_another_width_is_an_error_of_the_test() -> None:
    client = Client(transport=FakeEncoder(width=2, vectors=lambda _: [1, 2, 3]))
    with pytest.raises(ValueError, match=r"\(3,\).*sequence 0.*2 numbers"):
        client.encode(["a"])
