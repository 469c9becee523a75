"""Serve ten models of which three fit in memory: failures, wrong vectors, memory, loads, and a pinned model beside.

    python -m bench.studies.on_demand [--seconds N]

The models have the shape of all-MiniLM-L6-v2, and random weights, each other ones. The first model is pinned. 32
callers choose models by Zipf's law, and pause for a second on average; then, in a storm, they choose any model, and do
not pause. A caller of its own asks the pinned model ten times a second: alone, beside the 32 callers in a server that
has loaded all models, and beside them in the server that loads models on demand. PyTorch computes the expected vectors.
"""

import argparse
import asyncio
import random
import time
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import BertConfig, BertModel

from bench.measure import logged_server, quantile_ms
from bench.processes import memory_mib
from headwaiter_client import AsyncClient, Client, HeadwaiterError
from headwaiter_export.cli import main as export_main
from headwaiter_server.models.folders import FoundVersion
from headwaiter_server.models.on_disk import describe
from headwaiter_server.settings.flags import Settings
from testbed.minilm import ROOT
from testbed.server_process import RunningServer

_FOLDER = ROOT / "build" / "ten-models"
_MODELS, _FIT, _CALLERS, _SEQUENCES = 10, 3, 32, 20
_PAUSE_S, _PINNED_INTERVAL_S, _TIMEOUT_S = 1.0, 0.1, 300.0
_QUIET_S, _LOADED_S, _STORM_S, _POLL_S = 30.0, 60.0, 90.0, 0.2
_TOLERANCE = 1e-5
_NAMES = [f"model-{number}" for number in range(_MODELS)]
_PINNED = _NAMES[0]

_Expected = dict[str, list[NDArray[np.float32]]]


class Phase(NamedTuple):
    """What the callers saw in one phase.

    Attributes:
        seconds: the length of the phase.
        outcomes: how often a call ended how.
        calls_s: when each call of the mix began and ended.
        pinned_s: when each call of the pinned model began and ended.
    """

    seconds: float
    outcomes: Counter[str]
    calls_s: list[tuple[float, float]]
    pinned_s: list[tuple[float, float]]

    def show(self, name: str) -> None:
        """Print the phase in one line."""
        outcomes = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(self.outcomes.items())) or "none"
        p50, p99 = (quantile_ms([end - start for start, end in self.pinned_s], quantile) for quantile in (0.5, 0.99))
        longest = f"; longest call {max(end - start for start, end in self.calls_s):.1f} s" if self.calls_s else ""
        print(
            f"{name}: {self.seconds:.0f} s; calls: {outcomes}{longest}; pinned model: p50 {p50:.1f}, p99 {p99:.1f} ms"
        )


def make_models() -> _Expected:
    """Export the models that are missing, and return their vectors of the sequences as PyTorch computes them."""
    expected: _Expected = {}
    for number, name in enumerate(_NAMES):
        torch.manual_seed(number)
        shape = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
        bert = BertModel(BertConfig(**shape), add_pooling_layer=False).eval()
        if not (_FOLDER / name / "1").exists():
            checkpoint = ROOT / "build" / "ten-checkpoints" / name
            bert.save_pretrained(checkpoint)
            (_FOLDER / name).mkdir(parents=True, exist_ok=True)
            flags = ["--pooling", "mean", "--no-normalize", "--precision", "fp32", "--graphs", "packed-cpu"]
            assert export_main(["checkpoint", str(checkpoint), "-o", str(_FOLDER / name / "1"), *flags]) == 0
        with torch.no_grad():
            rows = (bert(torch.tensor(ids)[None]).last_hidden_state[0].mean(0) for ids in _sequences())
            expected[name] = [row.numpy() for row in rows]
    (_FOLDER / _PINNED / "settings.json").write_text('{"load": "at-start"}')
    return expected


def _sequences() -> list[list[int]]:
    chosen = random.Random(0)
    return [[chosen.randrange(1000, 30_000) for _ in range(chosen.randint(4, 32))] for _ in range(_SEQUENCES)]


