"""Give gRPC the server's certificate, and later certificates without a new port."""

from collections.abc import Callable
from typing import Any

import grpc

from headwaiter_server.settings.credentials import TlsFiles


def grpc_credentials(files: TlsFiles, latest: Callable[[], TlsFiles | None]) -> grpc.ServerCredentials:
    """Return the credentials of a server.

    Args:
        files: the files of the first connections.
        latest: returns the files of connections from now on; called in a thread of gRPC for each new connection.
    """
    used: TlsFiles | None = files

    def changed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal used
        wanted = latest()
        if wanted is None or wanted is used:
            return None
        used = wanted
        return _configuration(wanted)

    needs_client_certificate = files.client_ca is not None
    # The function may return None for no change; the types of grpc do not say so.
    fetch: Any = changed
    return grpc.dynamic_ssl_server_credentials(_configuration(files), fetch, needs_client_certificate)


def _configuration(files: TlsFiles) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(files.key, files.cert)], files.client_ca)


def certificate_expiry_unix_s(chain: bytes) -> float | None:
    """Return the earliest expiry of the certificates of a chain in PEM format, in seconds since 1970-01-01.

    None if the chain has a certificate that the package cryptography, which is stricter than OpenSSL, does not read.
    """
    # A server without TLS need not load the package, which takes 0.1 s.
    from cryptography.x509 import load_pem_x509_certificates

    try:
        return min(each.not_valid_after_utc.timestamp() for each in load_pem_x509_certificates(chain))
    except Exception:  # noqa: BLE001 - the package has errors of several classes, and a metric must not stop a server
        return None
