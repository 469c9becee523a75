"""When a chain of certificates expires."""

from datetime import UTC, datetime
from typing import NoReturn

import pytest
import trustme
from cryptography import x509

from headwaiter_server.rpc.tls import certificate_expiry_unix_s


def test_a_chain_expires_with_its_first_certificate_to_expire() -> None:
    soon = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
    authority = trustme.CA()
    leaf = authority.issue_cert("localhost", not_after=soon).cert_chain_pems[0].bytes()
    root = authority.cert_pem.bytes()
    assert x509.load_pem_x509_certificate(root).not_valid_after_utc > soon
    for chain in ([leaf, root], [root, leaf]):
        assert certificate_expiry_unix_s(b"".join(chain)) == soon.timestamp()


def test_a_chain_that_cannot_be_read_has_no_expiry(monkeypatch: pytest.MonkeyPatch) -> None:
    assert certificate_expiry_unix_s(b"junk") is None

    def refuse(_: bytes) -> NoReturn:
        raise x509.InvalidVersion("5 is not a version", 5)

    monkeypatch.setattr(x509, "load_pem_x509_certificates", refuse)
    assert certificate_expiry_unix_s(b"a certificate that OpenSSL reads") is None
