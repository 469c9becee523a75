"""Tokens, certificates and authorities of clients are replaced while callers call, and no call fails."""

import http.client
import json
import os
import random
import re
import signal
import ssl
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
import trustme

from headwaiter_client import Client, RetryPolicy, TlsConfig, Unauthenticated, Unavailable
from testbed.minilm import command_path
from testbed.server_process import free_port
from tests.support.tiers import exhaustive

ONCE = RetryPolicy(max_attempts=1)


@dataclass
class Secret:
    """A folder as Kubernetes mounts a secret: links to files in a folder that is replaced by swapping one link.

    Generation n has the tokens n and n + 1, a certificate of its own, and the authorities "ours" and n.

    Attributes:
        usable: the tokens that callers use now.
    """

    folder: Path
    generation: int = 0
    usable: tuple[int, ...] = (0, 1)
    ours: trustme.CA = field(default_factory=trustme.CA)
    authorities: dict[int, trustme.CA] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ours.cert_pem.write_to_path(self.folder / "ca.pem")
        self.issue("client", self.ours)
        self.write(0)
        for name in ("tokens", "cert.pem", "key.pem", "clients.pem"):
            (self.folder / name).symlink_to(f"..data/{name}")

    def issue(self, name: str, authority: trustme.CA) -> None:
        issued = authority.issue_cert(f"{name}@example.org")
        issued.cert_chain_pems[0].write_to_path(self.folder / f"{name}.pem")
        issued.private_key_pem.write_to_path(self.folder / f"{name}.key")

    def write(self, generation: int) -> None:
        """Put the files of a generation in place of those of another one."""
        folder = self.folder / f"..{generation}"
        folder.mkdir()
        (folder / "tokens").write_text(f"search: t0ken-{generation}\nsearch: t0ken-{generation + 1}\n")
        issued = self.ours.issue_cert("localhost", "127.0.0.1")
        issued.cert_chain_pems[0].write_to_path(folder / "cert.pem")
        issued.private_key_pem.write_to_path(folder / "key.pem")
        authority = self.authorities[generation] = trustme.CA()
        self.issue(f"client-{generation}", authority)
        clients = f"# Ärzte\n{self.ours.cert_pem.bytes().decode()}\n{authority.cert_pem.bytes().decode()}"
        (folder / "clients.pem").write_text(clients)
        (self.folder / "..next").symlink_to(folder.name)
        (self.folder / "..next").rename(self.folder / "..data")
        self.generation = generation

    @property
    def flags(self) -> list[str]:
        named = {"token-file": "tokens", "tls-cert": "cert.pem", "tls-key": "key.pem", "tls-client-ca": "clients.pem"}
        return [part for name, file in named.items() for part in (f"--{name}", str(self.folder / file))]

    def tls(self, name: str = "client") -> TlsConfig:
        return TlsConfig(self.folder / "ca.pem", self.folder / f"{name}.pem", self.folder / f"{name}.key")


@dataclass
class Rotating:
    """A server whose secret rotates.

    Attributes:
        answers: the number of answers by kind of caller.
        failures: the errors of callers.
    """

    address: str
    http_port: int
    process: "subprocess.Popen[bytes]"
    log: Path
    secret: Secret
    answers: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)

    def client(self, token: int, name: str = "client") -> Client:
        return Client(self.address, tls=self.secret.tls(name), token=f"t0ken-{token}", retry=ONCE)

    def http_context(self) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.secret.folder / "ca.pem"))
        context.load_cert_chain(self.secret.folder / "client.pem", self.secret.folder / "client.key")
        return context

    def certificates(self) -> set[bytes | None]:
        """Return the certificates that new connections to both ports get; front ends are picked at random."""
        seen = set()
        for port in (int(self.address.rpartition(":")[2]), self.http_port) * 8:
            connection = http.client.HTTPSConnection("127.0.0.1", port, context=self.http_context(), timeout=10)
            connection.connect()
            seen.add(connection.sock.getpeercert(binary_form=True))
            connection.close()
        return seen

    def refuses(self, token: int) -> bool:
        """Return whether new connections to all front ends refuse a token."""
        for _ in range(8):
            with self.client(token) as client:
                try:
                    client.encode(["rain"])
                except Unauthenticated:
                    continue
                return False
        return True

    def accepts_certificate(self, name: str) -> bool:
        with self.client(self.secret.generation, name) as client:
            try:
                client.encode(["rain"])
            except Unavailable:
                return False
            return True

    def call_for_long(self) -> None:
        """Call over connections that stay."""
        clients: dict[int, Client] = {}
        while not self.stopped.is_set():
            token = random.choice(self.secret.usable)
            if token not in clients:
                clients[token] = self.client(token)
            self._count("a lasting connection", partial(clients[token].encode, ["rain"]))

    def call_anew(self) -> None:
        """Call over a new connection each time."""
        while not self.stopped.is_set():
            with self.client(random.choice(self.secret.usable)) as client:
                self._count("a new connection", partial(client.encode, ["rain"]))

    def call_over_http(self) -> None:
        """Call HTTP over a new connection each time."""
        context = self.http_context()
        while not self.stopped.is_set():
            connection = http.client.HTTPSConnection("127.0.0.1", self.http_port, context=context, timeout=10)
            self._count("HTTP", partial(self._post, connection))
            connection.close()

    def _post(self, connection: http.client.HTTPSConnection) -> None:
        headers = {"Authorization": f"Bearer t0ken-{random.choice(self.secret.usable)}"}
        connection.request("POST", "/v1/embeddings", json.dumps({"input": "rain"}), headers)
        reply = connection.getresponse()
        assert (reply.status, bool(reply.read())) == (200, True)

    def _count(self, kind: str, call: Callable[[], object]) -> None:
        try:
            call()
            self.answers[kind] += 1
        except Exception as error:  # noqa: BLE001 - the test reports all errors
            self.failures.append(f"{kind}: {error!r}")

    def rotate(self, *, hang_up: bool) -> None:
        """Replace all files while callers call, and wait until the old ones no longer count."""
        before, old = self.certificates(), self.secret.generation
        assert len(before) == 1
        # Callers have moved to the new token before the old one goes.
        self.secret.usable = (old + 1,)
        time.sleep(0.3)
        self.secret.write(old + 1)
        if hang_up:
            self.process.send_signal(signal.SIGHUP)
        end_s = time.monotonic() + 30
        while not self.refuses(old):
            assert time.monotonic() < end_s, self.log.read_text()
        self.secret.usable = (old + 1, old + 2)
        after = self.certificates()
        assert len(after) == 1
        assert after.isdisjoint(before)
        assert self.accepts_certificate(f"client-{old + 1}")
        assert not self.accepts_certificate(f"client-{old}")


