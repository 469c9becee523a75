"""The client reads the rows and the sparse vectors of a reply, and refuses a reply that contradicts itself."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwaiter_client.calls.results import read_encoding
from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_proto.rules.errors import Failures, HeadwaiterError, InvalidInput
from headwaiter_proto.rules.limits import RequestLimits
from headwaiter_proto.rules.outputs import read_output
from headwaiter_proto.rules.responses import encode_response
from headwaiter_proto.rules.sequences import read_tokenized

MANIFEST = Manifest(vocabulary_size=9, max_tokens=16, max_text_tokens=16, width=2, pooling=pb.POOLING_NONE)
WEIGHING = Manifest(
    vocabulary_size=9,
    max_tokens=16,
    max_text_tokens=16,
    width=2,
    pooling=pb.POOLING_CLS,
    fixed_pooling=True,
    head=pb.Head(labels=["weight"], function=pb.SCORE_FUNCTION_RELU, per_token=True),
    unweighted_ids=[5],
)
LIMITS = RequestLimits(100, 1000, 1 << 20, 1 << 20)


@given(st.lists(st.tuples(st.lists(st.integers(0, 8), min_size=1, max_size=9), st.booleans()), min_size=1, max_size=5))
def test_the_client_reads_the_rows_of_the_tokens_that_are_not_skipped(texts: list[tuple[list[int], bool]]) -> None:
    failures = {
        index: InvalidInput("wrong", sequence=index, field="texts") for index, (_, fails) in enumerate(texts) if fails
    }
    prompt = pb.Prompt(name="document", skiplist_ids=[3, 5])
    ids = [np.array(each) for each, _ in texts]
    parsed = read_tokenized([*ids], prompt, MANIFEST, LIMITS, Failures(keep=True))
    # The position of a token says which one it is.
    parsed.offsets = [np.stack([np.arange(len(each)), np.arange(1, len(each) + 1)], 1) for each in ids]
    rows = [np.stack([each, np.full(len(each), i)], 1) for i, each in enumerate(ids) if not texts[i][1]]
    hidden = np.concatenate([np.empty((0, 2), np.float32), *rows])
    output = read_output(pb.OutputOptions(hidden=True), MANIFEST)
    reply = encode_response(parsed, output, None, hidden, failures)
    reply.model.name = "tiny"
    encoding = read_encoding(reply, 0, len(texts), 0.0)
    assert encoding.received_hidden is not None
    for index, (tokens, fails) in enumerate(texts):
        kept = [] if fails else [place for place, token in enumerate(tokens) if token not in (3, 5)]
        expected = np.array([[tokens[place], index] for place in kept]).reshape(-1, 2)
        np.testing.assert_array_equal(encoding.received_hidden[index], expected)
        assert encoding.received_offsets is not None
        assert encoding.received_offsets[index][:, 0].tolist() == kept
        assert encoding.lengths[index] == (0 if fails else len(tokens))


@given(st.lists(st.tuples(st.lists(st.integers(0, 8), min_size=1, max_size=9), st.booleans()), min_size=1, max_size=5))
def test_the_client_reads_weights_of_tokens_beside_rows(texts: list[tuple[list[int], bool]]) -> None:
    failures = {i: InvalidInput("wrong", sequence=i, field="texts") for i, (_, fails) in enumerate(texts) if fails}
    parsed = read_tokenized([np.array(each) for each, _ in texts], pb.Prompt(), WEIGHING, LIMITS, Failures(keep=True))
    answered = [tokens for tokens, fails in texts if not fails]
    hidden = np.concatenate([np.empty((0, 2), np.float32), *(np.stack([each, each], 1) for each in answered)])
    output = read_output(pb.OutputOptions(hidden=True, sparse=True), WEIGHING)
    # The weight of a token is its id less 2; below 0, the token has none.
    logits = [np.array(tokens, np.float32)[:, None] - 2 for tokens in answered]
    reply = encode_response(parsed, output, None, hidden, failures, logits)
    reply.model.name = "tiny"
    encoding = read_encoding(reply, 0, len(texts), 0.0)
    assert encoding.received_hidden is not None
    for rows, entries, (tokens, fails) in zip(encoding.received_hidden, encoding.sparse, texts, strict=True):
        expected_rows = [] if fails else tokens
        np.testing.assert_array_equal(rows, np.array([[each, each] for each in expected_rows]).reshape(-1, 2))
        expected = [] if fails else sorted({token for token in tokens if token > 2 and token != 5})
        assert entries["index"].tolist() == expected
        assert entries["value"].tolist() == [token - 2 for token in expected]


def test_weights_that_float16_cannot_hold_are_refused() -> None:
    parsed = read_tokenized([np.array([3, 4])], pb.Prompt(), WEIGHING, LIMITS, Failures(keep=False))
    output = read_output(pb.OutputOptions(sparse=True, dtype=pb.DATA_TYPE_FLOAT16), WEIGHING)
    with pytest.raises(InvalidInput) as refused:
        encode_response(parsed, output, None, None, {}, [np.array([[1.0], [1e6]], np.float32)])
    assert refused.value.field == "output.dtype"


def test_a_reply_with_more_rows_than_tokens_is_refused() -> None:
    for counts in ([3], [2, 1], [1, 1, 1]):
        hidden = pb.Tensor(dtype=pb.DATA_TYPE_FLOAT32, shape=[sum(counts), 2], data=bytes(8 * sum(counts)))
        reply = pb.EncodeResponse(lengths=[2], hidden=hidden, rows=counts)
        with pytest.raises(HeadwaiterError, match="rows"):
            read_encoding(reply, 0, 1, 0.0)


@pytest.mark.parametrize("counts", [[], [1, 1]])
def test_a_reply_with_another_number_of_sparse_vectors_is_refused(counts: list[int]) -> None:
    values = bytes(4 * sum(counts))
    sparse = pb.SparseVectors(dtype=pb.DATA_TYPE_FLOAT32, counts=counts, indices=values, values=values)
    with pytest.raises(HeadwaiterError, match="sparse"):
        read_encoding(pb.EncodeResponse(lengths=[2], sparse=sparse), 0, 1, 0.0)
