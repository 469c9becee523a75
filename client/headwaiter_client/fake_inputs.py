"""The inputs of `FakeEncoder`: it splits texts at white space, and otherwise follows the server's rules."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_proto.rules import images, sequences
from headwaiter_proto.rules.errors import Failures
from headwaiter_proto.rules.limits import RequestLimits
from headwaiter_proto.rules.pairs import check_pairs, kept_tokens, read_pairs


class Words(NamedTuple):
    """The tokens of a text or a pair of texts.

    Attributes:
        tokens: words and special tokens, [n].
        spans: begin and end of each token in the text, or in the second text of the pair, [n, 2].
        texts: the positions of each text's own tokens.
    """

    tokens: NDArray[Any]
    spans: NDArray[np.int64]
    texts: Sequence[NDArray[np.intp]]


def read_input(
    request: pb.EncodeRequest | pb.AttendRequest, manifest: Manifest, limits: RequestLimits, *, any_length: bool = False
) -> sequences.ParsedInput:
    """Return the sequences of a request; a text or a pair is an array of words, and an image a number of equal rows.

    With `any_length`, texts may have any number of tokens, unless the request has a truncation.
    """
    # An AttendRequest has the same inputs as an EncodeRequest, but no options for them.
    options = request if isinstance(request, pb.EncodeRequest) else pb.EncodeRequest()
    failures = Failures(keep=options.partial)
    kind = request.WhichOneof("input")
    if kind == "images":
        images.check_images(request.images, manifest, limits)
        shape = images.image_tokens(manifest), manifest.feature_width
        files = request.images.values
        return sequences.ParsedInput([np.full(shape, crc32(file), np.float32) for file in files], failures)
    if kind not in ("texts", "pairs"):
        return sequences.read_rows(request, manifest, limits, failures)
    prompt, texts = pb.Prompt(), list[tuple[str, ...]]()
    if kind == "texts":
        prompt = sequences.read_prompt(request.texts, manifest, limits)
        sequences.check_texts(request.texts.values, failures)
        texts = [(text,) for text in request.texts.values]
    else:
        pairs = read_pairs(request.pairs, manifest, limits)
        check_pairs(pairs, failures)
        texts.extend(pairs)
    max_tokens = manifest.max_text_tokens
    any_length = any_length and options.truncation == pb.TRUNCATION_UNSPECIFIED
    truncates = options.truncation in (pb.TRUNCATION_LEFT, pb.TRUNCATION_RIGHT)
    tokens, offsets, special, truncated = [], [], [], {}
    for index, each in enumerate(texts):
        words = _NO_WORDS if index in failures else tokenize(each, prompt.text)
        kept = _truncate(words, max_tokens, options) if truncates else np.ones(len(words.tokens), bool)
        original_tokens, kept_count = len(words.tokens), int(kept.sum())
        if kept_count > max_tokens and not any_length:
            only_second = truncates and options.pairs.pair_truncation == pb.PAIR_TRUNCATION_ONLY_SECOND
            failures.add(sequences.text_too_long(index, original_tokens, max_tokens, kind, only_second=only_second))
            words, kept = _NO_WORDS, np.array([], bool)
        elif kept_count < original_tokens:
            truncated[index] = original_tokens
        tokens.append(words.tokens[kept])
        offsets.append(words.spans[kept])
        special.append(~np.isin(np.arange(len(kept)), np.concatenate([[], *words.texts]))[kept])
    parsed = sequences.read_tokenized(tokens, prompt, manifest, limits, failures, kind, any_length=any_length)
    parsed.truncated = truncated
    if options.output.offsets:
        parsed.offsets, parsed.special = offsets, special
    return parsed


def tokenize(texts: Sequence[str], prompt: str = "") -> Words:
    """Split one text, or the two texts of a pair, at white space; add special tokens, and the prompt before a text."""
    tokens = [("[CLS]", 0, 0)]
    positions = []
    for number, text in enumerate(texts, start=1):
        begin = len(tokens)
        words_of_text = _spans(text)
        if number < len(texts):
            # The offsets of a pair are positions in the second text.
            words_of_text = [(word, 0, 0) for word, _, _ in words_of_text]
        tokens += [*((word, 0, 0) for word in prompt.split()), *words_of_text]
        positions.append(np.arange(begin, len(tokens)))
        tokens.append(("[SEP]", 0, 0))
    # dtype object: a numpy string array would give every word the size of the longest.
    words = np.array([word for word, _, _ in tokens], object)
    return Words(words, np.array([span for _, *span in tokens], np.int64), positions)


def _spans(text: str) -> list[tuple[str, int, int]]:
    return [(found.group(), *found.span()) for found in re.finditer(r"\S+", text)]


def _truncate(words: Words, max_tokens: int, options: pb.EncodeRequest) -> NDArray[np.bool_]:
    """Return which tokens truncation keeps, always including the special tokens."""
    kept = np.ones(len(words.tokens), bool)
    if len(kept) <= max_tokens:
        return kept
    lengths = [len(positions) for positions in words.texts]
    room = max(0, max_tokens - (len(kept) - sum(lengths)))
    counts = kept_tokens(lengths, room, options.pairs.pair_truncation)
    from_right = options.truncation == pb.TRUNCATION_RIGHT
    for positions, count in zip(words.texts, counts, strict=True):
        kept[positions[count:] if from_right else positions[: len(positions) - count]] = False
    return kept


_NO_WORDS = Words(np.array([], object), np.empty((0, 2), np.int64), ())
