"""Read and check pairs of texts, and decide which of their tokens truncation keeps."""

from collections.abc import Sequence

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import Manifest, PairTemplate
from headwaiter_proto.rules.errors import Failures, InvalidInput
from headwaiter_proto.rules.limits import RequestLimits, check_count, check_text_bytes
from headwaiter_proto.rules.sequences import check_text

Pair = tuple[str, str]


def read_pairs(pairs: pb.Pairs, manifest: Manifest, limits: RequestLimits) -> list[Pair]:
    """Check pairs before tokenisation, and return the two texts of each.

    Raises:
        InvalidInput: the model takes no pairs, a first text is missing, or the texts are too many or too large.
    """
    if not manifest.takes_pairs:
        raise InvalidInput(
            "pairs: the model takes no pairs of texts: send texts, or name a model that takes pairs", field="pairs"
        )
    count = len(pairs.second)
    check_count(count, limits)
    if len(pairs.first) not in (1, count):
        raise InvalidInput(
            f"pairs.first has {len(pairs.first)} texts, and pairs.second has {count}: send one first text for each "
            "second text, or one for all",
            field="pairs.first",
            limit=count,
            actual=len(pairs.first),
        )
    if pairs.pair_truncation not in pb.PairTruncation.values():
        raise InvalidInput(
            f"pairs.pair_truncation {pairs.pair_truncation} is unknown: send LONGEST_FIRST or ONLY_SECOND",
            field="pairs.pair_truncation",
        )
    # The one first text of all pairs is tokenised with each second text.
    repeated = (count - len(pairs.first)) * len(pairs.first[0].encode())
    check_text_bytes(pairs.ByteSize() + repeated, "pairs", limits)
    first = pairs.first if len(pairs.first) == count else [pairs.first[0]] * count
    return list(zip(first, pairs.second, strict=True))


def check_pairs(pairs: Sequence[Pair], failures: Failures) -> None:
    """Refuse pairs with a text of too many bytes to be tokenised."""
    for index, (first, second) in enumerate(pairs):
        check_text(first, "in pairs.first", index, "pairs.first", failures)
        check_text(second, "in pairs.second", index, "pairs.second", failures)


def text_of_pair(template: PairTemplate, pair: Pair) -> str:
    """Return the text of a pair in a template."""
    return f"{template.before}{pair[0]}{template.between}{pair[1]}{template.after}"


def kept_tokens(
    tokens: Sequence[int], room: int, truncation: pb.PairTruncation, *, first_keeps_more: bool = False
) -> tuple[int, ...]:
    """Return how many tokens of one text, or of each text of a pair, truncation keeps, as `transformers` does.

    Nothing is dropped from a pair whose second text would lose all tokens with ONLY_SECOND; the pair stays too long.

    Args:
        tokens: number of tokens of each text, without special tokens.
        room: the most tokens of all texts together.
        truncation: which text of a pair loses tokens.
        first_keeps_more: `first_text_keeps_more` of the manifest.
    """
    if len(tokens) == 1:
        return (min(tokens[0], room),)
    first, second = tokens
    excess = first + second - room
    if excess <= 0:
        return first, second
    if truncation == pb.PAIR_TRUNCATION_ONLY_SECOND:
        return (first, second - excess) if excess < second else (first, second)
    shorter = min(first, second)
    if 2 * shorter <= room:
        # Only the longer text loses tokens.
        return (room - second, second) if first > second else (first, room - first)
    # Both texts keep half of the room; of an odd room, one of them keeps one token more.
    small, large = room // 2, room - room // 2
    return (large, small) if first > second or first_keeps_more else (small, large)
