"""Disturb a folder of models while the models answer, and end the server at random."""

import json
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random

import numpy as np
from numpy.typing import NDArray

from headwaiter_client import Client, HeadwaiterError, RetryPolicy, Unavailable
from testbed.server_process import RunningServer, running_server
from tests.e2e.test_replaced_bundle import replace_bundle
from tests.support.soak.report import counted

_DRAIN_S = 3.0
_SEQUENCES = [[1, 2, 3], [4] * 20, list(range(1, 31))]
_FLAGS = ["--provider", "cpu", "--threads", "1", "--watch-s", "0.5", "--model-control", "on", "--drain-s", "3"]
# How long a server serves until SIGTERM.
_LIFE_S = (10.0, 40.0)


class _Callers:
    """Ask both models without a pause, and count what they answer."""

    def __init__(self, expected: list[NDArray[np.float32]]) -> None:
        self._expected = expected
        self.outcomes = Counter[str]()
        self.wrong: list[str] = []
        # Errors count while the server must serve the model of this name.
        self.must_serve: set[str] = set()
        self.failed: list[str] = []

    def run(self, address: str, model: str, stop: threading.Event) -> None:
        with Client(address, retry=RetryPolicy(max_attempts=1), timeout_s=20) as client:
            while not stop.is_set():
                certain = model in self.must_serve
                try:
                    pooled = client.encode_tokens(_SEQUENCES, model=model).pooled
                except HeadwaiterError as error:
                    self.outcomes[f"{model}: {type(error).__name__}"] += 1
                    if certain and model in self.must_serve:
                        self.failed.append(f"{model}: {error}")
                    time.sleep(0.01)
                    continue
                self.outcomes[f"{model}: answered"] += 1
                if pooled is None or not any(np.abs(pooled - each).max() < 1e-5 for each in self._expected):
                    self.wrong.append(f"{model}: {pooled}")


def folder_chaos(bundle: Path, folder: Path, seconds: float, seed: int) -> list[str]:
    """Disturb the folder for some seconds; return the promises that the server has broken."""
    random = Random(seed)
    spare = folder / "spare"
    for name in ("a", "b"):
        shutil.copytree(bundle, spare / name)
    replace_bundle(spare / "b", folder / "scratch")
    models = folder / "models"
    for name in ("calm", "disturbed"):
        shutil.copytree(spare / "a", models / name / "1")
    callers = _Callers([_vectors(spare / name) for name in ("a", "b")])
    broken: list[str] = []
    done = Counter[str]()
    end_s = time.monotonic() + seconds
    with (folder / "log").open("wb") as log:
        while time.monotonic() < end_s:
            _restore(models, spare)
            life_s = min(random.uniform(*_LIFE_S), end_s - time.monotonic() + 1)
            with running_server(None, ["--models", str(models), *_FLAGS], log=log) as server:
                broken += _live(server, models, spare, callers, random, life_s, done)
    print(f"answers: {counted(callers.outcomes)}\ndone: {counted(done)}")
    print(f"wrong {len(callers.wrong)}, refused by a model that must be served {len(callers.failed)}")
    tracebacks = (folder / "log").read_text().count("Traceback")
    print(f"tracebacks in the log: {tracebacks}")
    return broken + callers.wrong[:3] + callers.failed[:5]


def _live(
    server: RunningServer,
    models: Path,
    spare: Path,
    callers: _Callers,
    random: Random,
    life_s: float,
    done: Counter[str],
) -> list[str]:
    """Disturb the folder of one server, and end the server."""
    stop = threading.Event()
    threads = [
        threading.Thread(target=callers.run, args=(server.address, name, stop)) for name in ("calm", "disturbed")
    ]
    callers.must_serve |= {"calm", "disturbed"}
    for thread in threads:
        thread.start()
    end_s = time.monotonic() + life_s
    deeds = [_truncate, _overwrite, _forbid, _unmount, _blink, _new_version, _damaged_version, _control, _clutter]
    while time.monotonic() < end_s and server.process.poll() is None:
        deed = random.choice(deeds)
        done[deed.__name__.strip("_")] += 1
        deed(models, spare, server, callers, random)
        time.sleep(random.uniform(0, 1.5))
    callers.must_serve.clear()
    problems = []
    if server.process.poll() is not None:
        problems.append(f"the server has exited with {server.process.poll()}")
    if random.random() < 0.5:  # A load is in progress.
        _add(models / "disturbed", spare / "a", 99)
        time.sleep(random.uniform(0.3, 0.8))
    server.process.send_signal(signal.SIGTERM)
    started_s = time.monotonic()
    try:
        code = server.process.wait(_DRAIN_S + 5)
        done[f"exit {code}"] += 1
        problems += [f"the server exited with {code}"] * (code != 0)
    except subprocess.TimeoutExpired:
        problems.append(f"the server did not exit within {time.monotonic() - started_s:.0f} s")
        server.process.kill()
    stop.set()
    for thread in threads:
        thread.join()
    return problems


