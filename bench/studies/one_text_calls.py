"""Calls of one text each to a server on a GPU, without and with front ends, under the load of h2load.

Run it with `python -m bench.studies.one_text_calls BUNDLE`; it needs h2load, which is part of nghttp2. It prints one
line for each number of front ends and of calls in flight: the calls/s, the sequences of a batch, the share of the time
in which a batch was on the GPU, and the CPU microseconds per call of the engine and of all front ends. With 0 front
ends, one process does all work. Flags of the server may follow the bundle.
"""

import sys
from pathlib import Path

from bench.loads.h2load import send_calls
from bench.loads.raw_calls import ENCODE
from bench.measure import counters
from headwaiter_proto import encoder_pb2 as pb
from headwaiter_server.runtime.bundle import Bundle
from testbed.server_process import RunningServer, running_server

# About 20 tokens, as a query has.
_TEXT = "how do i cancel a hotel booking that i made with points last week without losing any of them"
_FRONT_ENDS = ("0", "4", "8")
_CONNECTIONS, _STREAMS = (8, 16, 32, 48), 8
_WARM_UP_CALLS, _CALLS = 2_000, 20_000


def main(bundle: Path, flags: list[str]) -> None:
    """Measure, and print the lines."""
    message = pb.EncodeRequest(texts=pb.Texts(values=[_TEXT])).SerializeToString()
    print(f"{Bundle.open(bundle).manifest.name}: a text of {len(_TEXT)} characters a call", flush=True)
    print("| front ends | calls in flight | calls/s | sequences a batch | GPU busy | engine, µs | front ends, µs |")
    print("|---|---|---|---|---|---|---|")
    for front_ends in _FRONT_ENDS:
        with running_server(bundle, [*flags, "--front-ends", front_ends]) as server:
            for connections in _CONNECTIONS:
                send_calls(server, ENCODE, message, _WARM_UP_CALLS, connections, _STREAMS)
                print(
                    f"| {front_ends} | {_STREAMS * connections} | {_line(server, message, connections)} |", flush=True
                )


def _line(server: RunningServer, message: bytes, connections: int) -> str:
    before = counters(server.metrics_url)
    sent = send_calls(server, ENCODE, message, _CALLS, connections, _STREAMS)
    after = counters(server.metrics_url)
    grown = {name: after[name] - before[name] for name in after}
    assert grown["headwaiter_requests_total OK"] == _CALLS, "some calls failed"
    batches = grown["headwaiter_batch_sequences_count"]
    busy = grown["headwaiter_device_busy_seconds_total"] * sent.calls_per_s / _CALLS
    return (
        f"{sent.calls_per_s:.0f} | {_CALLS / batches:.1f} | {busy:.2f} | {sent.cpu_us:.0f} | {sent.children_cpu_us:.0f}"
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
