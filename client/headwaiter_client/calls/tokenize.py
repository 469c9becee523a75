"""Calls of `tokenize` and `count_tokens`, and their result."""

from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from headwaiter_client.calls.list_call import ListCall
from headwaiter_client.calls.models import model_ref
from headwaiter_client.calls.options import TokenizeOptions, tokenize_template
from headwaiter_client.calls.results import (
    NO_OFFSETS,
    ListResult,
    present,
    read_lengths,
    read_offsets,
    read_truncated,
    reading_reply,
)
from headwaiter_client.calls.splitting import Chunk, ChunkLimits
from headwaiter_client.calls.steps import Steps
from headwaiter_client.calls.tensors import check_shape, split_rows
from headwaiter_proto import encoder_pb2 as pb


@dataclass(eq=False)
class Tokenization(ListResult):
    """The tokens of a list of texts. Its arrays are writable. It also has the attributes of `ListResult`.

    If a text fails, the call fails, so `failures` is empty.

    Attributes:
        ids: one int32 [length] array per text: the token ids that `encode` encodes, special tokens and prompt included.
        received_offsets: `offsets`; None if the reply has none.
        received_strings: `strings`; None if they were not requested.
        max_tokens: most tokens of a text that the model encodes, with the prompt of the call.
    """

    ids: list[NDArray[np.int32]] = field(repr=False)
    received_offsets: list[NDArray[np.uint32]] | None = field(repr=False)
    received_strings: list[tuple[str, ...]] | None = field(repr=False)
    max_tokens: int

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
        failures={},
        max_tokens=response.max_tokens,
        model=model_ref(response.model),
        request_id=response.request_id,
    )


class TokenizeCall(ListCall[Tokenization]):
    """One call of `tokenize`."""

    METHOD, RESPONSE, OPTIONS = "Tokenize", pb.TokenizeResponse, TokenizeOptions

    def _new_template(self) -> pb.EncodeRequest:
        return tokenize_template(self._options)

    @property
    def shares_nothing(self) -> bool:
        """See `ListCall.shares_nothing`: a request to Tokenize does not wait for others, because it uses no device."""
        return True

    def limits(self) -> Steps[ChunkLimits]:
        """See `ListCall.limits`; nothing is cut, and no device limits the tokens of a request."""
        limits = yield from super().limits()
        description = self.known_description
        assert description is not None
        return replace(limits, tokens=description.limits.max_tokens, text_tokens=description.limits.max_tokens)

    def _request(self, chunk: Chunk) -> pb.TokenizeRequest:
        encode = super()._request(chunk)
        assert isinstance(encode, pb.EncodeRequest)
        return pb.TokenizeRequest(
            model=encode.model,
            model_version=encode.model_version,
            request_id=encode.request_id,
            texts=encode.texts,
            truncation=encode.truncation,
            offsets=encode.output.offsets,
            strings=self._options.get("strings", False),
        )

    def _read(self, response: pb.TokenizeResponse, first: int, count: int, _round_trip_s: float) -> Tokenization:
        return read_tokenization(response, first, count, self._options.get("strings", False))
