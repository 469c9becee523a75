"""Turn texts into token ids with the tokenizer of the bundle."""

import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import Manifest, PairTemplate
from headwaiter_proto.rules.errors import Failures, InferenceFailed, SequenceTooLong
from headwaiter_proto.rules.limits import more_tokens
from headwaiter_proto.rules.pairs import Pair, check_pairs, kept_tokens
from headwaiter_proto.rules.sequences import check_texts, text_too_long
from headwaiter_server.inputs.pair_template import TemplatedPairs, kept_positions
from headwaiter_server.runtime.bundle import TOKENIZER, Bundle
from headwaiter_server.runtime.errors import BundleRefused, one_line, panics_as_errors

# Texts are tokenised in slices of about this size.
_SLICE_CHARACTERS = 1 << 16
_MAX_QUOTED_CHARACTERS = 200


class Truncation(Enum):
    """How to treat a text with too many tokens: refuse it, keep it, or drop tokens from its left or right end."""

    ERROR = auto()
    NONE = auto()
    LEFT = auto()
    RIGHT = auto()


@dataclass(frozen=True)
class TokenizeOptions:
    """How to tokenise the texts of a request.

    Attributes:
        prompt: the prompt to put before each text.
        truncation: how to treat a text that, with its prompt, has too many tokens.
        offsets: whether to return the position of each token in its text, or in the second text of its pair.
        pair_truncation: which text of a pair loses tokens.
    """

    prompt: pb.Prompt = field(default_factory=pb.Prompt)
    truncation: Truncation = Truncation.ERROR
    offsets: bool = False
    pair_truncation: pb.PairTruncation = pb.PAIR_TRUNCATION_LONGEST_FIRST


@dataclass(frozen=True, eq=False)
class TokenizedText:
    """The n tokens of a text or of a pair of texts, special tokens included.

    Attributes:
        ids: the token ids, [n].
        original_tokens: the number of tokens before truncation.
        offsets: begin and end of each token in the text, or in the second text of a pair, in code points, [n, 2]; None
            if not requested.
        types: the token types, [n]; None for a text, whose tokens all have type 0.
        special: whether each token belongs to no text, bool [n]; None if offsets are not requested.
    """

    ids: NDArray[np.int64]
    original_tokens: int
    offsets: NDArray[np.int64] | None
    types: NDArray[np.int64] | None = None
    special: NDArray[np.bool_] | None = None


