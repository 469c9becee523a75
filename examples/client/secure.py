"""Use mutual TLS, a bearer token and metadata. Prints the result with the token, and the error without the token.

Run: python examples/client/secure.py [host:port folder]

The folder contains `ca.pem`, `client.pem`, `client.key` and `token`. Start the server with the flags
`--tls-cert server.pem --tls-key server.key --tls-client-ca ca.pem --token-file token`.
"""

import sys
from pathlib import Path

from headwaiter_client import Client, TlsConfig, Unauthenticated

address, folder = sys.argv[1:] or ["localhost:50051", "."]
files = Path(folder)

# The client accepts only servers with a certificate of this authority, and sends its own certificate. `TlsConfig()`
# accepts certificates of the public authorities, and sends no certificate.
tls = TlsConfig(ca=files / "ca.pem", cert=files / "client.pem", key=files / "client.key")
token = (files / "token").read_text().strip()

# Metadata is for proxies between client and server, for example a proxy that counts calls per team.
with Client(address, tls=tls, token=token, metadata={"x-team": "search"}) as client:
    encoding = client.encode(["the bread is fresh"])
    print(f"with the token: encoded {encoding.lengths[0]} tokens with {encoding.model.name}")

with Client(address, tls=tls) as client:
    try:
        client.encode(["the bread is fresh"])
    except Unauthenticated as error:
        print(f"without the token: {error}")
