"""What users' own tests may expect of the encoder that needs no server."""

import math
from typing import Any

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
    ModelRef,
    Overloaded,
    SequenceTooLong,
    Unimplemented,
)
from headwaiter_proto import encoder_pb2 as pb


@pytest.fixture
def client() -> Client:
    return Client(transport=FakeEncoder(max_tokens=16))


def _pooled(client: Client, text: str, **options: object) -> NDArray[np.float32]:
    pooled = client.encode([text], **options).pooled  # type: ignore[arg-type]
    assert pooled is not None
    row: NDArray[np.float32] = pooled[0]
    return row


def test_equal_texts_have_equal_vectors_in_every_run_and_others_have_others(client: Client) -> None:
    cat = _pooled(client, "a cat sat")
    np.testing.assert_array_equal(cat, _pooled(Client(transport=FakeEncoder()), "a cat sat"))
    assert cat @ cat == pytest.approx(1)
    assert cat @ _pooled(client, "a cat ate") > cat @ _pooled(client, "wholly different words")


def test_output_options_are_obeyed(client: Client) -> None:
    encoding = client.encode(["one two"], hidden=True, pooling="max", normalize=False, dtype="float16")
    assert encoding.hidden is not None
    assert encoding.pooled is not None
    np.testing.assert_array_equal(encoding.pooled[0], encoding.hidden[0].max(axis=0))
    assert encoding.pooled.dtype == np.float16
    assert client.encode(["one"], pooled=False, hidden=True).pooled is None
    for pooling, row in (("cls", 0), ("last", -1)):
        pooled = _pooled(client, "one two", pooling=pooling, normalize=False)
        np.testing.assert_array_equal(pooled, client.encode(["one two"], hidden=True).hidden[0][row])  # type: ignore[index]
    short = _pooled(client, "one two", dimensions=3)
    assert short.shape == (3,)
    assert np.linalg.norm(short) == pytest.approx(1)


def test_ids_and_features_are_encoded_by_their_values(client: Client) -> None:
    first, second, third = client.encode_tokens([[5, 6], [5, 6], [5, 7]]).pooled  # type: ignore[misc]
    assert (first == second).all()
    assert (first != third).any()
    rows = np.ones((2, 8))
    first, second, third = client.encode_features([rows, rows, 2 * rows]).pooled  # type: ignore[misc]
    assert (first == second).all()
    assert (first != third).any()


def test_it_refuses_what_servers_refuse(client: Client) -> None:
    with pytest.raises(InvalidInput, match="sequence 1 is empty"):
        client.encode(["a", ""])
    with pytest.raises(SequenceTooLong) as caught:
        client.encode_tokens([[1] * 17])
    assert (caught.value.field, caught.value.limit, caught.value.actual) == ("tokens.lengths", 16, 17)
    with pytest.raises(ModelNotFound):
        client.encode(["a"], model="another")
    with pytest.raises(ModelNotFound):
        client.model("another")


@pytest.mark.parametrize(
    ("method", "sequence", "options", "sentence"),
    [
        ("encode", "a", {"prompt": "title"}, "the model has no prompt 'title'; it has 'query', 'passage'"),
        ("encode", "a", {"dimensions": 9}, "output.dimensions is 9, and the model's vectors have 8"),
        ("encode", "a", {"request_id": "a\nb"}, "request_id: at most 256 printable characters"),
        ("encode", "a", {"request_id": "a" * 300}, "request_id: at most 256 printable characters"),
        ("encode_tokens", [1], {"truncation": "left"}, "truncation: that is for texts"),
        ("encode_tokens", [1], {"offsets": True}, "output.offsets: that is for texts"),
        ("encode_tokens", [1, -2], {}, "sequence 0 has id -2, and ids are 0 to 30521"),
        ("encode_tokens", [30522], {}, "sequence 0 has id 30522, and ids are 0 to 30521"),
        ("encode_features", np.ones((2, 9)), {}, "features.width is 9, and the model takes features of width 8"),
        ("encode_features", np.array([np.ones(8), np.full(8, np.nan)]), {}, "sequence 0 has a NaN or .* at position 1"),
        ("encode_features", np.full((1, 8), 1e39), {}, "sequence 0 has a NaN or an infinity at position 0"),
        ("attend", "", {}, "sequence 0 is empty"),
        ("attend", "a " * 15, {}, "sequence 0 has 17 tokens, and the model takes at most 16"),
        ("attend", "a", {"layers": [99]}, "layers has 99, and the model's layers are 0 to 1"),
        ("attend", "a", {"heads": [0, 0]}, "heads names one of them twice"),
        ("attend", "a", {"query": 99}, "query is 99, and the sequence's positions are 0 to 2"),
        ("attend", None, {}, "sequence is of type NoneType: pass a str"),
        ("attend", b"a", {}, "sequence is of type bytes: pass a str"),
    ],
)
def test_it_refuses_options_that_servers_refuse(
    client: Client, method: str, sequence: Any, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InvalidInput, match=sentence):
        getattr(client, method)(sequence if method == "attend" else [sequence], **options)


