"""Certificates and keys are checked before the server listens, and errors name the file."""

from datetime import UTC, datetime
from pathlib import Path

import grpc
import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from headwaiter_server.rpc.tls import certificate_expiry_unix_s, credentials
from headwaiter_server.settings.flags import Settings, SettingsError


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


def _settings(folder: Path, cert: str, key: str, client_ca: str | None = None) -> Settings:
    return Settings(
        bundle=folder,
        tls_cert=folder / cert,
        tls_key=folder / key,
        tls_client_ca=folder / client_ca if client_ca else None,
    )


def test_without_a_certificate_there_is_no_tls(tmp_path: Path) -> None:
    assert credentials(Settings(bundle=tmp_path)) is None


@pytest.mark.parametrize("client_ca", [None, "ca.pem"])
def test_a_certificate_with_its_key_is_accepted_with_and_without_an_authority(
    folder: Path, client_ca: str | None
) -> None:
    assert isinstance(credentials(_settings(folder, "cert.pem", "key.pem", client_ca)), grpc.ServerCredentials)


@pytest.mark.parametrize(
    ("cert", "key", "client_ca", "named"),
    [
        ("junk.pem", "key.pem", None, ("--tls-cert {0}/junk.pem", "--tls-key {0}/key.pem")),
        ("cert.pem", "junk.pem", None, ("--tls-cert {0}/cert.pem", "--tls-key {0}/junk.pem")),
        ("cert.pem", "other.pem", None, ("--tls-cert {0}/cert.pem", "--tls-key {0}/other.pem")),
        # The server must not ask for the password at start-up.
        ("cert.pem", "locked.pem", None, ("--tls-cert {0}/cert.pem", "--tls-key {0}/locked.pem")),
        ("cert.pem", "key.pem", "junk.pem", ("--tls-client-ca {0}/junk.pem",)),
    ],
)
def test_an_error_names_the_flag_and_the_file(
    folder: Path, cert: str, key: str, client_ca: str | None, named: tuple[str, ...]
) -> None:
    with pytest.raises(SettingsError) as error:
        credentials(_settings(folder, cert, key, client_ca))
    for phrase in named:
        assert phrase.format(folder) in str(error.value)


def test_a_chain_expires_with_its_first_certificate_to_expire(folder: Path) -> None:
    soon = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
    leaf = trustme.CA().issue_cert("localhost", not_after=soon).cert_chain_pems[0].bytes()
    later = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes()).not_valid_after_utc
    assert later > soon
    for chain in ([leaf, (folder / "ca.pem").read_bytes()], [(folder / "ca.pem").read_bytes(), leaf]):
        assert certificate_expiry_unix_s(b"".join(chain)) == soon.timestamp()


def test_a_chain_that_cannot_be_read_has_no_expiry() -> None:
    assert certificate_expiry_unix_s(b"junk") is None
