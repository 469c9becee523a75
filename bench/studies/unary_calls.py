"""The CPU time of a unary call: Headwaiter with a null model in turns with an echo server, under the load of h2load.

Run it with `python -m bench.studies.unary_calls`; it needs h2load, which is part of nghttp2. It prints for each round
the CPU microseconds per call and the calls/s: of the echo server, of Headwaiter in one process, of Headwaiter's engine
and of its two front ends, and of the two front ends of a bare relay, which is the least that front ends can cost. The
load generator is written in C, so that it never limits the server.
"""

from typing import Any

import grpc
import numpy as np

from bench.loads.h2load import Sent, send_calls
from bench.loads.raw_calls import ENCODE, request
from bench.measure import MINIMAL, NULL, Fleet, ServerSetup, counters
from bench.processes import LOAD_CORE, pin
from bench.rounds import Rounds
from headwaiter_proto import encoder_pb2 as pb
from testbed.server_process import RunningServer

_LENGTH_TOKENS = 20
# With eight connections, each of two front ends has some.
_CONNECTIONS, _STREAMS = 8, 8
_WARM_UP_CALLS, _CALLS = 1_000, 6_000
_ROUNDS = 5
_MOST_RATIO, _MOST_FRONT_END_RATIO = 1.9, 1.6
_RELAY = ServerSetup("bare relay", program=("bench.servers.relay",))
_FRONT_ENDS = ServerSetup("null model, two front ends", program=NULL.program, flags=("--front-ends", "2"))


def main() -> None:
    """Measure, and print the figures."""
    pin(LOAD_CORE)
    message = request(np.arange(1000, 1000 + _LENGTH_TOKENS)).message
    ratios, front_end_ratios, relay_ratios = Rounds(), Rounds(), Rounds()
    with Fleet() as fleet:
        echo = f"/echo/unary-{_reply_bytes(fleet[NULL].address, message)}"
        for _ in range(_ROUNDS):
            theirs, ours = _cost(fleet[MINIMAL], echo, message), _cost(fleet[NULL], ENCODE, message)
            divided = _cost(fleet[_FRONT_ENDS], ENCODE, message)
            relay = _cost(fleet[_RELAY], echo, message)
            ratios.append(ours.cpu_us / theirs.cpu_us)
            front_end_ratios.append(divided.children_cpu_us / theirs.cpu_us)
            relay_ratios.append(relay.children_cpu_us / theirs.cpu_us)
            print(
                f"echo {theirs.cpu_us:.0f} µs, {theirs.calls_per_s:.0f}/s; "
                f"one process {ours.cpu_us:.0f} µs, {ours.calls_per_s:.0f}/s, ratio {ratios[-1]:.2f}; "
                f"front end {divided.children_cpu_us:.0f} µs, ratio {front_end_ratios[-1]:.2f}, "
                f"engine {divided.cpu_us:.0f} µs; relay {relay.children_cpu_us:.0f} µs, ratio {relay_ratios[-1]:.2f}",
                flush=True,
            )
        for setup in (NULL, _FRONT_ENDS):
            # h2load sees only the status of HTTP, which is 200 for calls that fail, too.
            answered = counters(fleet[setup].metrics_url)["headwaiter_requests_total OK"]
            assert answered == _ROUNDS * (_WARM_UP_CALLS + _CALLS) + (setup is NULL)
    print(f"median ratios: one process {ratios:.2f}, at most {_MOST_RATIO} is required")
    print(
        f"front end {front_end_ratios:.2f}, at most {_MOST_FRONT_END_RATIO} is required; bare relay {relay_ratios:.2f}"
    )


def _reply_bytes(address: str, message: bytes) -> int:
    """Return the size of a reply that has the vector of the sequence."""
    with grpc.insecure_channel(address) as channel:
        call: Any = channel.unary_unary(ENCODE)
        raw: bytes = call(message)
    assert list(pb.EncodeResponse.FromString(raw).lengths) == [_LENGTH_TOKENS]
    return len(raw)


def _cost(server: RunningServer, method: str, message: bytes) -> Sent:
    send_calls(server, method, message, _WARM_UP_CALLS, _CONNECTIONS, _STREAMS)
    return send_calls(server, method, message, _CALLS, _CONNECTIONS, _STREAMS)


if __name__ == "__main__":
    main()
