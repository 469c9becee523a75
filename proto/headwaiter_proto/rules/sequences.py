"""Read and check the sequences of a request: token ids, feature rows, and texts before and after tokenisation."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from textwrap import shorten
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_proto.rules.errors import MAX_QUOTED_CHARACTERS, Failures, InvalidInput, SequenceTooLong
from headwaiter_proto.rules.images import (
    check_prefix_rows,
    min_tokens,
    prefix_rows,
    takes_images,
    wrong_fixed_length,
)
from headwaiter_proto.rules.limits import RequestLimits, check_count, check_text_bytes, check_tokens
from headwaiter_proto.rules.outputs import dtype_name
from headwaiter_proto.rules.target import check_parts, takes_target, target_rows, with_parts
from headwaiter_proto.rules.token_types import read_types, with_types, without_types

_ID_TYPES: dict[int, np.dtype[Any]] = {pb.DATA_TYPE_INT32: np.dtype("<i4"), pb.DATA_TYPE_INT64: np.dtype("<i8")}
_FEATURE_TYPES: dict[int, np.dtype[Any]] = {
    pb.DATA_TYPE_FLOAT32: np.dtype("<f4"),
    pb.DATA_TYPE_FLOAT16: np.dtype("<f2"),
}
# The time and the memory of tokenisation grow with the bytes of a text. The slowest tokenizer that was measured needs
# 2.5 s and 0.7 GiB for a text of this size, or 0.3 s if the text consists of ordinary words.
MAX_BYTES_OF_ONE_TEXT = 1 << 20


@dataclass(eq=False, slots=True)
class ParsedInput:
    """The sequences of a request.

    Attributes:
        sequences: token ids [n], token ids and types [n, 2], or feature rows [n, feature_width] of each sequence;
            unspecified for a failed sequence. For a model with targets, token ids are those of `with_parts`.
        failures: the errors of the failed sequences.
        truncated: number of tokens before truncation, of each truncated text, by index.
        offsets: int64 [n, 2] for each text, the begin and the end of each token in the text, or in the second text of a
            pair; None unless requested.
        special: with `offsets`, whether each token belongs to no text, bool [n].
        skipped_tokens: number of tokens at the start of each sequence that pooling leaves out.
        kept_rows: whether the reply has the hidden row of each token of each sequence, bool [n]; None if it has all.
        max_tokens: most tokens of a text or pair with its prompt; 0 for other inputs.
    """

    sequences: list[NDArray[np.generic]]
    failures: Failures
    truncated: Mapping[int, int] = field(default_factory=dict)
    offsets: list[NDArray[np.int64]] | None = None
    special: Sequence[NDArray[np.bool_]] = ()
    skipped_tokens: int = 0
    kept_rows: list[NDArray[np.bool_]] | None = None
    max_tokens: int = 0


def read_rows(
    request: pb.EncodeRequest | pb.AttendRequest,
    manifest: Manifest,
    limits: RequestLimits,
    failures: Failures,
    *,
    any_length: bool = False,
) -> ParsedInput:
    """Return the token ids or the feature rows of a request without texts and pairs; see `read_tokens`."""
    match request.WhichOneof("input"):
        case "tokens":
            return read_tokens(request.tokens, manifest, limits, failures, any_length=any_length)
        case "features":
            return read_features(request.features, manifest, limits, failures)
        case _:
            raise InvalidInput("the request has no input: send tokens, features, texts or images")


def read_tokens(
    message: pb.TokenSequences,
    manifest: Manifest,
    limits: RequestLimits,
    failures: Failures,
    *,
    any_length: bool = False,
) -> ParsedInput:
    """Return the token ids of each sequence, as views of the message's bytes; add errors of sequences to `failures`.

    With `any_length`, sequences may have more or fewer tokens than the model encodes.

    Raises:
        InvalidInput: the whole request is wrong.
    """
    if not manifest.vocabulary_size:
        raise InvalidInput(
            f"tokens: the model takes features of width {manifest.feature_width}, not token ids: send features",
            field="tokens",
        )
    dtype = _ID_TYPES.get(message.dtype)
    if dtype is None:
        raise InvalidInput(
            f"tokens.dtype is {dtype_name(message.dtype)}: send ids as INT32 or INT64", field="tokens.dtype"
        )
    ends = _check_sizes(message.lengths, "tokens", manifest, limits, failures, any_length=any_length)
    ids = _view(message.data, dtype, 1, ends[-1], "tokens")[:, 0]
    types = read_types(message, ends, manifest, failures)
    # As an unsigned number, a negative id is large, so one comparison checks both bounds.
    if ids.view(dtype.str.replace("i", "u")).max(initial=0) >= manifest.vocabulary_size:
        largest = manifest.vocabulary_size - 1
        for index, row, position in _first_wrong_rows((ids < 0) | (ids > largest), ends):
            failures.add(
                InvalidInput(
                    f"has id {ids[row]} at position {position}; the model's ids are 0 to {largest}: use the model's "
                    "own tokenizer",
                    sequence=index,
                    field="tokens.data",
                    limit=largest,
                    actual=int(ids[row]),
                )
            )
    if takes_target(manifest):
        sequences = _split(with_parts(ids, ends, manifest.target.start_id, failures), ends)
    else:
        sequences = _split(with_types(ids, types, manifest), ends)
    return ParsedInput(sequences, failures, kept_rows=target_rows(sequences, manifest))


def read_features(
    message: pb.FeatureSequences, manifest: Manifest, limits: RequestLimits, failures: Failures
) -> ParsedInput:
    """Return the feature rows of each sequence, as views of the message's bytes; see `read_tokens`."""
    if not manifest.feature_width:
        raise InvalidInput(
            "features: the model takes token ids or texts, not features: send one of these", field="features"
        )
    # In a request without sequences the width may be unset; the check of lengths below refuses that request.
    if message.lengths and message.width != manifest.feature_width:
        part = ", of which the last value names the part" if takes_target(manifest) else ""
        raise InvalidInput(
            f"features.width is {message.width}; the model takes features of width {manifest.feature_width}{part}: "
            "send rows of that width",
            field="features.width",
            limit=manifest.feature_width,
            actual=message.width,
        )
    dtype = _FEATURE_TYPES.get(message.dtype)
    if dtype is None:
        raise InvalidInput(
            f"features.dtype is {dtype_name(message.dtype)}: send features as FLOAT32 or FLOAT16",
            field="features.dtype",
        )
    ends = _check_sizes(message.lengths, "features", manifest, limits, failures)
    rows = _view(message.data, dtype, message.width, ends[-1], "features")
    for index, _, position in _first_wrong_rows(~np.isfinite(rows).all(axis=1), ends):
        failures.add(
            InvalidInput(
                f"has a NaN or an infinity at position {position}: send finite numbers",
                sequence=index,
                field="features.data",
            )
        )
    if zeros := prefix_rows(manifest):
        check_prefix_rows(rows, ends, zeros, failures)
    if takes_target(manifest):
        check_parts(rows, ends, failures)
    sequences = _split(rows, ends)
    return ParsedInput(sequences, failures, kept_rows=target_rows(sequences, manifest))