@contextmanager
def rotating(bundle: Path, folder: Path, *flags: str) -> Iterator[Rotating]:
    """Start a server with a secret, and callers that call it until the block ends."""
    (folder / "secret").mkdir()
    secret, address, http_port = Secret(folder / "secret"), f"127.0.0.1:{free_port()}", free_port()
    arguments = ["--provider", "cpu", "--http-api", "on", "--address", address, "--metrics-port", "0"]
    arguments += ["--http-address", f"127.0.0.1:{http_port}"]
    command = [command_path("headwaiter-server"), str(bundle), *arguments, *secret.flags, *flags]
    log = folder / "log"
    with log.open("wb") as errors, subprocess.Popen(command, stderr=errors, process_group=0) as process:
        server = Rotating(address, http_port, process, log, secret)
        try:
            while "serving on port" not in log.read_text():
                assert process.poll() is None, log.read_text()
                time.sleep(0.05)
            with ThreadPoolExecutor(4) as threads:
                callers = (server.call_for_long, server.call_for_long, server.call_anew, server.call_over_http)
                calling = [threads.submit(call) for call in callers]
                try:
                    yield server
                finally:
                    server.stopped.set()
                for each in calling:
                    each.result()
        finally:
            process.terminate()
            process.wait(30)


# Front ends use new files by the code of one process.
@pytest.mark.parametrize("front_ends", [*exhaustive(0), 2])
def test_no_call_fails_while_tokens_certificates_and_authorities_rotate(
    front_ends: int, text_bundle: Path, tmp_path: Path
) -> None:
    with rotating(text_bundle, tmp_path, "--front-ends", str(front_ends)) as server:
        for hang_up in (False, True):
            server.rotate(hang_up=hang_up)
    assert server.failures == []
    assert len(server.answers) == 3
    assert server.process.returncode == 0
    text = server.log.read_text()
    assert len(re.findall(rf"INFO in use from now on: {tmp_path}/secret/tokens with the tokens of search", text)) == 2
    assert len(re.findall(rf"INFO in use from now on: {tmp_path}/secret/cert.pem, ", text)) == 2
    assert "ERROR" not in text
    assert "t0ken-" not in text


def survives_hang_ups(pid: int) -> bool:
    """Return whether a process ignores or handles SIGHUP, which the first lines of the server's program say."""
    masks = re.findall(r"^Sig(?:Ign|Cgt):\t(\w+)$", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    return any(int(mask, 16) & 1 << (signal.SIGHUP - 1) for mask in masks)


@pytest.mark.parametrize("front_ends", [*exhaustive(0), 2])
def test_hang_ups_of_all_processes_end_no_server_from_its_start_to_its_drain(
    front_ends: int, text_bundle: Path, tmp_path: Path
) -> None:
    log, address = tmp_path / "log", f"127.0.0.1:{free_port()}"
    command = [command_path("headwaiter-server"), str(text_bundle), "--provider", "cpu", "--address", address]
    command += ["--metrics-port", "0", "--front-ends", str(front_ends)]
    with log.open("wb") as errors, subprocess.Popen(command, stderr=errors, process_group=0) as server:
        end_s = time.monotonic() + 60
        while not survives_hang_ups(server.pid):
            assert time.monotonic() < end_s
        while "serving on port" not in log.read_text():
            os.killpg(server.pid, signal.SIGHUP)
            assert server.poll() is None, log.read_text()
            assert time.monotonic() < end_s
            time.sleep(0.01)
        with Client(address, retry=ONCE) as client:
            for _ in range(50):
                os.killpg(server.pid, signal.SIGHUP)
                client.encode(["rain"])
        server.terminate()
        os.killpg(server.pid, signal.SIGHUP)
        assert server.wait(30) == 0
    assert "has ended" not in log.read_text()
    assert "ERROR" not in log.read_text()