@pytest.mark.parametrize(
    ("method", "good", "bad"),
    [
        ("encode", "a", "a " * 20),
        ("encode_tokens", [1], [1] * 17),
        ("encode_features", np.ones((1, 8)), np.ones((17, 8))),
    ],
)
def test_a_failure_of_a_partial_call_knows_what_the_error_of_a_whole_call_knows(
    client: Client, method: str, good: Any, bad: Any
) -> None:
    encode = getattr(client, method)
    with pytest.raises(SequenceTooLong) as caught:
        encode([good, bad])
    (failure,) = encode([good, bad], partial=True).failures.values()
    assert (type(failure), str(failure)) == (SequenceTooLong, str(caught.value))
    names = ("sequence", "field", "limit", "actual")
    known = [getattr(failure, name) for name in names]
    assert known == [getattr(caught.value, name) for name in names]
    assert None not in known


def test_all_that_it_says_it_takes_it_takes() -> None:
    client = Client(transport=FakeEncoder(vocabulary_size=100, feature_width=3, max_request_tokens=64))
    model = client.model()
    assert (model.vocabulary_size, model.feature_width) == (100, 3)
    assert client.encode_tokens([[0, model.vocabulary_size - 1]]).lengths.tolist() == [2]
    assert client.encode_features([np.ones((2, model.feature_width))]).lengths.tolist() == [2]
    assert list(model.poolings) == [pb.POOLING_MEAN, pb.POOLING_MAX, pb.POOLING_CLS, pb.POOLING_LAST]
    for pooling in model.poolings:
        name = pb.Pooling.Name(pooling).removeprefix("POOLING_").lower()
        assert _pooled(client, "a b", pooling=name).any()


def test_it_refuses_texts_and_attention_beyond_what_it_says_it_takes() -> None:
    client = Client(transport=FakeEncoder(max_tokens=4096, max_request_tokens=4096))
    limits = client.model().limits
    assert limits.max_text_bytes == 16 * 4096
    with pytest.raises(InvalidInput, match=f"bytes of text, and the server takes {limits.max_text_bytes}") as caught:
        client.encode(["a" * (limits.max_text_bytes + 1)])
    assert (caught.value.field, caught.value.limit) == ("texts", limits.max_text_bytes)
    with pytest.raises(InvalidInput, match="layers: the weights of 2 layers, 3 heads and 4096") as caught:
        client.attend([1] * 4096)
    assert (caught.value.limit, caught.value.actual) == (limits.max_attend_bytes, 4 * 2 * 3 * 4096**2)


@pytest.mark.parametrize("timeout_s", [0, -1, math.nan])
def test_a_deadline_that_has_passed_is_one(client: Client, timeout_s: float) -> None:
    with pytest.raises(DeadlineExceeded, match="had passed before the call"):
        client.encode(["a"], timeout_s=timeout_s)


def test_it_fails_as_told_once_for_each_error() -> None:
    fake = FakeEncoder()
    fake.errors.extend([Overloaded("full", retry_after_s=1.0), Cancelled("gone")])
    client = Client(transport=fake)
    for error in (Overloaded, Cancelled):
        with pytest.raises(error):
            client.encode(["a"])
    assert len(client.encode(["a"]).lengths) == 1
    assert [type(request) for request in fake.requests] == [pb.EncodeRequest]


def test_an_error_to_raise_is_no_class() -> None:
    fake = FakeEncoder()
    fake.errors.append(Overloaded)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^errors holds <class .*Overloaded'>; append errors, such as Overloaded"):
        Client(transport=fake).encode(["a"])


@pytest.mark.parametrize(("sequence", "tokens"), [("one two", ["[CLS]", "one", "two", "[SEP]"]), ([7] * 4, None)])
def test_attention_is_the_same_everywhere(client: Client, sequence: object, tokens: list[str] | None) -> None:
    attention = client.attend(sequence, layers=[1], query=0)  # type: ignore[arg-type]
    np.testing.assert_array_equal(attention.weights, np.full((1, 3, 4, 4), 0.25))
    assert attention.tokens == tokens
    assert attention.context is not None
    assert attention.context.shape == (1, 3, 8)
    assert client.attend(sequence, heads=[0, 2]).context is None  # type: ignore[arg-type]


def test_it_says_what_it_is() -> None:
    fake = FakeEncoder(model="mine", width=16)
    client = Client(transport=fake)
    (ref,) = client.models()
    assert (ref, ref.name) == (ModelRef("mine", client.model().model.digest, "fp32"), "mine")
    assert client.model("mine").width == 16
    assert client.is_serving()
    fake.serving = False
    assert not client.is_serving()


def test_once_closed_it_says_so(client: Client) -> None:
    client.close()
    with pytest.raises(Cancelled, match=r"^the client is closed$"):
        client.encode(["a"])


def test_a_method_that_servers_do_not_have_is_unimplemented() -> None:
    with pytest.raises(Unimplemented, match="there is no method"):
        FakeEncoder().unary("/headwaiter.v1.Encoder/Decode", b"", timeout_s=1.0)