def read_prompt(texts: pb.Texts, manifest: Manifest, limits: RequestLimits) -> pb.Prompt:
    """Check texts before tokenisation; return the requested prompt, or the default prompt, or an empty prompt.

    Raises:
        InvalidInput: the model takes no texts or lacks the prompt, or there are too many texts or bytes of texts.
    """
    name = texts.prompt or manifest.default_prompt
    prompts = {prompt.name: prompt for prompt in manifest.prompts}
    if name and name not in prompts:
        known = shorten(", ".join(map(repr, prompts)) or "none", MAX_QUOTED_CHARACTERS, placeholder=" …")
        raise InvalidInput(
            f"texts.prompt: the model has no prompt {name[:MAX_QUOTED_CHARACTERS]!r} (its prompts: {known}): "
            "name one of them, or leave the field empty",
            field="texts.prompt",
        )
    if not manifest.max_text_tokens:
        kinds = "images" if takes_images(manifest) else "token ids or features"
        raise InvalidInput(f"texts: the model has no tokenizer: send {kinds}", field="texts")
    check_count(len(texts.values), limits)
    check_text_bytes(texts.ByteSize(), "texts", limits)
    return prompts[name] if name else pb.Prompt()


def check_texts(texts: Sequence[str], failures: Failures) -> None:
    """Refuse texts with too many bytes for tokenisation; only the tokenizer can count tokens."""
    for index, text in enumerate(texts):
        check_text(text, "", index, "texts", failures)


def check_text(text: str, place: str, index: int, field: str, failures: Failures) -> None:
    """Refuse one text of the sequence at an index, as `check_texts` does; `place` says where in its sequence it is."""
    # No character has more than 4 bytes. This fast check is enough for nearly all texts.
    if 4 * len(text) > MAX_BYTES_OF_ONE_TEXT and (size_bytes := len(text.encode())) > MAX_BYTES_OF_ONE_TEXT:
        failures.add(
            InvalidInput(
                f"{place} has {size_bytes} bytes; the server accepts texts of at most {MAX_BYTES_OF_ONE_TEXT} bytes, "
                "even if it truncates them: shorten or split the text".lstrip(),
                sequence=index,
                field=field,
                limit=MAX_BYTES_OF_ONE_TEXT,
                actual=size_bytes,
            )
        )


