"""Check the bearer token of a request."""

import hmac


def carries_token(authorization: str, token: str) -> bool:
    """Return whether the value of an `authorization` header carries a bearer token."""
    # Compare in constant time; otherwise the token could be guessed byte by byte.
    return hmac.compare_digest(authorization.encode(), f"Bearer {token}".encode())