class BundleTokenizer:
    """The tokenizer of a bundle; enforces the model's maximum number of tokens in a text.

    Attributes:
        file: the content of the tokenizer's file.
    """

    def __init__(
        self,
        file: bytes,
        max_tokens: int,
        pair_template: PairTemplate | None = None,
        first_text_keeps_more: bool = False,
    ) -> None:
        self.file = file
        self._tokenizer = Tokenizer.from_buffer(file)
        # The requests choose the truncation, and the batches pad.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._max_tokens = max_tokens
        self._first_keeps_more = first_text_keeps_more
        self._templated = None if pair_template is None else TemplatedPairs(pair_template, self._tokenizer)

    @classmethod
    def open_in(cls, bundle: Bundle) -> "BundleTokenizer":
        """Load the tokenizer of a bundle, and compare it with the manifest. The export has measured its cost.

        Raises:
            BundleChanged: the file is not the one that was checked when the bundle was opened.
            BundleRefused: the file is no tokenizer, or contradicts the manifest.
        """
        with bundle.private_copy(TOKENIZER) as private:
            try:
                with panics_as_errors():
                    tokenizer = cls((private / TOKENIZER).read_bytes(), *text_settings(bundle.manifest))
                    problem = tokenizer._contradiction(bundle.manifest)
            except Exception as error:  # noqa: BLE001 - the library raises nothing more specific
                problem = f"it cannot be read: {one_line(error)[:_MAX_QUOTED_CHARACTERS]}"
        if problem:
            path = bundle.folder / TOKENIZER
            raise BundleRefused(f"{path} is no tokenizer that the server can use ({problem}): export the model again")
        return tokenizer

    def _contradiction(self, manifest: Manifest) -> str | None:
        """Return how the tokenizer contradicts the manifest, or None."""
        encodings = [self._tokenizer.encode(text) for text in ("", "a é 雨")]
        if self._templated is not None:
            if len(self._templated.ids) >= self._max_tokens:
                return f"pair_template has {len(self._templated.ids)} tokens, and max_text_tokens is {self._max_tokens}"
        elif manifest.takes_pairs:
            encodings.append(self._tokenizer.encode("a", "b"))
        ids = [*self._tokenizer.get_vocab().values(), *(each for encoding in encodings for each in encoding.ids)]
        types = [each for encoding in encodings for each in encoding.type_ids]
        if max(ids, default=0) >= manifest.vocabulary_size:
            return f"it has token id {max(ids)}, and vocabulary_size of the manifest is {manifest.vocabulary_size}"
        if max(types, default=0) >= max(1, manifest.token_types) and manifest.token_types:
            return f"it gives token type {max(types)}, and token_types of the manifest is {manifest.token_types}"
        for prompt in manifest.prompts:
            special = np.array(self._tokenizer.encode(prompt.text).special_tokens_mask, bool)
            tokens = int(np.flatnonzero(~special)[-1]) + 1 if not special.all() else 0
            # Pooling skips all rows of the prompt alone, or all but the last, see `_skipped_rows` of the export.
            skipped = (len(special), len(special) - 1) if manifest.pooling_skips_prompt and prompt.text else ()
            if prompt.tokens not in (tokens, *skipped):
                name = prompt.name[:_MAX_QUOTED_CHARACTERS]
                return f"the prompt {name!r} has {tokens} tokens, and {prompt.tokens} in the manifest"
        return None

    def tokenize(
        self,
        texts: Sequence[str | Pair],
        options: TokenizeOptions,
        failures: Failures,
        max_total_tokens: int,
    ) -> Generator[None, None, list[TokenizedText]]:
        """Yield between slices of the texts, and return the tokens of each text or pair, in order.

        `failures` collects an InvalidInput for each text of too many bytes, and a SequenceTooLong for each text of too
        many tokens; such a text has no tokens. Pairs have no prompts.

        Raises:
            InvalidInput: a text is too long, and `failures` does not keep errors; or the tokens of the first slices
                exceed `max_total_tokens`.
        """
        are_pairs = isinstance(next(iter(texts), ""), tuple)
        if are_pairs:
            check_pairs(cast("Sequence[Pair]", texts), failures)
        else:
            check_texts(cast("Sequence[str]", texts), failures)
        prompt = options.prompt.text
        inputs = {
            index: prompt + each if isinstance(each, str) else each
            for index, each in enumerate(texts)
            if index not in failures
        }
        templated = self._templated if are_pairs else None
        tokenized = [_NO_TOKENS] * len(texts)
        total_tokens = 0
        for number, indices in enumerate(_slices(inputs, templated.characters if templated else 0)):
            if number:
                if total_tokens > max_total_tokens:
                    raise more_tokens(max_total_tokens)
                yield
            encodings = self._encode([inputs[index] for index in indices], templated, options)
            for index, encoding in zip(indices, encodings, strict=True):
                try:
                    tokenized[index] = self._tokens_of(index, inputs[index], encoding, templated, options)
                    total_tokens += len(tokenized[index].ids)
                except SequenceTooLong as error:
                    failures.add(error)
        return tokenized

    def _encode(
        self, texts: Sequence[str | Pair], templated: TemplatedPairs | None, options: TokenizeOptions
    ) -> list[Any]:
        """Return the tokenizer's encodings of texts, of pairs, or of pairs in the template.

        Raises:
            InferenceFailed: the tokenizer failed.
        """
        # The truncation of a pair in a template needs offsets.
        needs_offsets = options.offsets or (templated is not None and options.truncation is not Truncation.ERROR)
        # encode_batch_fast computes no offsets. Both functions release the GIL and use a thread per core.
        encode_batch = self._tokenizer.encode_batch if needs_offsets else self._tokenizer.encode_batch_fast
        with _failures_named():
            given = [templated.text(each) for each in texts if isinstance(each, tuple)] if templated else texts
            # A pair in a template gets no further special tokens.
            encodings: list[Any] = encode_batch(given, add_special_tokens=not templated)
            return encodings

    def _tokens_of(
        self,
        index: int,
        text: str | Pair,
        encoding: Any,
        templated: TemplatedPairs | None,
        options: TokenizeOptions,
    ) -> TokenizedText:
        """Return the tokens of the text or the pair at an index, truncated and expanded as the options say.

        Raises:
            SequenceTooLong: the text has too many tokens.
        """
        max_tokens = options.prompt.max_tokens or self._max_tokens
        if options.truncation is Truncation.NONE:
            max_tokens = sys.maxsize
        input_field = "texts" if isinstance(text, str) else "pairs"
        # Copying ids makes other threads wait, so the ids of a refused text are not copied.
        if len(encoding) > max_tokens and options.truncation is Truncation.ERROR:
            raise text_too_long(index, len(encoding), max_tokens, input_field, only_second=False)
        if templated and not isinstance(text, str):
            from_right = options.truncation is Truncation.RIGHT
            ids = templated.truncate(encoding, text, max_tokens, options.pair_truncation, from_right=from_right)
            tokens = TokenizedText(ids, len(encoding), None)
        else:
            truncated = _truncate(encoding, options, max_tokens, first_keeps_more=self._first_keeps_more)
            tokens = _expand(truncated, options.prompt)
        if len(tokens.ids) > max_tokens:
            only_second = options.pair_truncation == pb.PAIR_TRUNCATION_ONLY_SECOND
            raise text_too_long(index, len(encoding), max_tokens, input_field, only_second=only_second)
        return tokens

    def decode(self, sequences: Sequence[NDArray[np.generic]], *, skip_special_tokens: bool) -> list[str]:
        """Return the text of each sequence of token ids [n].

        Raises:
            InferenceFailed: the tokenizer failed.
        """
        ids = [each.tolist() for each in sequences]
        with _failures_named():
            texts: list[str] = self._tokenizer.decode_batch(ids, skip_special_tokens=skip_special_tokens)
        return texts

    def token_strings(self, ids: NDArray[np.generic]) -> list[str]:
        """Return the vocabulary entries of the token ids [n], including their marks for word parts and spaces."""
        return [self._tokenizer.id_to_token(int(token_id)) or "" for token_id in ids]


