"""Calls of `encode` and `encode_stream`."""

from typing import ClassVar

from headwaiter_client.calls.list_call import ListCall
from headwaiter_client.calls.options import ListOptions, StreamOptions, encode_template
from headwaiter_client.calls.results import Encoding, SequenceEncoding, only_sequence, read_encoding, split_by_sequence
from headwaiter_client.calls.splitting import Chunk
from headwaiter_client.calls.steps import Steps
from headwaiter_proto import encoder_pb2 as pb


class EncodeCall(ListCall[Encoding]):
    """One call of an encode method."""

    METHOD, RESPONSE = "Encode", pb.EncodeResponse
    OPTIONS: ClassVar[type] = ListOptions

    def _new_template(self) -> pb.EncodeRequest:
        return encode_template(self._options)

    def _read(self, response: pb.EncodeResponse, first: int, count: int, round_trip_s: float) -> Encoding:
        return read_encoding(response, first, count, round_trip_s)

    @property
    def _wants_rows(self) -> bool:
        return bool(self._options.get("hidden"))


class OneTextCall(EncodeCall):
    """One call of `encode` for one text instead of a list."""

    def chunk(self) -> Chunk:
        """Return the text as a chunk.

        Raises:
            InvalidInput: the text cannot be sent.
        """
        return self._converter().convert(self.sequences)

    def part(self, result: Encoding, first: int, count: int) -> SequenceEncoding:
        """See `ListCall.part`."""
        return only_sequence(result, first)


class StreamCall(EncodeCall):
    """One call of `encode_stream`."""

    OPTIONS, IS_STREAM = StreamOptions, True

    def send_chunk(self, chunk: Chunk) -> Steps[list[SequenceEncoding]]:
        """Send a chunk as `send` does, and return one result per sequence."""
        part = yield from self.send(chunk)
        return split_by_sequence(part, chunk.first)
