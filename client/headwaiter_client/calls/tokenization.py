"""The result of `tokenize`, and how it is read from a reply."""

from dataclasses import dataclass, field
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from headwaiter_client.calls.models import ModelRef, model_ref
from headwaiter_client.calls.results import (
    NO_OFFSETS,
    present,
    read_lengths,
    read_offsets,
    read_truncated,
    reading_reply,
)
from headwaiter_client.calls.tensors import check_shape, split_rows
from headwaiter_client.errors import HeadwaiterError
from headwaiter_proto import encoder_pb2 as pb


@dataclass(frozen=True, eq=False)
class Tokenization:
    """The tokens of a list of texts. Its arrays are writable.

    Attributes:
        ids: one int32 [length] array per text: the token ids that `encode` encodes, special tokens and prompt included.
        received_offsets: `offsets`; None if the reply has none.
        received_strings: `strings`; None if they were not requested.
        lengths: [B] number of tokens of each text.
        truncated: number of tokens before truncation of each truncated text, by index.
        max_tokens: most tokens of a text that the model encodes, with the prompt of the call.
        model: the model that the tokenizer belongs to.
        request_id: the request's name in the server's log.
    """

    ids: list[NDArray[np.int32]] = field(repr=False)
    received_offsets: list[NDArray[np.uint32]] | None = field(repr=False)
    received_strings: list[tuple[str, ...]] | None = field(repr=False)
    lengths: NDArray[np.int64]
    truncated: dict[int, int]
    max_tokens: int
    model: ModelRef
    request_id: str

    @property
    def offsets(self) -> list[NDArray[np.uint32]]:
        """One [length, 2] array per text; see `Encoding.offsets`.

        Raises:
            OutputMissing: offsets were not requested.
        """
        return present(self.received_offsets, NO_OFFSETS)

    @property
    def strings(self) -> list[tuple[str, ...]]:
        """The tokens of each text, as the tokenizer's vocabulary spells them.

        Raises:
            OutputMissing: strings were not requested.
        """
        return present(self.received_strings, "the result has no strings: pass strings=True")

    @property
    def failures(self) -> dict[int, HeadwaiterError]:
        """No errors: if a text fails, the call fails."""
        return {}


@reading_reply
def read_tokenization(response: pb.TokenizeResponse, first: int, count: int, has_strings: bool) -> Tokenization:
    """Read the reply to one request; `first` and `count` as in `read_encoding`.

    Raises:
        HeadwaiterError: the reply does not have the texts or the tokens that the reply should have.
    """
    lengths = read_lengths(response.tokens, count)
    ids = np.frombuffer(response.tokens.data, "<i4").astype(np.int32)
    check_shape("tokens", ids, int(lengths.sum()))
    strings = None
    if has_strings:
        if len(response.strings) != len(ids):
            raise ValueError(f"{len(response.strings)} strings for {len(ids)} tokens")
        words = iter(response.strings)
        strings = [tuple(islice(words, length)) for length in lengths.tolist()]
    return Tokenization(
        ids=split_rows(ids, lengths),
        received_offsets=read_offsets(response.offsets, lengths),
        received_strings=strings,
        lengths=lengths,
        truncated=read_truncated(response.truncated, first, count),
        max_tokens=response.max_tokens,
        model=model_ref(response.model),
        request_id=response.request_id,
    )
