"""TLS, client certificates and tokens: who brings what the server asks for is served, and nobody else is."""

import asyncio
import re
import runpy
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
import trustme

from headwaiter_client import AsyncClient, HeadwaiterError, RetryPolicy, TlsConfig, Unauthenticated, Unavailable
from headwaiter_server.config import SettingsError
from tests.documents import ROOT
from tests.e2e.in_process_server import serving

TOKEN = "s3cret"

# Settings of the server, and what its clients bring, as names of files.
SERVER_TLS = {
    "plain": {},
    "tls": {"tls_cert": "server.pem", "tls_key": "server.key"},
    "mutual tls": {"tls_cert": "server.pem", "tls_key": "server.key", "tls_client_ca": "ca.pem"},
}
TRUSTING = {"ca": "ca.pem"}
SUSPICIOUS = {"ca": "stranger-ca.pem"}
CERTIFIED = {"ca": "ca.pem", "cert": "client.pem", "key": "client.key"}
STRANGER = {"ca": "ca.pem", "cert": "stranger.pem", "key": "stranger.key"}
CLIENT_TLS = {"plain": None, "tls": TRUSTING, "mutual tls": CERTIFIED}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of one authority for server and client, of another for a stranger, the token, and rubbish."""
    folder = tmp_path_factory.mktemp("files")
    ours, strangers = trustme.CA(), trustme.CA()
    ours.cert_pem.write_to_path(folder / "ca.pem")
    strangers.cert_pem.write_to_path(folder / "stranger-ca.pem")
    for owner, authority, identity in (
        ("server", ours, "127.0.0.1"),
        ("client", ours, "client@example.org"),
        ("stranger", strangers, "client@example.org"),
    ):
        issued = authority.issue_cert(identity)
        issued.cert_chain_pems[0].write_to_path(folder / f"{owner}.pem")
        issued.private_key_pem.write_to_path(folder / f"{owner}.key")
    (folder / "token").write_text(f"{TOKEN}\n")
    (folder / "rubbish").write_bytes(b"\xff\xfe")
    return folder


def client(files: Path, port: int, tls: dict[str, str] | None, token: str | None) -> AsyncClient:
    config = TlsConfig(**{name: files / file for name, file in tls.items()}) if tls else None
    return AsyncClient(f"127.0.0.1:{port}", tls=config, token=token, retry=RetryPolicy(max_attempts=1))


def server_settings(files: Path, tls: str, *, token: bool) -> dict[str, Any]:
    names = {**SERVER_TLS[tls], **({"token_file": "token"} if token else {})}
    return {setting: files / file for setting, file in names.items()}


@pytest.mark.parametrize("token", [False, True], ids=["no token", "token"])
@pytest.mark.parametrize("tls", SERVER_TLS)
async def test_who_brings_what_is_asked_for_is_served_and_health_needs_no_token(
    text_bundle: Path, files: Path, tls: str, token: bool
) -> None:
    async with serving(text_bundle, **server_settings(files, tls, token=token)) as server:
        async with client(files, server.port, CLIENT_TLS[tls], TOKEN if token else None) as caller:
            pooled = (await caller.encode(["bread", "rain"])).pooled
            assert pooled is not None
            assert pooled.shape == (2, 32)
        async with client(files, server.port, CLIENT_TLS[tls], None) as probe:
            assert await probe.is_serving()


async def test_who_brings_no_token_or_a_wrong_one_is_unauthenticated(text_bundle: Path, files: Path) -> None:
    async with serving(text_bundle, **server_settings(files, "mutual tls", token=True)) as server:
        for token in (None, "wrong", f"{TOKEN}x", TOKEN[:-1]):
            async with client(files, server.port, CERTIFIED, token) as caller:
                for call in (caller.encode(["bread"]), caller.model(), caller.models()):
                    with pytest.raises(Unauthenticated, match="authorization: Bearer TOKEN") as refused:
                        await call
                    assert code_of(refused.value) is grpc.StatusCode.UNAUTHENTICATED
        async with client(files, server.port, CERTIFIED, TOKEN) as caller:
            assert (await caller.encode(["bread"])).pooled is not None


async def test_the_example_brings_what_is_asked_for(
    text_bundle: Path, files: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with serving(text_bundle, **server_settings(files, "mutual tls", token=True)) as server:
        monkeypatch.setattr("sys.argv", ["secure.py", f"127.0.0.1:{server.port}", str(files)])
        await asyncio.to_thread(runpy.run_path, str(ROOT / "examples" / "client" / "secure.py"))
    assert re.fullmatch(
        "with the token: 6 tokens by tiny-text\nwithout it: .*authorization: Bearer TOKEN.*\n", capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("tls", "brings"),
    [("tls", None), ("tls", SUSPICIOUS), ("mutual tls", TRUSTING), ("mutual tls", STRANGER), ("plain", TRUSTING)],
    ids=["plain text to tls", "another ca", "no certificate", "a stranger's certificate", "tls to plain text"],
)
async def test_where_no_connection_can_be_trusted_the_server_is_unavailable(
    text_bundle: Path, files: Path, tls: str, brings: dict[str, str] | None
) -> None:
    async with serving(text_bundle, **server_settings(files, tls, token=False)) as server:
        async with client(files, server.port, brings, None) as caller:
            with pytest.raises(Unavailable) as refused:
                await caller.encode(["bread"])
            assert code_of(refused.value) is grpc.StatusCode.UNAVAILABLE
        async with client(files, server.port, CLIENT_TLS[tls], None) as caller:
            assert (await caller.encode(["bread"])).pooled is not None


@pytest.mark.parametrize(
    ("named", "changes"),
    [
        ("--tls-cert .* with --tls-key .* cannot be used", {"tls_cert": "rubbish"}),
        ("--tls-cert .* with --tls-key .* cannot be used: .*key values mismatch", {"tls_key": "client.key"}),
        ("--tls-client-ca .*rubbish cannot be used", {"tls_client_ca": "rubbish"}),
        ("--token-file .*rubbish cannot be read", {"token_file": "rubbish"}),
    ],
    ids=lambda value: " ".join(value.values()) if isinstance(value, dict) else "",
)
async def test_files_that_cannot_be_used_are_named_by_their_flags(
    text_bundle: Path, files: Path, named: str, changes: dict[str, str]
) -> None:
    usual = server_settings(files, "mutual tls", token=True)
    with pytest.raises(SettingsError, match=named):
        async with serving(text_bundle, **{**usual, **{name: files / file for name, file in changes.items()}}):
            pass


def code_of(error: HeadwaiterError) -> grpc.StatusCode:
    return cast("grpc.Call", error.__cause__).code()