def text_too_long(index: int, tokens: int, max_tokens: int, field: str, *, only_second: bool) -> SequenceTooLong:
    """Return the error of a text or pair that has more than `max_tokens` tokens.

    Args:
        index: the index of the sequence.
        tokens: number of tokens, without truncation.
        max_tokens: the most tokens that the model accepts of a text or pair.
        field: `texts` or `pairs`.
        only_second: whether truncation may shorten only the second text; the first text is then the one too long.
    """
    advice = "shorten, split or truncate it"
    if only_second:
        field, advice = "pairs.first", "shorten its first text, or truncate with LONGEST_FIRST instead of ONLY_SECOND"
    return SequenceTooLong(
        f"has {tokens} tokens; the model accepts texts of at most {max_tokens} tokens, special tokens and prompt "
        f"included: {advice}",
        sequence=index,
        field=field,
        limit=max_tokens,
        actual=tokens,
    )


def read_tokenized(
    sequences: list[NDArray[np.generic]],
    prompt: pb.Prompt,
    manifest: Manifest,
    limits: RequestLimits,
    failures: Failures,
    field: str = "texts",
    *,
    any_length: bool = False,
) -> ParsedInput:
    """Check and return the tokens of each text or pair; the caller adds truncated texts and offsets.

    With `any_length`, texts may have more or fewer tokens than the model encodes.

    Raises:
        InvalidInput: the texts have too many tokens.
    """
    lengths = [len(tokens) for tokens in sequences]
    check_tokens(sum(lengths), limits)
    if not any_length:
        _check_lengths(lengths, field, manifest, failures)
    skipped_tokens = prompt.tokens if prompt.text and manifest.pooling_skips_prompt else 0
    kept = None
    if prompt.skiplist_ids:
        kept = [~np.isin(without_types(tokens), prompt.skiplist_ids) for tokens in sequences]
    max_tokens = prompt.max_tokens or manifest.max_text_tokens
    return ParsedInput(sequences, failures, skipped_tokens=skipped_tokens, kept_rows=kept, max_tokens=max_tokens)


def _check_sizes(
    lengths: Sequence[int],
    kind: str,
    manifest: Manifest,
    limits: RequestLimits,
    failures: Failures,
    *,
    any_length: bool = False,
) -> list[int]:
    """Check the lengths of sequences, and return the end of each sequence: the row after its last row."""
    check_count(len(lengths), limits)
    # Most requests have few sequences, for which Python is faster than numpy.
    counts = list(lengths)
    ends = list(accumulate(counts))
    if not any_length:
        _check_lengths(counts, f"{kind}.lengths", manifest, failures)
    check_tokens(ends[-1], limits)
    return ends


def _check_lengths(lengths: Sequence[int], path: str, manifest: Manifest, failures: Failures) -> None:
    """Refuse the sequences that are shorter or longer than the model accepts; `path` is the request's field."""
    least, most = min_tokens(manifest), manifest.max_tokens
    # This fast check is enough for nearly all requests.
    if least <= min(lengths) and max(lengths) <= most:
        return
    for index, length in enumerate(lengths):
        if length == 0:
            message = "is empty: send at least one token"
            if path in ("texts", "pairs"):
                message = "has no tokens: send a text of at least one word"
            failures.add(InvalidInput(message, sequence=index, field=path))
        elif length != most and manifest.fixed_length:
            failures.add(wrong_fixed_length(index, length, path, manifest))
        elif length < least:
            message = (
                f"has length {length}; the model needs at least {least} tokens, because "
                + ("a target follows the source" if takes_target(manifest) else "no token attends to itself")
                + ": send a longer sequence"
            )
            failures.add(InvalidInput(message, sequence=index, field=path, limit=least, actual=length))
        elif length > most:
            message = f"has {length} tokens; the model accepts at most {most}: shorten or split it"
            failures.add(SequenceTooLong(message, sequence=index, field=path, limit=most, actual=length))


def _view(data: bytes, dtype: np.dtype[Any], width: int, rows: int, kind: str) -> NDArray[Any]:
    """Return bytes as an array [rows, width]."""
    expected_bytes = rows * width * dtype.itemsize
    if len(data) != expected_bytes:
        raise InvalidInput(
            f"{kind}.data has {len(data)} bytes; the lengths add up to {rows} × {width} values of {dtype.itemsize} "
            f"bytes, which take {expected_bytes}: correct the lengths or the data",
            field=f"{kind}.data",
            limit=expected_bytes,
            actual=len(data),
        )
    return np.frombuffer(data, dtype).reshape(rows, width)


def _split(rows: NDArray[Any], ends: list[int]) -> list[NDArray[np.generic]]:
    """Return a view of the rows of each sequence."""
    return [rows[begin:end] for begin, end in pairwise([0, *ends])]


def _first_wrong_rows(wrong: NDArray[np.bool_], ends: list[int]) -> Iterator[tuple[int, int, int]]:
    """Yield (sequence index, row, position in the sequence) of the first wrong row of each sequence that has one."""
    if not wrong.any():
        return
    rows = np.flatnonzero(wrong)
    sequences, firsts = np.unique(np.searchsorted(ends, rows, side="right"), return_index=True)
    for index, row in zip(sequences.tolist(), rows[firsts].tolist(), strict=True):
        yield index, row, row - (ends[index - 1] if index else 0)
