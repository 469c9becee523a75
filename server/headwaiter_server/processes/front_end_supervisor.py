"""Start the processes of the front ends, start those again that have ended, and stop them.

`front_end_link.py` ends the link to a front end that hangs.
"""

import asyncio
import errno
import logging
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

from headwaiter_proto.rules.errors import HeadwaiterError, Unavailable
from headwaiter_server.concurrency.background_tasks import BackgroundTasks
from headwaiter_server.front_end import CannotListen, cannot_listen, listen_for_http
from headwaiter_server.processes.front_end_links import FrontEndLinks
from headwaiter_server.processes.link import Link
from headwaiter_server.runtime.errors import one_line
from headwaiter_server.settings.credentials import Credentials
from headwaiter_server.settings.flags import Settings

log = logging.getLogger(__name__)

# A front end that ends this soon after its start is started again after a pause, which doubles each time.
_LIVES_S = 5.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 30.0
# A front end ends when its socket is closed, and is killed after this time.
_END_S = 1.0
# Ctrl-C reaches all processes of a terminal, and systemd sends SIGTERM to all processes of a service. The engine
# drains, and then ends the front ends; or it reads files again, and sends the front ends what they hold.
_ENGINE_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
# A front end that does not begin to drain in this time hangs.
_DRAIN_ANSWER_S = 3.0
# A front end that could not use new credentials tries again after this time.
_UPDATE_PAUSE_S = 1.0
# The addresses that gRPC listens on for a host that stands for several.
_ALL = ("0.0.0.0", "::")  # noqa: S104  # The operator chooses the address.
_ADDRESSES = {"0.0.0.0": _ALL, "[::]": _ALL, "localhost": ("127.0.0.1", "::1")}  # noqa: S104
# The program of a front end; its arguments follow.
COMMAND = (sys.executable, "-P", "-m", "headwaiter_server.processes.front_end")


class Child(Protocol):
    """A process that was started."""

    async def wait(self) -> int | None:
        """Return the exit code once the process has ended."""
        ...

    def kill(self) -> None:
        """End the process at once."""
        ...


async def spawn_process(
    engine: socket.socket, http_sockets: Sequence[socket.socket], number: int, settings: Settings
) -> Child:
    """Start the process of a front end with its end of the socket to the engine."""
    files = [each.fileno() for each in (engine, *http_sockets)]
    arguments = map(str, (number, settings.log_format, settings.log_level, *files))
    # A front end inherits the block, so that no signal reaches it, even before its program runs.
    signal.pthread_sigmask(signal.SIG_BLOCK, _ENGINE_SIGNALS)
    try:
        return await asyncio.create_subprocess_exec(
            *COMMAND, *arguments, stdin=asyncio.subprocess.DEVNULL, pass_fds=files
        )
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENGINE_SIGNALS)


