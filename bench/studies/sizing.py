"""The replicas for a rate of texts, by the bound that comes first: the table of docs/how-to/plan-capacity.md.

Run it with `python -m bench.studies.sizing`, or with `--card TEXTS_PER_S` for the rate of your GPU, which
`headwaiter-client bench` prints; no card's rate is assumed without it. `--wire` measures the bytes of a call again.
"""

import argparse
import math
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from headwaiter_client import Client
from testbed.minilm import bundle
from testbed.server_process import running_server

TEXTS_PER_S = (100, 1_000, 10_000, 100_000, 1_000_000)
# The share of its capacity at which a part runs.
SHARE = 0.7
# Measured: see docs/explanation/processes.md ("What a call costs") and docs/how-to/plan-capacity.md. A call has one
# text of 20 tokens.
FRONT_END_CALL_S, ENGINE_SEQUENCE_S = 737e-6, 52e-6
# Measured with texts of 14 tokens.
CPU_REPLICA_TEXTS_PER_S = 301 * 14 / 20
# Bytes of a call in TCP's stream, to the server and back: `--wire`.
SENT_BYTES, RECEIVED_BYTES = 183, 1_865
# A host of 16 cores: one core for the engine, one for its device's thread.
FRONT_ENDS_PER_REPLICA = 14
_WIRE_CALLS = 1_000
_TEXT = "The library of the old town opens at nine and lends its books for three weeks."


@dataclass(frozen=True)
class Row:
    """What a rate needs, with one replica more than the bound asks for.

    Attributes:
        cpu_replicas: replicas of one core, if the model runs there.
        front_ends: front ends of all replicas together, without those of the replica more.
        replicas: replicas with a GPU each.
        sent_mbit_per_s, received_mbit_per_s: network of all replicas together, to the servers and back.
        bound: the part that decides the number of replicas.
    """

    texts_per_s: int
    cpu_replicas: int
    front_ends: int
    replicas: int
    sent_mbit_per_s: float
    received_mbit_per_s: float
    bound: str


def row(texts_per_s: int, card_texts_per_s: float = math.inf) -> Row:
    """Return what a rate needs of replicas with a card of this rate each.

    Args:
        texts_per_s: rate of calls with one text each.
        card_texts_per_s: rate of a card; infinite to leave the cards out.
    """
    front_ends = texts_per_s * FRONT_END_CALL_S / SHARE
    needed = {
        "cards": texts_per_s / (SHARE * card_texts_per_s),
        "front ends": math.ceil(front_ends) / FRONT_ENDS_PER_REPLICA,
        "engine": texts_per_s * ENGINE_SEQUENCE_S / SHARE,
    }
    bound = max(needed, key=needed.__getitem__)
    return Row(
        texts_per_s,
        math.ceil(texts_per_s / (SHARE * CPU_REPLICA_TEXTS_PER_S)) + 1,
        math.ceil(front_ends),
        math.ceil(needed[bound]) + 1,
        texts_per_s * SENT_BYTES * 8e-6,
        texts_per_s * RECEIVED_BYTES * 8e-6,
        bound if needed[bound] > 1 else "a spare replica",
    )


def table(card_texts_per_s: float = math.inf) -> str:
    """Return the table in Markdown."""
    lines = [
        "| texts/s | replicas of one core, on the CPU | front ends | replicas with a GPU | network, Mbit/s | bound |",
        "|---|---|---|---|---|---|",
    ]
    for texts_per_s in TEXTS_PER_S:
        found = row(texts_per_s, card_texts_per_s)
        network = f"{found.sent_mbit_per_s:,.1f} in, {found.received_mbit_per_s:,.1f} out"
        numbers = f"{texts_per_s:,} | {found.cpu_replicas:,} | {found.front_ends:,} | {found.replicas:,}"
        lines.append(f"| {numbers} | {network} | {found.bound} |")
    return "\n".join(lines)


class _Relay:
    """Passes one connection on to a server, and counts the bytes in both directions."""

    def __init__(self, listener: socket.socket, address: tuple[str, int]) -> None:
        self.sent = self.received = 0
        self._listener, self._address = listener, address

    def run(self) -> None:
        with suppress(OSError):
            while True:
                caller, _ = self._listener.accept()
                server = socket.create_connection(self._address)
                for source, sink in ((caller, server), (server, caller)):
                    threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        to_server = sink.getpeername() == self._address
        with suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
                if to_server:
                    self.sent += len(data)
                else:
                    self.received += len(data)


@contextmanager
def _counting(address: str) -> Iterator[tuple[str, _Relay]]:
    host, _, port = address.partition(":")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        relay = _Relay(listener, (host, int(port)))
        threading.Thread(target=relay.run, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}", relay
        listener.shutdown(socket.SHUT_RDWR)


def wire_bytes() -> tuple[int, float, float]:
    """Return the tokens of a call, and its bytes to the server and back, on a connection that has had a call before."""
    with ExitStack() as stack:
        server = stack.enter_context(running_server(bundle(), ["--provider", "cpu"]))
        address, relay = stack.enter_context(_counting(server.address))
        client = stack.enter_context(Client(address))
        (tokens,) = client.encode([_TEXT]).lengths
        sent, received = relay.sent, relay.received
        for _ in range(_WIRE_CALLS):
            client.encode([_TEXT])
        return int(tokens), (relay.sent - sent) / _WIRE_CALLS, (relay.received - received) / _WIRE_CALLS


def main() -> None:
    """Print the table, or measure a call."""
    parser = argparse.ArgumentParser(prog="python -m bench.studies.sizing", description=__doc__)
    parser.add_argument("--card", type=float, default=math.inf, metavar="TEXTS_PER_S", help="rate of your GPU")
    parser.add_argument("--wire", action="store_true", help="measure the bytes of a call instead")
    arguments = parser.parse_args()
    if arguments.wire:
        tokens, sent, received = wire_bytes()
        print(f"a call with a text of {tokens} tokens: {sent:.0f} bytes to the server, {received:.0f} bytes back")
    else:
        print(table(arguments.card))


if __name__ == "__main__":
    main()
