"""The status of a request over HTTP, also if the status is an error."""

import ssl
from urllib.error import HTTPError
from urllib.request import Request, urlopen


def http_status(request: str | Request, context: ssl.SSLContext | None = None) -> int:
    """Send a request, or get a URL, and return the status of the reply."""
    try:
        with urlopen(request, timeout=20, context=context) as reply:
            return int(reply.status)
    except HTTPError as error:
        with error:
            return error.code