class FrontEndSupervisor:
    """The front ends of a server, each in a process of its own.

    Args:
        settings: the settings of the server.
        count: number of front ends.
        links: the engine's ends of their sockets.
        credentials: the tokens, and the files of TLS.

    Attributes:
        port: the port for gRPC; 0 until the front ends listen.
        http_port: the port for HTTP; 0 until the front ends listen.
        metrics_port: the port for metrics, `http_port` if requests have no port of their own; 0 until the front ends
            listen.
    """

    def __init__(self, settings: Settings, count: int, links: FrontEndLinks, credentials: Credentials) -> None:
        self._settings, self._count, self._links = settings, count, links
        self._credentials = credentials
        self._running: dict[int, tuple[Child, Link]] = {}
        self._keepers = BackgroundTasks(on_error=lambda: log.error("watching a front end failed", exc_info=True))
        self._updates = BackgroundTasks(on_error=lambda: log.error("updating a front end failed", exc_info=True))
        self._drains = BackgroundTasks(on_error=lambda: log.error("draining a front end failed", exc_info=True))
        self._sockets: list[socket.socket] = []
        self._unanswered_count = 0
        self.port = self.http_port = self.metrics_port = 0

    @property
    def unanswered_count(self) -> int:
        """Number of requests without a reply when the front ends were quiet, or their time was over."""
        return self._unanswered_count

    async def listen(self) -> None:
        """Start all front ends, which then listen on the ports.

        Raises:
            CannotListen: a port cannot be used.
        """
        self._sockets, self._address = _reserve(self._settings.address)
        try:
            self._http_sockets = listen_for_http(self._settings)
            self._sockets += self._http_sockets
            # If one front end cannot start, wait for the others, which are stopped then.
            started = await asyncio.gather(*map(self._start, range(1, self._count + 1)), return_exceptions=True)
            for error in filter(None, started):
                raise error
        except BaseException:
            await self.stop_listening(0)
            raise
        for number in tuple(self._running):
            self._keepers.start(self._keep(number))

    def use(self, credentials: Credentials) -> None:
        """Check new calls and new connections with other credentials; calls in progress and connections go on."""
        self._credentials = credentials
        for link in self._running_links:
            self._updates.start(self._update(link))

    def drain(self) -> None:
        """Let the front ends report NOT_SERVING, and answer no new requests from now on."""
        self._keepers.cancel()  # They start no front end again, and end those that have not started yet.
        for link in self._running_links:
            self._drains.start(self._drain(link))

    async def wait_until_quiet(self, end_s: float) -> None:
        """Return when all replies are sent and no new call has arrived for a while, at the latest at `end_s`."""
        timeout_s = end_s - time.monotonic() + _END_S
        self._unanswered_count = sum(await _call(self._running_links, timeout_s, "wait_until_quiet", end_s))

    async def stop_listening(self, grace_s: float) -> None:
        """Free the ports, and end the processes; calls in progress have `grace_s` seconds to end."""
        self._keepers.cancel()
        await _call(self._running_links, grace_s + 2 * _END_S, "stop", grace_s)
        self._keepers.cancel()
        await asyncio.gather(*(self._end(child, link) for child, link in self._running.values()))
        self._running.clear()
        for each in self._sockets:
            each.close()

    async def _drain(self, link: Link) -> None:
        """Let a front end drain; cut it off if it does not even answer that."""
        if not await _call([link], _DRAIN_ANSWER_S, "drain") and not link.closed.done():
            log.warning("%s has not answered for %g s: its requests stay unanswered", link.other, _DRAIN_ANSWER_S)
            link.close()

    @property
    def _running_links(self) -> list[Link]:
        return [link for _, link in self._running.values()]

    async def _start(self, number: int) -> None:
        """Start a front end, and return when it answers requests.

        Raises:
            CannotListen: a port cannot be used, or the process has ended.
        """
        settings = replace(self._settings, front_ends=self._count, address=self._address)
        ours, theirs = socket.socketpair()
        child = await spawn_process(theirs, self._http_sockets, number, settings)
        theirs.close()
        link = await self._links.add(ours, number)
        try:
            credentials = self._credentials
            await link.call("open", settings, credentials)
            # A front end that listens before it knows the models would refuse calls, and report NOT_SERVING.
            await self._links.join(link)
            listens = await link.call("listen")
            if isinstance(listens, Exception):
                raise listens
            self.port, self.http_port, self.metrics_port = listens
        except Unavailable:
            exit_code = await self._end(child, link)
            raise CannotListen(
                f"front end {number} has ended with exit code {exit_code} before it listened: read its log"
            ) from None
        except BaseException:
            await self._end(child, link)
            raise
        self._running[number] = child, link
        if credentials is not self._credentials:
            self._updates.start(self._update(link))

    async def _update(self, link: Link) -> None:
        """Let a front end use the latest credentials; try again until it does, or has ended."""
        used = None
        while used is not self._credentials and not link.closed.done():
            credentials = self._credentials
            try:
                await link.call("use", credentials)
                used = credentials
            except HeadwaiterError as error:
                log.error(
                    "%s cannot use the new tokens and files of TLS (%s); the next try is in %g s",
                    link.other,
                    one_line(error),
                    _UPDATE_PAUSE_S,
                )
                await asyncio.sleep(_UPDATE_PAUSE_S)

    async def _keep(self, number: int) -> None:
        """Start a front end again whenever it ends."""
        pause_s = 0.0
        while True:
            child, link = self._running[number]
            started_s = time.monotonic()
            await asyncio.wait({link.closed})
            del self._running[number]
            exit_code = await self._end(child, link)
            if time.monotonic() - started_s > _LIVES_S:
                pause_s = 0.0
            log.error("front end %d has ended with exit code %s, and is started again", number, exit_code)
            self._links.restarts.inc()
            while number not in self._running:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s or _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
                try:
                    await self._start(number)
                    log.info("front end %d answers requests again", number)
                except CannotListen as error:
                    log.error("%s; the next try is in %g s", error, pause_s)
                except Exception:
                    log.exception("front end %d does not start; the next try is in %g s", number, pause_s)

    async def _end(self, child: Child, link: Link) -> int | None:
        """Return the exit code of a process, which is killed if it does not end by itself."""
        link.close()
        try:
            async with asyncio.timeout(_END_S):
                return await child.wait()
        except TimeoutError:
            pass
        finally:
            with suppress(ProcessLookupError):
                child.kill()
        return await child.wait()


