"""TLS, client certificates and tokens, with certificates made for the test."""

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from headwaiter_client import Client, RetryPolicy, TlsConfig, Unavailable
from headwaiter_client.transport.tls_mismatch import tls_mismatch
from tests.support.client.both_clients import open_client
from tests.support.client.fake_server import Call, FakeServer
from tests.support.client.replica_process import free_ports

TlsServer = Callable[..., FakeServer]
# A message of gRPC.
REFUSED = "failed to connect to all addresses; last error: UNKNOWN: ipv6:%5B::1%5D: Connection refused"


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def ca(authority: trustme.CA, tmp_path: Path) -> Path:
    file = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(file)
    return file


@pytest.fixture
def tls_server(authority: trustme.CA, starts_processes: None) -> Iterator[TlsServer]:
    started = []

    def start(*, require_client_cert: bool) -> FakeServer:
        issued = authority.issue_cert("127.0.0.1")
        pair = (issued.private_key_pem.bytes(), issued.cert_chain_pems[0].bytes())
        roots = authority.cert_pem.bytes() if require_client_cert else None
        started.append(FakeServer(grpc.ssl_server_credentials([pair], roots, require_client_cert)))
        return started[-1]

    yield start
    for server in started:
        server.stop()


def test_a_token_is_sent_over_tls(call: Call, tls_server: TlsServer, ca: Path) -> None:
    server = tls_server(require_client_cert=False)
    assert call(server, "is_serving", connect={"tls": TlsConfig(ca=ca), "token": "s3cret"})
    assert server.metadata["authorization"] == "Bearer s3cret"


def test_each_replica_may_have_its_own_certificate(call: Call, tls_server: TlsServer, ca: Path) -> None:
    addresses = [tls_server(require_client_cert=False).address for _ in range(2)]
    for _ in range(2):
        assert call(SimpleNamespace(address=addresses), "encode", ["a"], connect={"tls": TlsConfig(ca=ca)})


def test_the_client_sends_its_certificate_to_a_server_that_requires_one(
    call: Call, tls_server: TlsServer, ca: Path, authority: trustme.CA, tmp_path: Path
) -> None:
    issued = authority.issue_cert("client@example.org")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "client.pem")
    issued.private_key_pem.write_to_path(tmp_path / "client.key")
    server = tls_server(require_client_cert=True)

    mutual = TlsConfig(ca=ca, cert=tmp_path / "client.pem", key=str(tmp_path / "client.key"))
    assert call(server, "encode", ["a"], connect={"tls": mutual}).pooled.shape == (1, 3)
    with pytest.raises(Unavailable):
        call(server, "encode", ["a"], connect={"tls": TlsConfig(ca=ca)})


def test_an_untrusted_certificate_is_named_as_the_cause(call: Call, tls_server: TlsServer) -> None:
    with pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"):
        call(tls_server(require_client_cert=False), "encode", ["a"], connect={"tls": TlsConfig()})


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
@pytest.mark.parametrize("in_a_list", [False, True])
def test_a_server_with_tls_and_a_client_without_are_reported(
    call: Call, tls_server: TlsServer, host: str, in_a_list: bool
) -> None:
    address = tls_server(require_client_cert=False).address.replace("127.0.0.1", host)
    with pytest.raises(Unavailable, match=f"{host}:[0-9]+ speaks TLS, and this client does not") as mismatch:
        call(SimpleNamespace(address=[address] if in_a_list else address), "encode", ["a"])
    assert isinstance(mismatch.value.__cause__, grpc.RpcError)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_client_with_tls_and_a_server_without_are_reported(
    call: Call, server: FakeServer, ca: Path, host: str
) -> None:
    address = server.address.replace("127.0.0.1", host)
    with pytest.raises(Unavailable, match=f"{host}:[0-9]+ does not speak TLS"):
        call(SimpleNamespace(address=address), "encode", ["a"], connect={"tls": TlsConfig(ca=ca)})


@pytest.mark.parametrize("address", ["unix:/no/such/socket", "localhost:1", "dns:///localhost:1"])
@pytest.mark.parametrize("has_tls", [False, True])
def test_no_mismatch_is_reported_if_no_server_listens(address: str, has_tls: bool) -> None:
    assert tls_mismatch(address, REFUSED, has_tls=has_tls, left_s=60) is None


def test_no_mismatch_is_reported_if_both_sides_agree(server: FakeServer, tls_server: TlsServer) -> None:
    with_tls = tls_server(require_client_cert=False)
    for address, has_tls in ((server.address, False), (with_tls.address, True)):
        assert tls_mismatch(address, REFUSED, has_tls=has_tls, left_s=60) is None
        assert tls_mismatch(address, REFUSED, has_tls=not has_tls, left_s=60) is not None
        # A proxy has answered, so the client could connect.
        assert tls_mismatch(address, "HTTP status code 503", has_tls=not has_tls, left_s=60) is None


