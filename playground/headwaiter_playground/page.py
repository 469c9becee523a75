"""The files of the page, and the headers with which every server of the page sends them."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

# The page of `http://HOST/playground/`.
_INDEX = "index.html"
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
# A browser with these rules runs no script inside the page's HTML, and connects to no other host.
_CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
PAGE_HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "Content-Security-Policy": _CONTENT_SECURITY_POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        # The files have no version in their names. After an upgrade of the server, the browser asks for them again.
        "Cache-Control": "no-cache",
    }
)


@dataclass(frozen=True)
class PageFile:
    """A file of the page: its bytes, and the value of its Content-Type header."""

    content: bytes
    media_type: str


# Read at import: what a caller sends is only looked up here, and never becomes part of a path.
_FILES = {
    file.name: PageFile(file.read_bytes(), _MEDIA_TYPES[file.suffix])
    for file in (Path(__file__).parent / "static").iterdir()
    if file.suffix in _MEDIA_TYPES
}


def page_file(name: str) -> PageFile | None:
    """Return the file of `/playground/NAME`, the page itself for the empty name, or None if there is no such file."""
    return _FILES.get(name or _INDEX)
