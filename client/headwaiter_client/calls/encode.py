"""Calls of `encode` and `encode_stream`."""

from typing import Any

from headwaiter_client.calls.input_kinds import InputKind
from headwaiter_client.calls.list_call import CallSettings, ListCall
from headwaiter_client.calls.options import RequestOptions, encode_template, own_id
from headwaiter_client.calls.progress import Progress
from headwaiter_client.calls.results import Encoding, SequenceEncoding, read_encoding, split_by_sequence
from headwaiter_client.calls.splitting import Chunk
from headwaiter_client.calls.steps import Steps
from headwaiter_proto import encoder_pb2 as pb


class EncodeCall(ListCall[Encoding]):
    """One call of `encode` or `encode_stream`; `options` are `RequestOptions`, other arguments those of `ListCall`."""

    METHOD, RESPONSE = "Encode", pb.EncodeResponse

    def __init__(
        self,
        settings: CallSettings,
        kind: InputKind | None,
        sequences: Any,
        options: RequestOptions,
        timeout_s: float | None,
        progress: Progress | None = None,
        *,
        stream: bool = False,
        accepts_async: bool = False,
    ) -> None:
        all_options = settings.defaults.for_encode(options)
        template, own = encode_template(all_options), own_id(all_options)
        super().__init__(
            settings, kind, sequences, template, own, timeout_s, progress, stream=stream, accepts_async=accepts_async
        )
        self._hidden = template.output.hidden

    def send_for_stream(self, chunk: Chunk) -> Steps[list[SequenceEncoding]]:
        """Send a chunk as `send` does, and return one result per sequence."""
        part = yield from self.send(chunk)
        return split_by_sequence(part, chunk.first)

    def _read(self, response: pb.EncodeResponse, first: int, count: int, round_trip_s: float) -> Encoding:
        return read_encoding(response, first, count, round_trip_s)

    @property
    def _wants_rows(self) -> bool:
        return self._hidden
