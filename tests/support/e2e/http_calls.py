"""Requests over HTTP."""

import json
import ssl
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen


def http_status(request: str | Request, context: ssl.SSLContext | None = None) -> int:
    """Send a request, or get a URL, and return the status of the reply, also if the status is an error."""
    try:
        with urlopen(request, timeout=20, context=context) as reply:
            return int(reply.status)
    except HTTPError as error:
        with error:
            return error.code


def post_json(url: str, fields: Any) -> Any:
    """Post fields as JSON, and return the content of the reply."""
    with urlopen(Request(url, json.dumps(fields).encode())) as reply:
        return json.load(reply)
