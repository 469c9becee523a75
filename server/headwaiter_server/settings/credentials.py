"""Read the tokens of callers and the files of TLS, at the start and again when the files change."""

import hmac
import logging
import os
import re
import ssl
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryFile
from typing import Generic, TypeVar

from headwaiter_server.settings.flags import Settings, SettingsError, flag
from headwaiter_server.settings.tenants import UNNAMED, Tenant

log = logging.getLogger(__name__)

_BARE_TOKEN = re.compile("[!-~]+")
_NAMED_TOKEN = re.compile(r"([A-Za-z0-9._@/-]{1,64}):[ \t]+([!-~]+)((?:[ \t]+[!-~]+)*)")
# The lowest and the highest number of each field of a tenant. Shares that differ by more would cost digits.
_TENANT_FIELDS = {"share": (0.01, 100.0), "tokens_per_s": (1.0, 1e12), "queue_tokens": (1.0, 1e12)}
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Tokens:
    """The bearer tokens of callers.

    Attributes:
        headers: the tenant of each token, and the bytes of the header that carries the token.
    """

    headers: tuple[tuple[Tenant, bytes], ...] = field(repr=False)

    @classmethod
    def of(cls, *tokens: tuple[Tenant, str]) -> "Tokens":
        """Return tokens from pairs of a tenant and a token; a tenant may have several tokens."""
        return cls(tuple((tenant, f"Bearer {token}".encode()) for tenant, token in tokens))

    @property
    def names(self) -> list[str]:
        """The names of the tenants, sorted."""
        return sorted({tenant.name for tenant, _ in self.headers if tenant.name})

    def tenant(self, authorization: str) -> Tenant | None:
        """Return the tenant whose token an `authorization` header carries; None without a token of the server."""
        scheme, _, token = authorization.partition(" ")
        # The scheme's letters may be upper or lower case (RFC 9110, section 11.1).
        given, found = f"{scheme.capitalize()} {token}".encode(), None
        for tenant, expected in self.headers:
            # Compare in constant time, and with all tokens; otherwise a token could be guessed byte by byte.
            if hmac.compare_digest(given, expected):
                found = tenant
        return found


