"""The streams that callers have open."""

from typing import Any

from headwaiter_server.requests.call import Call
from headwaiter_server.requests.request_path import RequestPath
from headwaiter_server.requests.shares import CallLimit
from headwaiter_server.rpc.endpoint import Context
from headwaiter_server.rpc.stream import RequestStream, StreamLimits, StreamProtocol

# The memory of messages that callers have not sent completely, if the messages of all open streams are nearly complete.
_PARTIAL_BYTES = 384 << 20
_FEWEST_STREAMS = 8


class OpenStreams:
    """Answers the streams of all services.

    Args:
        path: answers the requests.

    Attributes:
        limit: limits the streams that are open.
    """

    def __init__(self, path: RequestPath) -> None:
        self._path, settings = path, path.settings
        self._limits = StreamLimits(settings.max_stream_requests, settings.max_stream_bytes, settings.max_stream_idle_s)
        self._streams: set[RequestStream[Any]] = set()
        # While gRPC waits for the next message of a stream, a part of the message may be in memory.
        most = max(_FEWEST_STREAMS, _PARTIAL_BYTES // settings.max_request_bytes)
        self.limit = CallLimit(most, "streams")

    async def answer(self, context: Context, call: Call, protocol: StreamProtocol[Any]) -> None:
        """Answer each request of a stream."""
        self.limit.hold(call.holder, call.held)
        stream = RequestStream(context, call, protocol, self._path.recorder, self._limits)
        with self._path.counted():
            self._streams.add(stream)
            try:
                if self._path.draining:
                    stream.drain()
                await stream.serve()
            finally:
                self._streams.remove(stream)

    def drain(self) -> None:
        """Stop reading streams, and end each stream once its requests are answered."""
        for stream in self._streams:
            stream.drain()
