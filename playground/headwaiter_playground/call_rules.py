"""The rules of the page's calls and files, the same in the server and in `headwaiter-client playground`.

A web site in a visitor's browser must not make these calls. The browser asks for consent before it sends
`Content-Type: application/json` to another origin, and neither server consents. A site may instead have its own name
resolve to the address of the page (DNS rebinding), and so become the same origin: the header `Host` then holds that
name.
"""

import gzip
import re
from collections.abc import Mapping
from ipaddress import ip_address
from types import MappingProxyType

from headwaiter_proto.rules.errors import HeadwaiterError, InvalidInput

JSON = "application/json"
# A browser must not take a text inside a reply for HTML, and must not store the reply.
JSON_HEADERS: Mapping[str, str] = MappingProxyType({"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"})
MAX_BODY_BYTES = 256 << 10
# Replies from this size on are compressed: smaller ones take one packet either way. Weights are mostly random bits, of
# which a higher level changes little but its time.
_COMPRESSED_BYTES, _GZIP_LEVEL = 1 << 10, 1
# The weight of a coding that a caller refuses, in Accept-Encoding.
_REFUSED = re.compile(r"\s*q\s*=\s*0(\.0*)?\s*")
_HOST = re.compile(r"(\[(?P<address>[^]]+)\]|(?P<name>[^:]+))(:\d*)?")


class ForeignHost(InvalidInput):
    """The header Host holds a name that may be another web site's."""


class WrongMediaType(InvalidInput):
    """The header Content-Type does not say that the body is JSON."""


# The HTTP statuses of errors that gRPC does not have.
STATUSES: Mapping[type[HeadwaiterError], int] = MappingProxyType({ForeignHost: 403, WrongMediaType: 415})


def check_host(host: str, own_name: str, remedy: str) -> None:
    """Check that the header Host holds an IP address, localhost, or the name that the operator chose.

    Args:
        host: the header Host, with or without a port.
        own_name: the name that the operator chose.
        remedy: what the visitor or the operator can do.

    Raises:
        ForeignHost: the header holds another name.
    """
    match = _HOST.fullmatch(host.lower())
    name = match["address"] or match["name"] if match else ""
    if name not in ("localhost", own_name.lower()) and not is_ip_address(name):
        raise ForeignHost(f"the header Host {host[:100]!r} may be the name of another web site: {remedy}")


def takes_gzip(accept_encoding: str) -> bool:
    """Return whether a caller takes replies in gzip, given its header Accept-Encoding."""
    codings = [coding.partition(";") for coding in accept_encoding.lower().split(",")]
    return any(name.strip() == "gzip" and not _REFUSED.fullmatch(weight) for name, _, weight in codings)


def compressed(reply: bytes, accept_encoding: str) -> bytes | None:
    """Return a reply in gzip, or None if the reply is small, or if its caller takes no gzip."""
    if len(reply) < _COMPRESSED_BYTES or not takes_gzip(accept_encoding):
        return None
    return gzip.compress(reply, _GZIP_LEVEL)


def check_media_type(content_type: str) -> None:
    """Check that the header Content-Type says that the body is JSON.

    Raises:
        WrongMediaType: it says something else.
    """
    if content_type.partition(";")[0].strip().lower() != JSON:
        raise WrongMediaType(f"the header Content-Type is not {JSON}: send a body of JSON with this header")


def is_ip_address(name: str) -> bool:
    """Return whether a host is an IP address, and not a name."""
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