@pytest.mark.usefixtures("starts_processes")
async def test_a_mismatch_is_reported_to_a_client_that_has_called_before_the_server_started(client_class: Any) -> None:
    (port,) = free_ports(1)
    retry = RetryPolicy(max_attempts=1)
    async with open_client(client_class, f"127.0.0.1:{port}", tls=TlsConfig(), retry=retry) as client:
        with pytest.raises(Unavailable, match="refused"):
            await client.encode_tokens([[1]])
        server = grpc.server(ThreadPoolExecutor(1))
        server.add_insecure_port(f"127.0.0.1:{port}")
        server.start()
        messages: list[str] = []
        until_s = time.monotonic() + 20
        while time.monotonic() < until_s and not any("does not speak TLS" in message for message in messages):
            with pytest.raises(Unavailable) as refused:
                await client.encode_tokens([[1]])
            messages.append(str(refused.value))
            await asyncio.sleep(0.1)
        server.stop(None)
    assert "does not speak TLS" in messages[-1]


@pytest.mark.usefixtures("starts_processes")
@pytest.mark.parametrize(("left_s", "longest_s"), [(60, 1.5), (0.2, 0.7), (0, 0.1)])
def test_the_check_of_a_silent_address_ends_within_a_second_and_at_the_deadline(
    left_s: float, longest_s: float
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        started_s = time.monotonic()
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert tls_mismatch(address, REFUSED, has_tls=False, left_s=left_s) is None
        assert time.monotonic() - started_s < longest_s


@pytest.mark.parametrize("half", [{"cert": "client.pem"}, {"key": "client.key"}])
def test_a_certificate_without_a_key_and_a_key_without_a_certificate_are_refused(half: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=next(iter(half))):
        TlsConfig(**half)


@pytest.mark.parametrize("name", ["ca", "cert", "key"])
def test_the_content_of_a_file_instead_of_its_path_is_refused_and_not_shown(name: str) -> None:
    with pytest.raises(TypeError, match=f"^{name} .*bytes") as refused:
        TlsConfig(**{name: b"s3cret"})  # type: ignore[arg-type]
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    ("files", "bad", "shown"),
    [
        ({"ca": "text"}, "ca", ["text", "CERTIFICATE"]),
        ({"cert": "key", "key": "cert"}, "cert", ["key", "CERTIFICATE"]),
        ({"cert": "cert", "key": "cert"}, "key", ["cert", "PRIVATE KEY"]),
        ({"cert": "cert", "key": "other"}, "key", ["other", "cert"]),
        ({"cert": "cert", "key": "rsa"}, "key", ["rsa", "cert"]),
        ({"cert": "cert", "key": "encrypted"}, "key", ["encrypted"]),
    ],
)
def test_a_file_with_the_wrong_content_is_named(
    authority: trustme.CA, tmp_path: Path, files: dict[str, str], bad: str, shown: list[str]
) -> None:
    (tmp_path / "text").write_text("not PEM")
    issued = authority.issue_cert("client@example.org")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "cert")
    issued.private_key_pem.write_to_path(tmp_path / "key")
    for name, kind in (("other", trustme.KeyType.ECDSA), ("rsa", trustme.KeyType.RSA)):
        another = authority.issue_cert("another@example.org", key_type=kind)
        another.private_key_pem.write_to_path(tmp_path / name)
    key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    (tmp_path / "encrypted").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"s3cret"),
        )
    )
    with pytest.raises(ValueError, match=f"^{bad}: {tmp_path / files[bad]} ") as refused:
        Client("localhost:1", tls=TlsConfig(**{name: tmp_path / file for name, file in files.items()}))
    assert all(fact in str(refused.value) for fact in shown)


def test_a_short_key_that_openssl_refuses_is_accepted(tmp_path: Path) -> None:
    key = rsa.generate_private_key(65537, 1024)
    name, now = x509.Name([]), datetime.now(UTC)
    unsigned = x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(days=1))
    cert = unsigned.sign(key, hashes.SHA256())
    (tmp_path / "cert").write_bytes(cert.public_bytes(serialization.Encoding.PEM))
    (tmp_path / "key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    Client("localhost:1", tls=TlsConfig(cert=tmp_path / "cert", key=tmp_path / "key")).close()


def test_a_missing_file_is_named(call: Call, server: FakeServer, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.pem"):
        call(server, "encode", ["a"], connect={"tls": TlsConfig(ca=tmp_path / "nowhere.pem")})
