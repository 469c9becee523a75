"""TLS, client certificates and tokens: the server answers callers with valid credentials, and refuses all others."""

import asyncio
import runpy
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

from headwaiter_client import AsyncClient, RetryPolicy, TlsConfig, Unauthenticated, Unavailable
from tests.support.documents import ROOT
from tests.support.e2e.grpc_errors import code_of
from tests.support.e2e.in_process_server import serving

TOKEN = "s3cret"

# Settings of the server, and credentials of its clients, as file names.
SERVER_TLS = {
    "plain": {},
    "tls": {"tls_cert": "server.pem", "tls_key": "server.key"},
    "mutual tls": {"tls_cert": "server.pem", "tls_key": "server.key", "tls_client_ca": "ca.pem"},
}
OUR_CA = {"ca": "ca.pem"}
OTHER_CA = {"ca": "other-ca.pem"}
OUR_CERTIFICATE = {"ca": "ca.pem", "cert": "client.pem", "key": "client.key"}
OTHER_CERTIFICATE = {"ca": "ca.pem", "cert": "other.pem", "key": "other.key"}
CLIENT_TLS = {"plain": None, "tls": OUR_CA, "mutual tls": OUR_CERTIFICATE}
FAILED_HANDSHAKES = {"plain": (OUR_CA,), "tls": (None, OTHER_CA), "mutual tls": (OUR_CA, OTHER_CERTIFICATE)}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of server and client, a certificate of another authority, and a token."""
    folder = tmp_path_factory.mktemp("files")
    ours, others = trustme.CA(), trustme.CA()
    ours.cert_pem.write_to_path(folder / "ca.pem")
    others.cert_pem.write_to_path(folder / "other-ca.pem")
    for owner, authority, identity in (
        ("server", ours, "127.0.0.1"),
        ("client", ours, "client@example.org"),
        ("other", others, "client@example.org"),
    ):
        issued = authority.issue_cert(identity)
        issued.cert_chain_pems[0].write_to_path(folder / f"{owner}.pem")
        issued.private_key_pem.write_to_path(folder / f"{owner}.key")
    (folder / "token").write_text(f"{TOKEN}\n")
    return folder


def client(files: Path, port: int, tls: dict[str, str] | None, token: str | None) -> AsyncClient:
    config = TlsConfig(**{name: files / file for name, file in tls.items()}) if tls else None
    return AsyncClient(f"127.0.0.1:{port}", tls=config, token=token, retry=RetryPolicy(max_attempts=1))


def server_settings(files: Path, tls: str) -> dict[str, Any]:
    return {setting: files / file for setting, file in {**SERVER_TLS[tls], "token_file": "token"}.items()}


@pytest.mark.parametrize("tls", SERVER_TLS)
async def test_only_callers_with_valid_credentials_are_answered_and_health_checks_need_no_token(
    text_bundle: Path, files: Path, tls: str
) -> None:
    async with serving(text_bundle, **server_settings(files, tls)) as server:
        for token in (None, "wrong", f"{TOKEN}x", TOKEN[:-1]):
            async with client(files, server.port, CLIENT_TLS[tls], token) as caller:
                assert await caller.is_serving()
                for call in (caller.encode(["bread"]), caller.model(), caller.models()):
                    with pytest.raises(Unauthenticated) as unauthenticated:
                        await call
                    assert code_of(unauthenticated.value) is grpc.StatusCode.UNAUTHENTICATED
                    assert "authorization" in str(unauthenticated.value)  # The header to send.
        for credentials in FAILED_HANDSHAKES[tls]:
            async with client(files, server.port, credentials, TOKEN) as caller:
                with pytest.raises(Unavailable) as unavailable:
                    await caller.encode(["bread"])
                assert code_of(unavailable.value) is grpc.StatusCode.UNAVAILABLE
        async with client(files, server.port, CLIENT_TLS[tls], TOKEN) as caller:
            pooled = (await caller.encode(["bread", "rain"])).pooled
            assert pooled.shape == (2, 32)


async def test_the_example_sends_valid_credentials(
    text_bundle: Path, files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with serving(text_bundle, **server_settings(files, "mutual tls")) as server:
        monkeypatch.setattr("sys.argv", ["secure.py", f"127.0.0.1:{server.port}", str(files)])
        await asyncio.to_thread(runpy.run_path, str(ROOT / "examples" / "client" / "secure.py"))
    accepted, refused = capsys.readouterr().out.splitlines()
    assert accepted == "with the token: encoded 6 tokens with tiny-text"
    assert refused.startswith("without the token: ")
    assert "authorization" in refused
