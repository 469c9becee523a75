"""The files of tokens and of TLS: what they may hold, and when a change of a file counts."""

import errno
import logging
import ssl
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from headwaiter_server.settings.credentials import CredentialFiles, Credentials, Tokens
from headwaiter_server.settings.flags import Settings, SettingsError
from headwaiter_server.settings.tenants import UNNAMED, Tenant


def tokens(file: Path, content: bytes) -> Tokens:
    file.write_bytes(content)
    read = CredentialFiles(Settings(bundle=Path("b"), token_file=file)).current.tokens
    assert read is not None
    return read


@pytest.mark.parametrize(
    ("content", "callers"),
    [
        (b"s3cret", {"s3cret": UNNAMED}),
        (b"\n s3cret\r\n\n", {"s3cret": UNNAMED}),
        (b"with:colon", {"with:colon": UNNAMED}),
        (b"search: s3cret\n", {"s3cret": Tenant("search")}),
        (b"search: new\nsearch:  old\n\nteam-2@example.org: other:one", {
            "new": Tenant("search"), "old": Tenant("search"), "other:one": Tenant("team-2@example.org"),
        }),
        (b"a: 1 share=3\na: 2 share=3\nb: 3  queue_tokens=1e6\ttokens_per_s=2.5", {
            "1": Tenant("a", 3), "2": Tenant("a", 3), "3": Tenant("b", tokens_per_s=2.5, queue_tokens=1e6),
        }),
    ],
)  # fmt: skip
def test_a_file_holds_one_token_or_a_name_and_a_token_on_each_line(
    content: bytes, callers: dict[str, Tenant], tmp_path: Path
) -> None:
    read = tokens(tmp_path / "tokens", content)
    for scheme in ("Bearer", "bearer", "BEARER"):
        assert {token: read.tenant(f"{scheme} {token}") for token in callers} == callers
    for wrong in ("", "Bearer ", "s3cret", "Bearer s3cret ", "Bearer search", "Basic s3cret", "Bearer grüße", "None"):
        assert read.tenant(wrong) is None


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\n", "empty"),
        (b"s3cret\xff\xfe", "UTF-8"),
        (b"s3cret zwei", "line 1, .*ASCII"),
        ("s3crét".encode(), "line 1, .*ASCII"),
        (b"search: s3cret\ns3cret-2", "line 2, .*a name, a colon"),
        (b"a: 1 share=0", "line 1, .*'share=0'"),
        (b"a: 1 share=inf", "line 1, .*'share=inf'"),
        (b"a: 1 share=1 share=1", "line 1, .*'share=1'"),
        (b"a: 1 share=1e-300", "line 1, .*'share=1e-300'.*0.01 to 100"),
        (b"a: 1 tokens_per_s=0.5", "line 1, .*'tokens_per_s=0.5'.*from 1 to"),
        (b"a: 1 queue_tokens=nan", "line 1, .*'queue_tokens=nan'"),
        (b"a: 1 weight=2", "line 1, .*'weight=2'.*share .*tokens_per_s .*queue_tokens"),
        (b"a: 1 two words", "line 1, .*'two'"),
        (b"a: 1 share=2\nb: 2\na: 3", "line 3, .*an earlier line of a"),
        (b"search: s3cret\n\nbilling:s3cret-2", "line 3, .*a name, a colon"),
        (b"two words: s3cret", "line 1, .*a name, a colon"),
        (b"search: s3cret\nbilling: s3cret", "line 2, .*earlier line"),
    ],
)
def test_the_error_of_a_token_file_names_file_and_line_and_never_the_token(
    content: bytes, words: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match=f"--token-file {tmp_path}/tokens.*{words}") as error:
        tokens(tmp_path / "tokens", content)
    assert "s3cr" not in str(error.value)


