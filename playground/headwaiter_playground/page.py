"""The files of the page, and the headers with which every server of the page sends them."""

import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from headwaiter_playground.call_rules import takes_gzip
from headwaiter_playground.joined_modules import joined_modules

# The page of `http://HOST/playground/`.
_INDEX = "index.html"
# The module and the style that the page loads at first, and the style that comes with the tabs besides Attention.
_ENTRY, _STYLE, _LATE_STYLE = "main.js", "style.css", "other_tabs.css"
_MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}
# A server that asks for tokens shows the form at once: it would refuse, and log, a call without a token.
_SIGN_IN = b'<form id="sign-in" class="card notice"'
# A browser with these rules runs no script inside the page's HTML, and connects to no other host. Scripts and styles
# obey the rules of the document that loads them.
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
FILE_HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        # The files have no version in their names. After an upgrade of the server, the browser asks for them again.
        "Cache-Control": "no-cache",
    }
)
PAGE_HEADERS: Mapping[str, str] = MappingProxyType(
    {**FILE_HEADERS, "Content-Security-Policy": _CONTENT_SECURITY_POLICY}
)


@dataclass(frozen=True)
class PageFile:
    """A file of the page, and its headers; without content if the browser has the file."""

    content: bytes
    headers: Mapping[str, str]

    @property
    def status(self) -> int:
        """The HTTP status."""
        return 200 if self.content else 304


def page_file(
    name: str, accept_encoding: str = "", if_none_match: str = "", *, asks_for_token: bool = False
) -> PageFile | None:
    """Return the file of `/playground/NAME`, the page itself for the empty name, or None if there is no such file.

    Args:
        name: NAME.
        accept_encoding: the header of this name; the file is compressed if the browser takes gzip.
        if_none_match: the header of this name; a file that it names has no content.
        asks_for_token: whether the calls of the page need a token.
    """
    name = name or _INDEX
    # What a caller sends is only looked up here, and never becomes part of a path.
    if name not in _contents():
        return None
    file = _file(name, compressed=takes_gzip(accept_encoding), signed_out=asks_for_token and name == _INDEX)
    return PageFile(b"", file.headers) if file.headers["ETag"] in if_none_match else file


# Made when a browser asks, because most servers never send the page.
@cache
def _contents() -> dict[str, bytes]:
    """Return the bytes of the files of the page; the modules and the style that it loads have all others in them."""
    files = [file for file in (Path(__file__).parent / "static").iterdir() if file.suffix in _MEDIA_TYPES]
    modules = {file.name: file.read_text(encoding="utf-8") for file in files if file.suffix == ".js"}
    styles = [file for file in files if file.suffix == ".css" and file.name != _LATE_STYLE]
    styles.sort(key=lambda file: (file.name != _STYLE, file.name))
    scripts = {name: script.encode() for name, script in joined_modules(modules, _ENTRY).items()}
    style = b"".join(file.read_bytes() for file in styles)
    return {file.name: file.read_bytes() for file in files} | scripts | {_STYLE: style}


@cache
def _file(name: str, *, compressed: bool, signed_out: bool) -> PageFile:
    """Return a file that exists; `signed_out` shows the form for the token."""
    content = _contents()[name]
    if signed_out:
        content = content.replace(_SIGN_IN + b" hidden", _SIGN_IN, 1)
    if compressed:
        content = gzip.compress(content, mtime=0)
    tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    # Both forms of a file have one address.
    sent = {"Content-Type": _MEDIA_TYPES[Path(name).suffix], "ETag": tag, "Vary": "Accept-Encoding"}
    headers = PAGE_HEADERS if name.endswith(".html") else FILE_HEADERS
    return PageFile(content, {**headers, **sent, **({"Content-Encoding": "gzip"} if compressed else {})})
