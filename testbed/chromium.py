"""Drives Chromium over its DevTools protocol, for the tests and the screenshots of the playground."""

import base64
import fcntl
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
# Chromium reads commands from this file descriptor, and writes replies and events to the next one.
_COMMANDS_FD, _REPLIES_FD = 3, 4
# Gives the pipes these numbers, which this process itself may use for other files, and becomes Chromium.
_LAUNCHER = f"""
import os, sys
os.dup2(int(sys.argv[1]), {_COMMANDS_FD})
os.dup2(int(sys.argv[2]), {_REPLIES_FD})
os.execv(sys.argv[3], sys.argv[3:])
"""
_WAIT_S = 30.0
_POLL_INTERVAL_S = 0.02
_KEYS = {"ArrowRight": 39, "ArrowLeft": 37, "Home": 36, "End": 35, "Tab": 9, "Enter": 13, " ": 32, "x": 88}


def chromium_path() -> str | None:
    """Return the path of Chromium, or None if it is not installed."""
    return next((path for name in _PROGRAMS if (path := shutil.which(name))), None)


@contextmanager
def running_chromium() -> Iterator["Browser"]:
    """Start Chromium without a window and with an empty profile, and end it at the end of the block.

    Raises:
        FileNotFoundError: Chromium is not installed.
    """
    path = chromium_path()
    if path is None:
        raise FileNotFoundError("Chromium is not installed: install the package chromium")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        arguments = [path, "--headless", "--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]
        arguments[1:1] = [
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-sync",
        ]
        arguments[1:1] = ["--no-first-run", "--hide-scrollbars", "--force-color-profile=srgb"]
        if os.geteuid() == 0:
            arguments.insert(1, "--no-sandbox")  # Chromium refuses to sandbox a process of root.
        process, commands, replies = _start(arguments, profile)
        try:
            yield Browser(commands, replies)
        finally:
            os.close(commands)
            process.terminate()
            process.wait(_WAIT_S)
            os.close(replies)


def _start(arguments: list[str], home: str) -> tuple[subprocess.Popen[bytes], int, int]:
    ends = [_above_low_numbers(end) for pipe in (os.pipe(), os.pipe()) for end in pipe]
    commands_read, commands_write, replies_read, replies_write = ends
    process = subprocess.Popen(
        [sys.executable, "-c", _LAUNCHER, str(commands_read), str(replies_write), *arguments],
        pass_fds=(commands_read, replies_write),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "HOME": home},
    )
    os.close(commands_read)
    os.close(replies_write)
    return process, commands_write, replies_read


def _above_low_numbers(descriptor: int) -> int:
    copy = fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(descriptor)
    return copy


