"""A hub on this host, with those paths of https://huggingface.co that huggingface_hub calls to fetch a model."""

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

TOKEN = "hf_right"
_INFO = re.compile(r"/api/models/([^/]+/[^/]+?)(?:/revision/([^/]+))?")
_TREE = re.compile(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)")
_FILE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")
Answer = tuple[int, dict[str, str], bytes]


@dataclass(eq=False)
class LoopbackHub:
    """The models of the hub, and what was asked of it.

    Attributes:
        url: address of the hub, for HF_ENDPOINT.
        sent: the paths of the files that were sent, in order.
        requests: number of all requests.
        status: the status of every answer; 0 answers as the hub does.
    """

    url: str
    sent: list[str] = field(default_factory=list)
    requests: int = 0
    status: int = 0
    _folders: dict[tuple[str, str], Path] = field(default_factory=dict)
    _commits: dict[tuple[str, str], str] = field(default_factory=dict)
    _gated: set[str] = field(default_factory=set)

    def add(self, name: str, folder: Path, branch: str = "main", *, gated: bool = False) -> str:
        """Offer the files of a folder as a branch of a model, and return the commit; a gated model needs TOKEN."""
        listed = json.dumps([name, _listing(folder)])
        commit = hashlib.sha1(listed.encode()).hexdigest()
        for revision in (branch, commit):
            self._folders[name, revision], self._commits[name, revision] = folder, commit
        self._gated |= {name} if gated else set()
        return commit

    def answer(self, path: str, authorization: str | None, *, has_body: bool) -> Answer:
        """Return the status, the headers and the body that answer a request."""
        self.requests += 1
        if self.status:
            return self.status, {}, b""
        if authorization not in (None, f"Bearer {TOKEN}"):
            return 401, {"X-Error-Message": "Invalid credentials in Authorization header"}, b""
        for pattern in (_INFO, _TREE, _FILE):
            if match := pattern.fullmatch(urlsplit(path).path):
                name, revision, file = (*(unquote(each or "main") for each in match.groups()), "")[:3]
                break
        else:
            return 404, {}, b""
        if name not in {known for known, _ in self._folders}:
            return 401, {"X-Error-Code": "RepoNotFound"}, b""
        if (name, revision) not in self._folders:
            return 404, {"X-Error-Code": "RevisionNotFound"}, b""
        folder, commit = self._folders[name, revision], self._commits[name, revision]
        if pattern is _INFO:
            return _json(
                {"id": name, "sha": commit, "siblings": [{"rfilename": path} for path, *_ in _listing(folder)]}
            )
        if pattern is _TREE:
            listed = [{"type": "file", "path": path, "size": size, "oid": oid} for path, size, oid in _listing(folder)]
            return _json(listed)
        if name in self._gated and authorization is None:
            return 401, {"X-Error-Code": "GatedRepo"}, b""
        if not (folder / file).is_file():
            return 404, {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit}, b""
        content = (folder / file).read_bytes()
        if has_body:
            self.sent.append(file)
        return 200, {"ETag": f'"{_blob_id(content)}"', "X-Repo-Commit": commit}, content


@contextmanager
def loopback_hub() -> Iterator[LoopbackHub]:
    """Serve an empty hub until the end of the block."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, headers, body = hub.answer(
                self.path, self.headers.get("Authorization"), has_body=self.command == "GET"
            )
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub = LoopbackHub(f"http://127.0.0.1:{server.server_port}")
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()


def _listing(folder: Path) -> list[tuple[str, int, str]]:
    """Return path, size and id of each file, as git lists them."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    contents = [(path.relative_to(folder).as_posix(), path.read_bytes()) for path in files]
    return [(path, len(content), _blob_id(content)) for path, content in contents]


def _blob_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0%b" % (len(content), content)).hexdigest()


def _json(value: object) -> Answer:
    return 200, {"Content-Type": "application/json"}, json.dumps(value).encode()
