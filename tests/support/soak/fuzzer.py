"""Send mutated messages to a server, and note how the server answers each call."""

import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from random import Random
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.status import DETAILS_KEY
from tests.support.soak.mutations import Messages

# A call that takes longer counts as lost. Mutated messages ask for little work.
_TIMEOUT_S = 30.0
_CALLS_IN_FLIGHT = 8
_ABANDONED = 0.02
_BROKEN_CODES = (grpc.StatusCode.INTERNAL.name, grpc.StatusCode.UNKNOWN.name)
_CODES = {code.value[0]: code.name for code in grpc.StatusCode}
_INFERENCE_FAILED = pb.ErrorReason.Name(pb.INFERENCE_FAILED)


@dataclass
class Fuzzer:
    """Sends messages to one server from several threads. grpc.aio would hide the status of streams that fail early.

    Attributes:
        address: HOST:PORT of the server.
        sent: number of messages, by method.
        answers: number of answers, by code; `INFERENCE_FAILED` stands for INTERNAL with this reason, which the
            contract allows for a sequence that the model cannot compute.
        broken: calls with an answer that no call may get, with the messages in hexadecimal.
        lost: number of calls without an answer after 30 s.
    """

    address: str
    sent: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    lost: int = 0

    def run(self, calls: Iterator[Messages], messages: int, per_s: float = float("inf")) -> None:
        """Send about this number of messages, at most `per_s` a second."""
        started_s, first, lock = time.monotonic(), self.sent.total(), threading.Lock()

        def send_until_end(channel: grpc.Channel) -> None:
            while True:
                with lock:
                    sent = self.sent.total() - first
                    if sent >= messages:
                        return
                    call = next(calls)
                    self.sent[call.method.rpartition("/")[2]] += len(call.raw)
                time.sleep(max(0.0, started_s + sent / per_s - time.monotonic()))
                self._send(channel, call)

        with grpc.insecure_channel(self.address) as channel, ThreadPoolExecutor(_CALLS_IN_FLIGHT) as threads:
            for sending in [threads.submit(send_until_end, channel) for _ in range(_CALLS_IN_FLIGHT)]:
                sending.result()

    def _send(self, channel: grpc.Channel, call: Messages) -> None:
        started_s, code = time.monotonic(), grpc.StatusCode.OK.name
        try:
            self._answer(channel, call)
        except grpc.RpcError as raised:
            error: Any = raised
            details = dict(error.trailing_metadata() or ()).get(DETAILS_KEY, b"")
            code = _INFERENCE_FAILED if _INFERENCE_FAILED.encode() in details else error.code().name
            self._check(code, call, error.details())
        self.lost += time.monotonic() - started_s >= _TIMEOUT_S
        self.answers[code] += 1

    def _answer(self, channel: grpc.Channel, call: Messages) -> None:
        """Read the whole answer of a call; abandon a few calls."""
        abandoned = Random(call.raw[0]).random() < _ABANDONED
        # Without serializers gRPC takes and returns bytes.
        send: Any = channel.stream_stream(call.method)
        replies = send(iter(call.raw), timeout=_TIMEOUT_S)
        if abandoned:
            replies.cancel()
            return
        for reply in replies:
            if call.method.endswith("Watch"):
                replies.cancel()
                return
            if call.method.endswith("EncodeStream"):
                self._check_reply(call, reply)

    def _check_reply(self, call: Messages, raw: bytes) -> None:
        try:
            reply = pb.EncodeStreamResponse.FromString(raw)
        except DecodeError:
            self.broken.append(f"{call.method} sends a reply that cannot be parsed: {raw.hex()}")
            return
        if reply.HasField("error") and reply.error.reason != pb.INFERENCE_FAILED:
            self._check(_CODES[reply.error.code], call, reply.error.message)

    def _check(self, code: str, call: Messages, details: str) -> None:
        if code in _BROKEN_CODES:
            self.broken.append(f"{call.method} answers {code} ({details}) to {[raw.hex() for raw in call.raw]}")
