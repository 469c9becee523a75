"""The server's TLS credentials."""

import ssl

import grpc

from headwaiter_server.config import Settings, SettingsError


def credentials(settings: Settings) -> grpc.ServerCredentials | None:
    """Read the certificate, its key and the clients' authority; return None if the settings name no certificate.

    Raises:
        SettingsError: a file cannot be used.
    """
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    # Python checks the files first, because gRPC would only report that it cannot listen.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key, password="")
    except OSError as error:
        raise SettingsError(
            f"--tls-cert {settings.tls_cert} with --tls-key {settings.tls_key} cannot be used: {error}"
        ) from None
    client_ca = None
    if settings.tls_client_ca is not None:
        try:
            context.load_verify_locations(settings.tls_client_ca)
        except OSError as error:
            raise SettingsError(f"--tls-client-ca {settings.tls_client_ca} cannot be used: {error}") from None
        client_ca = settings.tls_client_ca.read_bytes()
    pair = settings.tls_key.read_bytes(), settings.tls_cert.read_bytes()
    return grpc.ssl_server_credentials([pair], client_ca, require_client_auth=client_ca is not None)
