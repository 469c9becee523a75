"""Scores equal PyTorch's sigmoid and softmax, and pairs lose the tokens that `tokenizers` would drop."""

import itertools

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_proto.rules.classification import read_head, scores
from headwaiter_proto.rules.errors import Failures, InvalidInput
from headwaiter_proto.rules.limits import RequestLimits
from headwaiter_proto.rules.pairs import kept_tokens, read_pairs
from headwaiter_proto.rules.sequences import read_tokens

LIMITS = RequestLimits(sequences=4, tokens=64, message_bytes=1 << 16, attend_bytes=1 << 16)
HEAD = pb.Head(labels=["a", "b"], function=pb.SCORE_FUNCTION_SOFTMAX)


def test_scores_equal_those_of_pytorch_also_for_large_logits() -> None:
    logits = np.array([[0.0, 1.0, -2.0], [100.0, -100.0, 0.0], [1e4, 2e4, -1e4]], np.float32)
    exact = torch.from_numpy(logits).double()
    with np.errstate(all="raise", under="ignore"):
        sigmoid, softmax = (scores(logits, kind) for kind in (pb.SCORE_FUNCTION_SIGMOID, pb.SCORE_FUNCTION_SOFTMAX))
    np.testing.assert_allclose(sigmoid, exact.sigmoid().numpy(), rtol=1e-6, atol=1e-30)
    np.testing.assert_allclose(softmax, exact.softmax(-1).numpy(), rtol=1e-6, atol=1e-30)
    assert sigmoid.dtype == softmax.dtype == np.float32
    assert scores(logits, pb.SCORE_FUNCTION_IDENTITY) is logits


@pytest.mark.parametrize(
    ("strategy", "truncation"),
    [("longest_first", pb.PAIR_TRUNCATION_LONGEST_FIRST), ("only_second", pb.PAIR_TRUNCATION_ONLY_SECOND)],
)
def test_pairs_lose_the_tokens_that_tokenizers_drops(strategy: str, truncation: pb.PairTruncation) -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    for room in range(1, 9):
        tokenizer.enable_truncation(room, strategy=strategy)
        for first, second in itertools.product(range(1, 11), repeat=2):
            kept = kept_tokens([first, second], room, truncation)
            try:
                ids = tokenizer.encode("a " * first, "b " * second).ids
            except Exception:  # noqa: BLE001 - the library raises nothing more specific
                assert kept == (first, second), "the pair stays too long"
                continue
            assert kept == (ids.count(0), ids.count(1)), (first, second, room)


def test_one_first_text_belongs_to_all_pairs_and_counts_for_each() -> None:
    manifest = Manifest(takes_pairs=True, max_text_tokens=16)
    assert read_pairs(pb.Pairs(first=["q"], second=["a", "b"]), manifest, LIMITS) == [("q", "a"), ("q", "b")]
    assert read_pairs(pb.Pairs(first=["q", "r"], second=["a", "b"]), manifest, LIMITS)[1] == ("r", "b")
    for pairs, field in (
        (pb.Pairs(first=["q"], second=[]), None),
        (pb.Pairs(first=[], second=["a"]), "pairs.first"),
        (pb.Pairs(first=["q"] * 3, second=["a"] * 2), "pairs.first"),
        (pb.Pairs(first=["q"], second=["a"], pair_truncation=7), "pairs.pair_truncation"),  # type: ignore[arg-type]
        (pb.Pairs(first=["q" * 400], second=["a"] * 4), "pairs"),
    ):
        with pytest.raises(InvalidInput) as refused:
            read_pairs(pairs, manifest, LIMITS)
        assert refused.value.field == field
    with pytest.raises(InvalidInput):
        read_pairs(pb.Pairs(first=["q"], second=["a"]), Manifest(max_text_tokens=16), LIMITS)


def test_raw_scores_have_the_function_identity_and_need_scores() -> None:
    manifest = Manifest(head=HEAD)
    raw = read_head(pb.OutputOptions(scores=True, raw_scores=True), manifest)
    assert raw == pb.Head(labels=["a", "b"], function=pb.SCORE_FUNCTION_IDENTITY)
    assert read_head(pb.OutputOptions(scores=True), manifest) == HEAD
    assert read_head(pb.OutputOptions(), manifest) is None
    with pytest.raises(InvalidInput) as refused:
        read_head(pb.OutputOptions(raw_scores=True), manifest)
    assert refused.value.field == "output.raw_scores"
    with pytest.raises(InvalidInput) as refused:
        read_head(pb.OutputOptions(logits=True), manifest)
    assert refused.value.field == "output.logits"


def token_request(types: bytes) -> pb.TokenSequences:
    """Return a request of two sequences, of 3 and of 2 tokens."""
    ids = np.arange(5, dtype="<i8").tobytes()
    return pb.TokenSequences(dtype=pb.DATA_TYPE_INT64, data=ids, lengths=[3, 2], types=types)


def test_token_types_stand_beside_the_ids() -> None:
    manifest = Manifest(vocabulary_size=9, token_types=2, max_tokens=8)
    parsed = read_tokens(token_request(bytes([0, 1, 1, 0, 1])), manifest, LIMITS, Failures())
    assert [each.tolist() for each in parsed.sequences] == [[[0, 0], [1, 1], [2, 1]], [[3, 0], [4, 1]]]
    without = read_tokens(token_request(b""), manifest, LIMITS, Failures())
    assert without.sequences[1].tolist() == [[3, 0], [4, 0]]
    one_type = Manifest(vocabulary_size=9, max_tokens=8)
    assert read_tokens(token_request(bytes(5)), one_type, LIMITS, Failures()).sequences[1].tolist() == [3, 4]


@pytest.mark.parametrize(("token_types", "limit"), [(2, 1), (0, 0)])
def test_an_unknown_token_type_fails_its_sequence_alone(token_types: int, limit: int) -> None:
    manifest = Manifest(vocabulary_size=9, token_types=token_types, max_tokens=8)
    failures = Failures(keep=True)
    read_tokens(token_request(bytes([0, 0, 0, 7, 8])), manifest, LIMITS, failures)
    (error,) = failures.by_sequence.values()
    assert (error.sequence, error.field, error.limit, error.actual) == (1, "tokens.types", limit, 7)
    with pytest.raises(InvalidInput) as refused:
        read_tokens(token_request(bytes(4)), manifest, LIMITS, failures)
    assert (refused.value.limit, refused.value.actual) == (5, 4)