def test_tokens_for_models_are_those_of_most_calls_unless_there_is_a_file_for_them(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("s3cret")
    (tmp_path / "admin").write_text("ops: 4dmin")
    settings = Settings(models=tmp_path, token_file=tmp_path / "tokens")
    read = CredentialFiles(settings).current
    assert read.admin_tokens == read.tokens == Tokens.of((UNNAMED, "s3cret"))
    read = CredentialFiles(Settings(models=tmp_path, model_control="on", admin_token_file=tmp_path / "admin")).current
    assert (read.tokens, read.admin_tokens) == (None, Tokens.of((Tenant("ops"), "4dmin")))
    assert CredentialFiles(Settings(bundle=tmp_path)).current == Credentials()


def test_changed_tokens_for_models_are_read_again(tmp_path: Path) -> None:
    (tmp_path / "admin").write_text("ops: 4dmin")
    files = CredentialFiles(Settings(models=tmp_path, model_control="on", admin_token_file=tmp_path / "admin"))
    (tmp_path / "admin").write_text("night: n3w-token")
    assert files.refresh(at_once=True)
    assert files.current.admin_tokens == Tokens.of((Tenant("night"), "n3w-token"))


def test_secrets_are_not_in_the_representation_of_credentials(folder: Path) -> None:
    (folder / "tokens").write_text("search: s3cret")
    settings = Settings(bundle=folder, token_file=folder / "tokens", **tls(folder, "cert.pem", "key.pem"))
    shown = repr(CredentialFiles(settings).current)
    assert "s3cret" not in shown
    assert "PRIVATE KEY" not in shown


class Changing:
    """A token file that a test changes, and what a server uses."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "tokens"
        self.write("old: 1")
        self.files = CredentialFiles(Settings(bundle=folder, token_file=self.file))

    def write(self, content: str) -> None:
        self.file.write_text(content)
        # The clock of a file system ticks every few milliseconds.
        time.sleep(0.02)

    @property
    def names(self) -> list[str]:
        assert self.files.current.tokens is not None
        return self.files.current.tokens.names


@pytest.fixture
def changing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Changing:
    caplog.set_level(logging.INFO)
    return Changing(tmp_path)


def test_a_changed_file_is_read_once_it_stays_the_same_between_two_looks(changing: Changing) -> None:
    assert not changing.files.refresh(at_once=False)
    changing.write("new: 2")
    assert not changing.files.refresh(at_once=False)
    changing.write("newer: 3")
    assert not changing.files.refresh(at_once=False)
    assert changing.names == ["old"]
    assert changing.files.refresh(at_once=False)
    assert changing.names == ["newer"]
    assert not changing.files.refresh(at_once=False)


@pytest.mark.parametrize("content", ["", "two words", None])
def test_a_file_that_cannot_be_used_is_logged_once_and_the_tokens_before_stay(
    content: str | None, changing: Changing, caplog: pytest.LogCaptureFixture
) -> None:
    if content is None:
        changing.file.unlink()
    else:
        changing.write(content)
    for _ in range(5):
        assert not changing.files.refresh(at_once=False)
    (record,) = caplog.records
    assert (record.levelno, str(changing.file) in record.getMessage()) == (logging.ERROR, True)
    assert changing.names == ["old"]
    changing.write("new: 2")
    assert [changing.files.refresh(at_once=False) for _ in range(2)] == [False, True]
    assert changing.names == ["new"]


def test_a_file_that_could_not_be_read_for_a_while_is_read_later(changing: Changing) -> None:
    with patch.object(Path, "read_text", side_effect=OSError(errno.EMFILE, "too many open files")):
        changing.write("new: 2")
        assert [changing.files.refresh(at_once=False) for _ in range(3)] == [False] * 3
    assert changing.files.refresh(at_once=False)
    assert changing.names == ["new"]


def test_a_bad_file_does_not_hold_up_the_change_of_another(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "tokens").write_text("old: 1")
    (folder / "chain.pem").write_bytes((folder / "cert.pem").read_bytes())
    settings = Settings(bundle=folder, token_file=folder / "tokens", **tls(folder, "chain.pem", "key.pem"))
    files = CredentialFiles(settings)
    before = files.current.tls
    (folder / "chain.pem").write_text("junk")
    (folder / "tokens").write_text("new: 2")
    assert files.refresh(at_once=True)
    assert files.current == Credentials(Tokens.of((Tenant("new"), "2")), Tokens.of((Tenant("new"), "2")), before)
    (error,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert f"--tls-cert {folder}/chain.pem" in error


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a certificate, its key, another key, an encrypted key, their authority, and junk."""
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    pair, other = authority.issue_cert("localhost"), authority.issue_cert("localhost")
    pair.cert_chain_pems[0].write_to_path(folder / "cert.pem")
    pair.private_key_pem.write_to_path(folder / "key.pem")
    other.private_key_pem.write_to_path(folder / "other.pem")
    key = load_pem_private_key(pair.private_key_pem.bytes(), None)
    locked = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"sesame"))
    (folder / "locked.pem").write_bytes(locked)
    (folder / "junk.pem").write_text("junk")
    return folder


def tls(folder: Path, cert: str, key: str, client_ca: str | None = None) -> dict[str, Any]:
    return {
        "tls_cert": folder / cert,
        "tls_key": folder / key,
        "tls_client_ca": folder / client_ca if client_ca else None,
    }


@pytest.mark.parametrize("client_ca", [None, "ca.pem"])
def test_a_certificate_with_its_key_is_accepted_with_and_without_an_authority(
    folder: Path, client_ca: str | None
) -> None:
    read = CredentialFiles(Settings(bundle=folder, **tls(folder, "cert.pem", "key.pem", client_ca))).current.tls
    assert read is not None
    assert read.context().verify_mode is (ssl.CERT_REQUIRED if client_ca else ssl.CERT_NONE)


@pytest.mark.parametrize(
    ("cert", "key", "client_ca", "named"),
    [
        ("junk.pem", "key.pem", None, ("--tls-cert {0}/junk.pem", "--tls-key {0}/key.pem")),
        ("cert.pem", "junk.pem", None, ("--tls-cert {0}/cert.pem", "--tls-key {0}/junk.pem")),
        ("cert.pem", "other.pem", None, ("--tls-cert {0}/cert.pem", "--tls-key {0}/other.pem", "KEY_VALUES_MISMATCH")),
        # The server must not ask for the password at start-up.
        ("cert.pem", "locked.pem", None, ("--tls-cert {0}/cert.pem", "--tls-key {0}/locked.pem")),
        ("cert.pem", "key.pem", "junk.pem", ("--tls-client-ca {0}/junk.pem",)),
    ],
)
def test_an_error_names_the_flag_and_the_file(
    folder: Path, cert: str, key: str, client_ca: str | None, named: tuple[str, ...]
) -> None:
    with pytest.raises(SettingsError) as error:
        CredentialFiles(Settings(bundle=folder, **tls(folder, cert, key, client_ca)))
    for phrase in named:
        assert phrase.format(folder) in str(error.value)