class Callers:
    """The callers of one server."""

    def __init__(self, server: RunningServer, expected: _Expected) -> None:
        self._server, self._expected = server, expected

    async def run(self, seconds: float, weights: Sequence[float] | None, pause_s: float = _PAUSE_S) -> Phase:
        """Let the pinned model's caller, and with `weights` all others, call for some time."""
        phase = Phase(seconds, Counter(), [], [])
        end_s = time.monotonic() + seconds
        async with AsyncClient(self._server.address, share_requests=False) as client:

            async def call(name: str, chosen: random.Random, calls_s: list[tuple[float, float]]) -> None:
                index, started_s = chosen.randrange(_SEQUENCES), time.monotonic()
                try:
                    result = await client.encode_tokens([_sequences()[index]], model=name, timeout_s=_TIMEOUT_S)
                except HeadwaiterError as error:
                    phase.outcomes[f"failed ({type(error).__name__})"] += 1
                    return
                calls_s.append((started_s, time.monotonic()))
                assert result.pooled is not None
                right = np.abs(result.pooled[0] - self._expected[name][index]).max() <= _TOLERANCE
                phase.outcomes["right" if right and result.model.name == name else "wrong"] += 1

            async def mixed(number: int) -> None:
                chosen = random.Random(number)
                while weights is not None and time.monotonic() < end_s:
                    await call(chosen.choices(_NAMES, weights)[0], chosen, phase.calls_s)
                    if pause_s:
                        await asyncio.sleep(chosen.expovariate(1 / pause_s))

            async def pinned() -> None:
                chosen = random.Random(-1)
                while time.monotonic() < end_s:
                    await asyncio.gather(call(_PINNED, chosen, phase.pinned_s), asyncio.sleep(_PINNED_INTERVAL_S))

            await asyncio.gather(pinned(), *map(mixed, range(_CALLERS)))
        return phase

    def loads(self) -> tuple[int, int, dict[str, float]]:
        """Return the number of loads and of evictions, and the mean seconds of a load of each model."""
        with Client(self._server.address) as client:
            models = {each.name: each for each in client.models()}.values()
        means = {each.name: each.loading_s / each.loads for each in models if each.loads}
        return sum(each.loads for each in models), sum(each.evictions for each in models), means


async def _watched(server: RunningServer, work: Callable[[], Coroutine[Any, Any, Phase]]) -> tuple[Phase, float, int]:
    """Return a phase, the largest memory of the server in it in MiB, and the most loads that ended during one call."""
    peak_mib, times_s, loads = 0.0, list[float](), list[int]()
    async with AsyncClient(server.address) as client:

        async def look() -> None:
            loads.append(sum({each.name: each.loads for each in await client.models()}.values()))
            times_s.append(time.monotonic())

        await look()
        running = asyncio.ensure_future(work())
        while not running.done():
            peak_mib = max(peak_mib, memory_mib("VmRSS", server.process.pid))
            await look()
            await asyncio.wait([running], timeout=_POLL_S)
    phase = running.result()
    seen = [[loads[bisect(times_s, at_s) - 1] for at_s in call_s] for call_s in phase.calls_s]
    return phase, peak_mib, max(after - before for before, after in seen)


def main() -> None:
    """Run the study."""
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--seconds", type=float, default=200.0, help="seconds of the mix by Zipf's law")
    seconds = flags.parse_args().seconds
    expected, zipf = make_models(), [1 / rank for rank in range(1, _MODELS + 1)]
    size = describe(FoundVersion("a", 1, _FOLDER / _PINNED / "1"), Settings(models=_FOLDER, provider="cpu")).size_bytes
    limit, serving = _FIT * size, partial(logged_server, None, "--models", str(_FOLDER))
    print(f"each model {size / 2**20:.0f} MiB, limit {limit / 2**20:.0f} MiB")
    with serving() as server:
        callers = Callers(server, expected)
        asyncio.run(callers.run(_QUIET_S, None)).show("all models loaded, pinned model alone")
        asyncio.run(callers.run(_LOADED_S, zipf)).show("all models loaded, Zipf's mix")
        print(f"memory {memory_mib('VmHWM', server.process.pid):.0f} MiB")
    settings = _FOLDER / _PINNED / "settings.json"
    pinned = settings.read_text()
    settings.unlink()
    try:
        with serving("--load", "on-demand") as server:
            empty_mib = memory_mib("VmRSS", server.process.pid)
    finally:
        settings.write_text(pinned)
    with serving("--load", "on-demand", "--max-model-bytes", str(limit)) as server:
        callers = Callers(server, expected)
        asyncio.run(callers.run(_QUIET_S, None)).show("on demand, pinned model alone")
        before = (0, 0)
        for name, weights, phase_s, pause_s in (
            ("Zipf's mix", zipf, seconds, _PAUSE_S),
            ("storm", [1.0] * _MODELS, _STORM_S, 0.0),
        ):
            phase, peak_mib, most = asyncio.run(_watched(server, lambda: callers.run(phase_s, weights, pause_s)))  # noqa: B023
            phase.show(f"on demand, {name}")
            loads, evictions, means = callers.loads()
            least_s, most_s = min(means.values()), max(means.values())
            print(
                f"  {60 * (loads - before[0]) / phase_s:.1f} loads a minute, at most {most} of them during one call, "
                f"{evictions - before[1]} evictions; a load takes {least_s:.2f} to {most_s:.2f} s; "
                f"memory {peak_mib:.0f} MiB, of which {empty_mib:.0f} without models: models took "
                f"{(peak_mib - empty_mib) / (limit / 2**20):.2f} of the limit"
            )
            before = loads, evictions


if __name__ == "__main__":
    main()