@contextmanager
def _failures_named() -> Iterator[None]:
    """Raise InferenceFailed for any failure of the library, panics included."""
    try:
        with panics_as_errors():
            yield
    except Exception as error:
        raise InferenceFailed(
            "the model's tokenizer failed on a text: look for the request's id in the server's log"
        ) from error


def text_settings(manifest: Manifest) -> tuple[int, PairTemplate | None, bool]:
    """Return the arguments that `BundleTokenizer` takes after its file."""
    template = manifest.pair_template if manifest.HasField("pair_template") else None
    return manifest.max_text_tokens, template, manifest.first_text_keeps_more


def _truncate(encoding: Any, options: TokenizeOptions, max_tokens: int, *, first_keeps_more: bool) -> TokenizedText:
    """Return the tokens of a text; if there are too many, drop some from one end, but keep special tokens.

    `transformers` drops the same tokens.
    """
    tokens = _read_tokens(encoding, options)
    if tokens.original_tokens <= max_tokens:
        return tokens
    keep = np.array(encoding.special_tokens_mask, bool)
    # The positions of each text's own tokens; a template puts special tokens between the texts of a pair.
    texts = [_positions(encoding, keep, text) for text in range(encoding.n_sequences)]
    room = max(0, max_tokens - int(keep.sum()))
    counts = kept_tokens(
        [len(positions) for positions in texts], room, options.pair_truncation, first_keeps_more=first_keeps_more
    )
    for positions, count in zip(texts, counts, strict=True):
        keep[kept_positions(positions, count, from_right=options.truncation is Truncation.RIGHT)] = True
    parts = (None if each is None else each[keep] for each in (tokens.offsets, tokens.types, tokens.special))
    return TokenizedText(tokens.ids[keep], tokens.original_tokens, *parts)


def _expand(tokens: TokenizedText, prompt: pb.Prompt) -> TokenizedText:
    """Append the tokens of a prompt's query expansion, whose positions in the text are empty."""
    missing = prompt.expanded_tokens - len(tokens.ids)
    if missing <= 0:
        return tokens
    offsets, special = tokens.offsets, tokens.special
    if offsets is not None and special is not None:
        offsets = np.concatenate([offsets, np.zeros((missing, 2), np.int64)])
        special = np.append(special, [True] * missing)
    ids = np.append(tokens.ids, [prompt.expansion_id] * missing)
    return replace(tokens, ids=ids, offsets=offsets, special=special)


_NO_TOKENS = TokenizedText(np.empty(0, np.int64), 0, np.empty((0, 2), np.int64), special=np.empty(0, bool))


def _read_tokens(encoding: Any, options: TokenizeOptions) -> TokenizedText:
    """Read the tokens of a text and its prompt, or of a pair, from the tokenizer's encoding.

    Offsets count from the start of the text after its prompt; those of a pair are empty outside of the second text.
    """
    ids = np.array(encoding.ids, np.int64)
    types = np.array(encoding.type_ids, np.int64) if encoding.n_sequences > 1 else None
    if not options.offsets:
        return TokenizedText(ids, len(ids), None, types)
    offsets = np.array(encoding.offsets, np.int64).reshape(-1, 2)
    if encoding.n_sequences > 1:
        offsets[np.array(encoding.sequence_ids, object) != 1] = 0
    special = np.array(encoding.special_tokens_mask, bool)
    return TokenizedText(ids, len(ids), np.maximum(offsets - len(options.prompt.text), 0), types, special)


def _positions(encoding: Any, is_special: NDArray[np.bool_], text: int) -> NDArray[np.intp]:
    """Return the positions of a text's own tokens in an encoding of one or two texts."""
    if encoding.n_sequences == 1:
        return np.flatnonzero(~is_special)
    return np.flatnonzero([each == text for each in encoding.sequence_ids])


def _slices(texts: Mapping[int, str | Pair], further_characters: int) -> Iterator[list[int]]:
    """Yield the indices of the texts or pairs in slices; the caller can stop between slices.

    `further_characters` is the number of characters of the template around each.
    """
    indices: list[int] = []
    characters = 0
    for index, text in texts.items():
        indices.append(index)
        characters += further_characters + (len(text) if isinstance(text, str) else len(text[0]) + len(text[1]))
        if characters >= _SLICE_CHARACTERS:
            yield indices
            indices, characters = [], 0
    if indices:
        yield indices