@dataclass(frozen=True)
class TlsFiles:
    """The contents of PEM files.

    Attributes:
        cert: the server's certificate chain.
        key: the private key of the certificate.
        client_ca: the certificate authority of clients; None if clients need no certificate.
    """

    cert: bytes = field(repr=False)
    key: bytes = field(repr=False)
    client_ca: bytes | None = field(repr=False)

    def context(self) -> ssl.SSLContext:
        """Return the context of a server with these files.

        Raises:
            OSError: the certificate does not belong to the key, or a file is not valid.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with ExitStack() as stack:
            # Python takes a certificate and its key from files only.
            cert, key = (stack.enter_context(_as_file(content)) for content in (self.cert, self.key))
            # With an empty password, an encrypted key is an error, and not a question on the terminal.
            context.load_cert_chain(cert, key, password="")
        if self.client_ca is not None:
            # Python takes certificates from ASCII text only; comments between them may have other characters.
            context.load_verify_locations(cadata=self.client_ca.decode("ascii", errors="ignore"))
            context.verify_mode = ssl.CERT_REQUIRED
        return context


@dataclass(frozen=True)
class Credentials:
    """What the files hold.

    Attributes:
        tokens: the tokens of most calls; None if they need none.
        admin_tokens: the tokens of calls that load and unload models; None if they need none.
        tls: the files of TLS; None without TLS.
    """

    tokens: Tokens | None = None
    admin_tokens: Tokens | None = None
    tls: TlsFiles | None = None


class CredentialFiles:
    """The files of tokens and of TLS, which may change while the server runs.

    A file that cannot be used counts as unchanged: the server goes on with what the file held before.
    """

    def __init__(self, settings: Settings) -> None:
        """Read the files.

        Raises:
            SettingsError: a file cannot be used.
        """
        token_file, admin_token_file = settings.token_file, settings.admin_token_file
        self._tokens = _Watched([token_file], partial(_read_tokens, "token_file", token_file))
        self._admin_tokens = _Watched([admin_token_file], partial(_read_tokens, "admin_token_file", admin_token_file))
        tls_files = [settings.tls_cert, settings.tls_key, settings.tls_client_ca]
        self._tls = _Watched(tls_files, partial(_read_tls, settings))

    @property
    def current(self) -> Credentials:
        """What the files held when they could last be used."""
        tokens = self._tokens.value
        return Credentials(tokens, self._admin_tokens.value or tokens, self._tls.value)

    def refresh(self, *, at_once: bool) -> bool:
        """Read files again, and return whether `current` has changed.

        Args:
            at_once: whether to read all files. Otherwise only those that have changed and then stayed the same since
                the previous call, because a program may be writing one file after the other.
        """
        changed = [each.refresh(at_once=at_once) for each in (self._tokens, self._admin_tokens, self._tls)]
        return any(changed)


class _Watched(Generic[_Value]):
    """What some files hold together.

    Attributes:
        value: what `read` returned last.
    """

    def __init__(self, paths: Iterable[Path | None], read: Callable[[], _Value]) -> None:
        """Read the files; None stands for a flag that is not given."""
        self._paths, self._read = [path for path in paths if path is not None], read
        self._read_state = self._seen_state = self._state()
        self._problem = ""
        self.value = read()

    def refresh(self, *, at_once: bool) -> bool:
        """Read the files again if they have changed, or at once; return whether the value has changed."""
        state = self._state()
        settled, self._seen_state = state == self._seen_state, state
        if not at_once and (not settled or state == self._read_state):
            return False
        try:
            value = self._read()
        except SettingsError as error:
            # The next call reads the files again: the cause may lie outside of them.
            if at_once or str(error) != self._problem:
                log.error("%s; until then the server goes on with what it read before", error)
            self._problem = str(error)
            return False
        self._read_state, self._problem = state, ""
        if value == self.value:
            return False
        self.value = value
        names = f" with the tokens of {', '.join(value.names)}" if isinstance(value, Tokens) and value.names else ""
        log.info("in use from now on: %s%s", ", ".join(map(str, self._paths)), names)
        return True

    def _state(self) -> list[tuple[int, ...] | None]:
        """Return what changes when a file changes, also when a symbolic link leads to another file."""
        return [_file_state(path) for path in self._paths]


def _file_state(path: Path) -> tuple[int, ...] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _read_tokens(name: str, file: Path | None) -> Tokens | None:
    if file is None:
        return None
    try:
        lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        # The message of a UnicodeDecodeError has a part of the content.
        problem = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise SettingsError(
            f"{flag(name)} {file} cannot be read ({problem}): name a text file that holds the token"
        ) from None
    numbers = [number for number, line in enumerate(lines, 1) if line]
    if not numbers:
        raise SettingsError(f"{flag(name)} {file} is empty: write the token to it")
    if len(numbers) == 1 and _BARE_TOKEN.fullmatch(lines[numbers[0] - 1]):
        return Tokens.of((UNNAMED, lines[numbers[0] - 1]))
    tenants: dict[str, Tenant] = {}
    tokens: dict[str, Tenant] = {}
    for number in numbers:
        place = f"{flag(name)} {file}, line {number},"
        parts = _NAMED_TOKEN.fullmatch(lines[number - 1])
        if parts is None:
            raise SettingsError(
                f"{place} is not a token: write one token of visible ASCII characters without spaces, or on each line "
                "a name, a colon, a space and a token; names have at most 64 letters, digits and . _ @ / -"
            )
        tenant = _read_tenant(parts[1], parts[3].split(), place)
        if parts[2] in tokens:
            raise SettingsError(f"{place} has the token of an earlier line: give each line another token")
        if tenants.setdefault(tenant.name, tenant) != tenant:
            raise SettingsError(
                f"{place} has another share or other limits than an earlier line of {tenant.name}: write the same on "
                "all lines of a name"
            )
        tokens[parts[2]] = tenant
    return Tokens.of(*((tenant, token) for token, tenant in tokens.items()))


def _read_tenant(name: str, words: list[str], place: str) -> Tenant:
    """Return a tenant from the words after its token, `share=3` for example."""
    numbers: dict[str, float] = {}
    for word in words:
        key, _, value = word.partition("=")
        lowest, highest = _TENANT_FIELDS.get(key, (0.0, 0.0))
        try:
            number = float(value)
        except ValueError:
            number = 0.0
        if not 0 < lowest <= number <= highest or key in numbers:
            ranges = ", ".join(f"{name} from {low:g} to {high:g}" for name, (low, high) in _TENANT_FIELDS.items())
            raise SettingsError(
                f"{place} has {word!r} after the token: write each field at most once, with = and a number: {ranges}"
            )
        numbers[key] = number
    return Tenant(name, **numbers)


def _read_tls(settings: Settings) -> TlsFiles | None:
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    try:
        tls = TlsFiles(settings.tls_cert.read_bytes(), settings.tls_key.read_bytes(), None)
        # Check the files with Python, because gRPC would only report that it cannot listen.
        tls.context()
    except OSError as error:
        raise SettingsError(
            f"--tls-cert {settings.tls_cert} with --tls-key {settings.tls_key} cannot be used ({error}): give a "
            "certificate and its unencrypted key, in PEM format"
        ) from None
    if settings.tls_client_ca is None:
        return tls
    try:
        tls = TlsFiles(tls.cert, tls.key, settings.tls_client_ca.read_bytes())
        tls.context()
    except OSError as error:
        raise SettingsError(
            f"--tls-client-ca {settings.tls_client_ca} cannot be used ({error}): give a certificate in PEM format"
        ) from None
    return tls


@contextmanager
def _as_file(content: bytes) -> Iterator[str]:
    """Yield the name of a file with this content, which is in memory if the system allows, to keep keys off disks."""
    in_memory = hasattr(os, "memfd_create")
    with os.fdopen(os.memfd_create("pem"), "w+b") if in_memory else TemporaryFile() as file:
        file.write(content)
        file.seek(0)
        yield f"/dev/fd/{file.fileno()}"
