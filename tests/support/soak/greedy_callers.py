"""Take as much from a server as a caller may, and leave, as a program.

The arguments are the addresses of gRPC and of HTTP, and the seconds of the attack. The rates are fixed, so that two
servers can be attacked alike.
"""

import itertools
import json
import socket
import sys
import time
from contextlib import suppress
from functools import partial
from typing import Any

import grpc

from headwaiter_proto import encoder_pb2 as pb
from tests.support.soak.attacked_server import GREEDY_TOKEN, run_together

_MIB = 1 << 20
# What is sent in a second: messages that arrive slowly, messages that are refused, scrapes, unread replies, and
# requests of many texts.
_SLOW_PER_S, _REFUSED_PER_S, _SCRAPES_PER_S, _UNREAD_PER_S, _LARGE_PER_S = 4, 2, 100, 1, 2
_MESSAGE_BYTES = 14 * _MIB
_CHECK, _ENCODE = "/grpc.health.v1.Health/Check", "/headwaiter.v1.Encoder/Encode"
_OPTIONS = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
# Each text has 27 tokens; a request may have 65,536.
_TEXT = "bread " * 25


def _paced(per_s: float, seconds: float, do: "partial[None]", first_s: float = 0.0) -> None:
    """Call a function at a rate, first after some seconds; leave out the calls for which it is too late."""
    started_s = time.monotonic() + first_s
    for number in itertools.count():
        due_s = started_s + number / per_s
        if due_s - started_s > seconds:
            return
        now_s = time.monotonic()
        if now_s <= due_s + 1 / per_s:
            time.sleep(max(0.0, due_s - now_s))
            with suppress(OSError, grpc.RpcError):
                do()


def _call(address: str, method: str, message: bytes, token: str = "") -> None:
    with grpc.insecure_channel(address, _OPTIONS) as channel:
        metadata = (("authorization", f"Bearer {token}"),) if token else ()
        send: Any = channel.stream_stream(method)
        list(send(iter([message]), timeout=20, metadata=metadata))


def _post(http_address: str, path: str, body: bytes, headers: str = "") -> socket.socket:
    host, _, port = http_address.rpartition(":")
    opened = socket.socket()
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    opened.settimeout(20)
    opened.connect((host, int(port)))
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    opened.sendall(head.encode() + body)
    return opened


def _refused(address: str, http_address: str, junk: bytes, turns: "itertools.count[int]") -> None:
    if next(turns) % 2:
        _call(address, _CHECK, junk)
    else:
        with _post(http_address, "/v2/models/other/infer", junk) as opened:
            opened.recv(1)


def _scrape_and_leave(http_address: str) -> None:
    host, _, port = http_address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=5) as opened:
        opened.send(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")


def _leave_unread(http_address: str, body: bytes, held: list[socket.socket]) -> None:
    token = f"Authorization: Bearer {GREEDY_TOKEN}\r\nConnection: close\r\n"
    held.append(_post(http_address, "/embed_all", body, token))
    if len(held) > 40:
        held.pop(0).close()


def attack(grpc_address: str, http_address: str, seconds: float) -> None:
    """Run all attacks at once."""
    junk = b"\xff" * _MESSAGE_BYTES
    unread = json.dumps({"inputs": [_TEXT] * 300}).encode()
    # More tokens than a request may have: the server reads texts until the limit, and refuses the request.
    large = pb.EncodeRequest(texts=pb.Texts(values=[_TEXT] * 6000)).SerializeToString()
    check = partial(_call, grpc_address, _CHECK, junk)
    slow = [partial(_paced, _SLOW_PER_S / 4, seconds, check, number / _SLOW_PER_S) for number in range(4)]
    greedy = partial(_call, grpc_address, _ENCODE, large, GREEDY_TOKEN)
    held, turns = list[socket.socket](), itertools.count()
    run_together(
        *slow,
        partial(_paced, _REFUSED_PER_S, seconds, partial(_refused, grpc_address, http_address, junk, turns)),
        partial(_paced, _SCRAPES_PER_S, seconds, partial(_scrape_and_leave, http_address)),
        partial(_paced, _UNREAD_PER_S, seconds, partial(_leave_unread, http_address, unread, held)),
        *(partial(_paced, _LARGE_PER_S / 2, seconds, greedy) for _ in range(2)),
    )


if __name__ == "__main__":
    attack(sys.argv[1], sys.argv[2], float(sys.argv[3]))