def _vectors(bundle: Path) -> NDArray[np.float32]:
    with running_server(bundle, ["--provider", "cpu", "--threads", "1"]) as server, Client(server.address) as client:
        return client.encode_tokens(_SEQUENCES).pooled


def _add(model: Path, bundle: Path, version: int) -> None:
    hidden = model / f".{version}"
    shutil.rmtree(hidden, ignore_errors=True)
    shutil.copytree(bundle, hidden)
    # Each copy has a digest of its own.
    manifest = json.loads((hidden / "manifest.json").read_text())
    manifest["name"] = f"copy-{time.monotonic_ns()}"
    (hidden / "manifest.json").write_text(json.dumps(manifest))
    shutil.rmtree(model / str(version), ignore_errors=True)
    hidden.rename(model / str(version))


def _latest(models: Path) -> Path:
    versions = [path for path in (models / "disturbed").iterdir() if path.name.isdecimal()]
    return max(versions, key=lambda path: int(path.name))


def _restore(models: Path, spare: Path) -> None:
    shutil.rmtree(models / "disturbed", ignore_errors=True)
    (models / "disturbed").mkdir()
    _add(models / "disturbed", spare / "a", 1)


def _truncate(models: Path, spare: Path, _: RunningServer, callers: _Callers, random: Random) -> None:
    files = [path for path in _latest(models).iterdir() if path.is_file()]
    with random.choice(files).open("r+b") as file:
        file.truncate(random.choice([0, 10]))


def _overwrite(models: Path, spare: Path, _: RunningServer, callers: _Callers, random: Random) -> None:
    for path in (spare / random.choice("ab")).iterdir():
        with (_latest(models) / path.name).open("wb") as file:
            file.write(path.read_bytes())


def _forbid(models: Path, spare: Path, _: RunningServer, callers: _Callers, random: Random) -> None:
    folder = random.choice([_latest(models), models / "disturbed", models])
    folder.chmod(0o000)
    time.sleep(random.uniform(0.1, 2))
    folder.chmod(0o755)


def _unmount(models: Path, spare: Path, _: RunningServer, callers: _Callers, random: Random) -> None:
    away = models.with_name("away")
    models.rename(away)
    if random.random() < 0.5:
        models.mkdir()
    time.sleep(random.uniform(0.1, 3))
    with suppress(FileNotFoundError):
        models.rmdir()
    away.rename(models)


def _blink(models: Path, spare: Path, _: RunningServer, callers: _Callers, random: Random) -> None:
    latest = _latest(models)
    away = latest.with_name(".away")
    latest.rename(away)
    time.sleep(random.uniform(0, 0.15))
    away.rename(latest)


def _new_version(models: Path, spare: Path, _: RunningServer, callers: _Callers, random: Random) -> None:
    _add(models / "disturbed", spare / random.choice("ab"), int(_latest(models).name) + 1)


def _damaged_version(models: Path, spare: Path, _: RunningServer, callers: _Callers, random: Random) -> None:
    version = int(_latest(models).name) + 1
    _add(models / "disturbed", spare / "a", version)
    (models / "disturbed" / str(version) / "weights.fp32.bin").write_bytes(b"no weights")


def _control(models: Path, spare: Path, server: RunningServer, callers: _Callers, random: Random) -> None:
    """Unload the model, and load it from a good version."""
    callers.must_serve.discard("disturbed")
    with Client(server.address, retry=RetryPolicy(max_attempts=1), timeout_s=20) as client:
        with suppress(HeadwaiterError):
            client.unload("disturbed")
        _add(models / "disturbed", spare / "a", int(_latest(models).name) + 1)
        with suppress(Unavailable):
            client.load("disturbed")
            callers.must_serve.add("disturbed")


def _clutter(models: Path, spare: Path, _: RunningServer, callers: _Callers, random: Random) -> None:
    folder = random.choice([models, models / "disturbed", _latest(models)])
    (folder / "README.md").write_text(str(time.monotonic_ns()))
    (folder / "12 (copy)").mkdir(exist_ok=True)
