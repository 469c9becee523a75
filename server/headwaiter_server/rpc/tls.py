"""Read the server's TLS credentials."""

import ssl

import grpc

from headwaiter_server.settings.flags import Settings, SettingsError


def credentials(settings: Settings) -> grpc.ServerCredentials | None:
    """Read the certificate, the key and the certificate authority of clients; return None without a certificate.

    Raises:
        SettingsError: a file cannot be used.
    """
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    # Check the files with Python, because gRPC would only report that it cannot listen.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password="")
    except OSError as error:
        raise SettingsError(
            f"--tls-cert {settings.tls_cert} with --tls-key {settings.tls_key} cannot be used ({error}): give a "
            "certificate and its unencrypted key, in PEM format"
        ) from None
    client_ca = None
    if settings.tls_client_ca is not None:
        try:
            context.load_verify_locations(settings.tls_client_ca)
        except OSError as error:
            raise SettingsError(
                f"--tls-client-ca {settings.tls_client_ca} cannot be used ({error}): give a certificate in PEM format"
            ) from None
        client_ca = settings.tls_client_ca.read_bytes()
    pair = settings.tls_key.read_bytes(), settings.tls_cert.read_bytes()
    return grpc.ssl_server_credentials([pair], client_ca, require_client_auth=client_ca is not None)


def certificate_expiry_unix_s(chain: bytes) -> float | None:
    """Return when the first certificate of a chain in PEM format expires, in seconds since 1970-01-01.

    None if the chain has a certificate that the package cryptography, which is stricter than OpenSSL, does not read.
    """
    # A server without TLS need not load the package, which takes 0.1 s.
    from cryptography.x509 import load_pem_x509_certificates

    try:
        certificates = load_pem_x509_certificates(chain)
    except ValueError:
        return None
    return min(certificate.not_valid_after_utc.timestamp() for certificate in certificates)
