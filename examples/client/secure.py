"""TLS both ways, a bearer token and metadata: python examples/client/secure.py [host:port folder].

The folder holds `ca.pem`, `client.pem` with its `client.key`, and `token`, for a server with the flags `--tls-cert
server.pem --tls-key server.key --tls-client-ca ca.pem --token-file token`.
"""

import sys
from pathlib import Path

from headwaiter_client import Client, TlsConfig, Unauthenticated

address, folder = sys.argv[1:] or ["localhost:50051", "."]
files = Path(folder)

# The server has to have a certificate of this authority, and asks for one of the client's. `TlsConfig()` trusts the
# public authorities, and brings none.
tls = TlsConfig(ca=files / "ca.pem", cert=files / "client.pem", key=files / "client.key")
token = (files / "token").read_text().strip()

# Metadata is for what stands between, such as a proxy that counts by team.
with Client(address, tls=tls, token=token, metadata={"x-team": "search"}) as client:
    encoding = client.encode(["the bread is fresh"])
    print(f"with the token: {encoding.lengths[0]} tokens by {encoding.model.name}")

with Client(address, tls=tls) as client:
    try:
        client.encode(["the bread is fresh"])
    except Unauthenticated as error:
        print(f"without it: {error}")