class Browser:
    """A running Chromium, with the pipes of its commands and replies. Not safe for use by several threads."""

    def __init__(self, commands: int, replies: int) -> None:
        self._commands, self._replies = commands, replies
        self._received = b""
        self._last_id = 0
        self._pages: dict[str, Page] = {}

    def open(self, url: str, width: int = 1280, height: int = 900, *, dark: bool = False) -> "Page":
        """Open a page in a new tab, and return the page once it has loaded."""
        context = self.send("Target.createBrowserContext")["browserContextId"]
        target = self.send("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = self._pages[session] = Page(self, session)
        for domain in ("Page", "Runtime", "Network", "Log"):
            page.send(f"{domain}.enable")
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        page.send("Emulation.setEmulatedMedia", features=[scheme])
        page.resize(width, height)
        page.send("Page.navigate", url=url)
        page.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")
        return page

    def send(self, method: str, session: str = "", /, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result; events that arrive before it go to their pages.

        Raises:
            RuntimeError: Chromium refuses the command, or has ended.
        """
        self._last_id += 1
        command = {"id": self._last_id, "method": method, "params": parameters}
        raw = json.dumps({**command, "sessionId": session} if session else command).encode() + b"\0"
        while raw:
            raw = raw[os.write(self._commands, raw) :]
        while True:
            message = self._read()
            if message.get("id") == self._last_id:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']['message']}")
                result: dict[str, Any] = message["result"]
                return result
            if page := self._pages.get(message.get("sessionId", "")):
                page.record(message["method"], message["params"])

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._received:
            # Returns what has arrived, at most this many bytes.
            part = os.read(self._replies, 1 << 20)
            if not part:
                raise RuntimeError("Chromium has ended")
            self._received += part
        raw, _, self._received = self._received.partition(b"\0")
        message: dict[str, Any] = json.loads(raw)
        return message


class Page:
    """A page in a tab.

    Attributes:
        errors: errors and warnings of the page's console, and uncaught exceptions.
        urls: the addresses that the page has asked for, without those that hold their own data.
    """

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session
        self.errors: list[str] = []
        self.urls: list[str] = []

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command about this page, and return its result."""
        return self._browser.send(method, self._session, **parameters)

    def record(self, event: str, parameters: dict[str, Any]) -> None:
        """Keep what an event of the page says."""
        if event == "Network.requestWillBeSent":
            url = parameters["request"]["url"]
            self.urls += [] if url.startswith("data:") else [url]
        elif event == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(parameters["exceptionDetails"]))
        elif event == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.errors.append(json.dumps(parameters["args"]))
        elif event == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.errors.append(f"{parameters['entry']['text']} {parameters['entry'].get('url', '')}")

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, as JSON can hold it; a promise is awaited.

        Raises:
            RuntimeError: the expression throws.
        """
        reply = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in reply:
            raise RuntimeError(f"{expression[:200]}: {json.dumps(reply['exceptionDetails'])}")
        return reply["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Wait until a JavaScript expression is true.

        Raises:
            TimeoutError: the expression is not true after 30 seconds.
        """
        end_s = time.monotonic() + _WAIT_S
        while time.monotonic() < end_s:
            if self.evaluate(f"!!({condition})"):
                return
            time.sleep(_POLL_INTERVAL_S)
        raise TimeoutError(f"not true after {_WAIT_S:.0f} s: {condition}")

    def close(self) -> None:
        """Close the page and its tab."""
        self.send("Page.close")

    def resize(self, width: int, height: int) -> None:
        """Set the size of the visible part of the page in CSS pixels."""
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def click(self, selector: str) -> None:
        """Click the middle of an element with the mouse."""
        self.evaluate(f"document.querySelector({json.dumps(selector)}).scrollIntoView({{block: 'center'}})")
        # Until the browser has drawn a frame, it takes the place of the mouse for one before the scroll.
        self.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        box = self.evaluate(f"document.querySelector({json.dumps(selector)}).getBoundingClientRect().toJSON()")
        place = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2, "button": "left", "clickCount": 1}
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, **place)

    def press(self, key: str) -> None:
        """Press a key on the element that has the focus."""
        code = {"key": key, "windowsVirtualKeyCode": _KEYS[key], **({"text": "\r"} if key == "Enter" else {})}
        self.send("Input.dispatchKeyEvent", type="keyDown", **code)
        self.send("Input.dispatchKeyEvent", type="keyUp", **code)

    def type_text(self, selector: str, text: str) -> None:
        """Replace what is in a text field, as a user does who selects everything and types."""
        self.evaluate(f"(field => {{field.focus(); field.select()}})(document.querySelector({json.dumps(selector)}))")
        self.send("Input.insertText", text=text)

    def choose(self, selector: str, value: str) -> None:
        """Set the value of a control, as a user does who chooses an option or moves a slider."""
        found = f"document.querySelector({json.dumps(selector)})"
        events = "for (const kind of ['input', 'change']) control.dispatchEvent(new Event(kind, { bubbles: true }))"
        self.evaluate(f"(control => {{ control.value = {json.dumps(value)}; {events} }})({found})")

    def choose_file(self, selector: str, path: Path) -> None:
        """Choose a file in an input of files, as a user does in the dialog."""
        root = self.send("DOM.getDocument")["root"]["nodeId"]
        node = self.send("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.send("DOM.setFileInputFiles", nodeId=node, files=[str(path)])

    def texts(self, selector: str) -> list[str]:
        """Return the text of each element that a selector finds."""
        found: list[str] = self.evaluate(
            f"Array.from(document.querySelectorAll({json.dumps(selector)}), found => found.textContent)"
        )
        return found

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """Write a picture of the page as PNG: the whole page, or its visible part."""
        clip = {}
        if whole:
            size = self.send("Page.getLayoutMetrics")["cssContentSize"]
            clip = {"clip": {**size, "scale": 1}, "captureBeyondViewport": True}
        data = self.send("Page.captureScreenshot", format="png", **clip)["data"]
        path.write_bytes(base64.b64decode(data))
