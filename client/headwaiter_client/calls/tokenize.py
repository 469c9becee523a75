"""Calls of `tokenize` and `count_tokens`."""

from dataclasses import replace

from headwaiter_client.calls.list_call import ListCall
from headwaiter_client.calls.options import TokenizeOptions, tokenize_template
from headwaiter_client.calls.splitting import Chunk, ChunkLimits
from headwaiter_client.calls.steps import Steps
from headwaiter_client.calls.tokenization import Tokenization, read_tokenization
from headwaiter_proto import encoder_pb2 as pb


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