async def _call(links: list[Link], timeout_s: float, method: str, *arguments: Any) -> list[Any]:
    """Return the answers of the front ends that answer in time."""
    calls = [asyncio.create_task(link.call(method, *arguments)) for link in links]
    if calls:
        await asyncio.wait(calls, timeout=timeout_s)
    answered = [each for each in calls if each.done() and each.exception() is None]
    for each in calls:
        each.cancel()
    return [each.result() for each in answered]


def _reserve(address: str) -> tuple[list[socket.socket], str]:
    """Return sockets that keep a port for gRPC without listening, and the address with the number of the port.

    Raises:
        CannotListen: the port is in use, or the host is not an address of this computer.
    """
    host, _, text = address.rpartition(":")
    port, kept = int(text), list[socket.socket]()
    try:
        for name in _ADDRESSES.get(host, (host.strip("[]"),)):
            for family, _, _, _, place in socket.getaddrinfo(name, port, type=socket.SOCK_STREAM):
                if (each := _hold_port(family, (place[0], port, *place[2:]))) is not None:
                    kept.append(each)
                    port = each.getsockname()[1]
        if not kept:
            raise OSError(errno.EADDRNOTAVAIL, "no address")
    except OSError:
        for each in kept:
            each.close()
        raise cannot_listen(address) from None
    return kept, f"{host}:{port}"


def _hold_port(family: int, place: Any) -> socket.socket | None:
    """Return a socket that keeps a port of an address; None if this computer lacks the address, as gRPC then does.

    The front ends share the port, so the kernel would let another server share the port, too. The port is therefore
    first bound without sharing.
    """
    try:
        with socket.socket(family) as alone:
            _bind(alone, place, socket.SO_REUSEADDR)
            place = alone.getsockname()
    except OSError as error:
        if error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            return None
        raise
    kept = socket.socket(family)
    try:
        _bind(kept, place, socket.SO_REUSEPORT)
    except OSError:
        # Ended connections of a server that did not share the port. With this option, a server that starts at the same
        # moment could take the port too, so it is not set without need.
        _bind(kept, place, socket.SO_REUSEPORT, socket.SO_REUSEADDR)
    return kept


def _bind(unbound: socket.socket, place: Any, *options: int) -> None:
    for option in options:
        unbound.setsockopt(socket.SOL_SOCKET, option, 1)
    if unbound.family == socket.AF_INET6:
        # Otherwise :: would be in use once 0.0.0.0 is.
        unbound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    unbound.bind(place)
