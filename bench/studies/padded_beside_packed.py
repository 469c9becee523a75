"""Serve a model that pads beside a packed one on one core: latency, a swap under load, wrong vectors, and memory.

    python -m bench.studies.padded_beside_packed [--padded-load SHARE]

The packed model is all-MiniLM-L6-v2. The padded one has a convolution and half of the layers of all-MiniLM-L6-v2, so
its batches hold sequences of one length. Each round starts a new server. It measures the throughput of each model alone
in a closed loop, and sends Poisson arrivals to the packed model at half of its throughput: alone, beside arrivals to
the padded model at `--padded-load` of that model's throughput, and alone with more of them, so that the device has the
load of both models. Then a second version of the padded model replaces the first one under both loads. Each vector is
compared with that of PyTorch, for the version that the reply names. The predicted memory is that of the server after
its start, and of one longest sequence of each model.
"""

import argparse
import asyncio
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import cycle, takewhile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from torch import Tensor, nn
from typing_extensions import override

from bench.loads.traces import MEDIAN_30, Ids
from bench.measure import LOG, counters
from bench.processes import LOAD_CORE, SERVER_CORE, memory_mib, pin
from bench.rounds import Rounds
from headwaiter_client import AsyncClient, Client, HeadwaiterError
from headwaiter_client.cli.load_generator import Load, Reply, Send, closed_loop, open_loop, poisson_arrivals
from headwaiter_export import export_module
from headwaiter_export.bundle.graphs import PADDED_GRAPHS
from testbed.minilm import bundle, checkpoint
from testbed.server_process import RunningServer, running_server

PACKED, PADDED = "packed", "padded"
_PACKED_LOAD, _PADDED_LOAD = 0.5, 0.15
_ROUNDS, _SEQUENCES, _REQUESTERS = 3, 200, 16
_CLOSED_REQUESTS, _OPEN_S = 300, 20.0
# On a busy machine, a queue may be long for a while; a request that fails would be a fault of the swap.
_TIMEOUT_S = 120.0
_MAX_TOKENS, _VOCABULARY, _WIDTH = 512, 30_522, 384
# All-MiniLM-L6-v2's own vectors have unit length; those of the padded model are of a similar size.
_TOLERANCE = 1e-5


class Convolution(nn.Module):
    """Three layers of all-MiniLM-L6-v2's sizes, and a convolution over the rows."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = nn.Embedding(_VOCABULARY, _WIDTH)
        layer = nn.TransformerEncoderLayer(_WIDTH, 12, 4 * _WIDTH, 0.0, "gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.convolution = nn.Conv1d(_WIDTH, _WIDTH, 5, padding=2, groups=_WIDTH)

    @override
    def forward(self, ids: Tensor) -> Tensor:
        rows: Tensor = self.layers(self.embedding(ids))
        mixed: Tensor = self.convolution(rows.transpose(1, 2))
        return rows + mixed.transpose(1, 2)


@dataclass
class Model:
    """The sequences for a model, and their vectors for each version."""

    name: str
    sequences: list[Ids]
    expected: Mapping[str, list[NDArray[np.float32]]]
    counts: Counter[str] = field(default_factory=Counter)

    def sender(self, client: AsyncClient) -> Send[int]:
        """Return a function that sends a sequence, and counts the answers, failures and wrong vectors."""

        async def send(number: int, _due_s: float) -> Reply:
            ids = self.sequences[number]
            try:
                encoding = await client.encode_tokens([ids], model=self.name)
            except HeadwaiterError as error:
                self.counts["failed"] += 1
                return Reply(len(ids), error)
            difference = np.abs(encoding.pooled[0] - self.expected[encoding.model.version][number]).max()
            self.counts["wrong"] += not difference < _TOLERANCE
            self.counts["answered"] += 1
            self.counts[f"version {encoding.model.version}"] += 1
            return Reply(len(ids))

        return send


def main() -> None:
    """Measure, and print the figures of each round and the medians."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--padded-load", type=float, default=_PADDED_LOAD)
    padded_load = parser.parse_args().padded_load
    pin(LOAD_CORE)
    torch.set_num_threads(1)
    versions = [Convolution(seed).eval() for seed in (1, 2)]
    with TemporaryDirectory() as folder:
        bundles = [Path(folder, str(number)) for number in (1, 2)]
        for version, destination in zip(versions, bundles, strict=True):
            export_module(
                version, destination, max_tokens=_MAX_TOKENS, vocabulary_size=_VOCABULARY, plans=PADDED_GRAPHS[:1]
            )
        packed, padded = _models(versions)
        ratios, equal_load = Rounds(), Rounds()
        for number in range(_ROUNDS):
            models = Path(folder, f"models-{number}")
            shutil.copytree(bundle(), models / PACKED / "1")
            shutil.copytree(bundles[0], models / PADDED / "1")
            p99_ms = _round(number, models, bundles[1], (packed, padded), padded_load)
            ratios.append(p99_ms["beside"] / p99_ms["alone"])
            equal_load.append(p99_ms["beside"] / p99_ms["alone with the load of both"])
        print(
            f"p99 of the packed model, beside the padded one / alone: {ratios:.2f}; "
            f"beside it / alone with the load of both: {equal_load:.2f}"
        )
        for model in (packed, padded):
            print(f"{model.name}: {', '.join(f'{count:,} {what}' for what, count in sorted(model.counts.items()))}")


@torch.inference_mode()
def _models(versions: list[Convolution]) -> tuple[Model, Model]:
    """Return both models with the vectors that PyTorch gives for each sequence alone."""
    minilm = transformers.AutoModel.from_pretrained(checkpoint()).eval()
    first, second = ([*MEDIAN_30.trace(_SEQUENCES, _VOCABULARY, seed).sequences] for seed in (1, 2))
    means = [minilm(torch.from_numpy(ids)[None]).last_hidden_state[0].mean(0) for ids in first]
    packed = {"1": [(mean / mean.norm()).numpy() for mean in means]}
    padded = {
        str(number): [version(torch.from_numpy(ids)[None])[0].mean(0).numpy() for ids in second]
        for number, version in enumerate(versions, 1)
    }
    return Model(PACKED, first, packed), Model(PADDED, second, padded)


def _round(
    number: int, folder: Path, new_version: Path, models: tuple[Model, Model], padded_load: float
) -> dict[str, float]:
    """Measure one server, print the figures, and return the p99 of the packed model in each state, in milliseconds."""
    flags = ["--models", str(folder), "--watch-s", "1", "--provider", "cpu", "--threads", "1"]
    on_core = ["taskset", "-c", str(SERVER_CORE)]
    LOG.parent.mkdir(exist_ok=True)
    with LOG.open("ab") as log, running_server(None, flags, on_core, log=log) as server:
        start_mib = memory_mib("VmRSS", server.process.pid)
        with Client(server.address) as client:
            longest = [client.model(model.name).message.execution.longest_sequence_bytes for model in models]
        predicted_mib = start_mib + sum(longest) / 2**20
        rates = [
            rate * load for rate, load in zip(_capacities(server, models), (_PACKED_LOAD, padded_load), strict=True)
        ]
        p99_ms: dict[str, float] = {}
        states = {
            "alone": rates[:1],
            "beside": rates,
            "alone with the load of both": [rates[0] * (1 + padded_load / _PACKED_LOAD)],
        }
        for state, state_rates in [*states.items()][:: (-1) ** number]:
            before = counters(server.metrics_url)["headwaiter_device_busy_seconds_total"]
            loads = asyncio.run(_loads(server.address, models, state_rates, number))
            busy = (counters(server.metrics_url)["headwaiter_device_busy_seconds_total"] - before) / _OPEN_S
            p50, p99_ms[state] = _latencies_ms(loads[0])
            print(
                f"round {number + 1}, {state}: p50 {p50:.0f} ms, p99 {p99_ms[state]:.0f} ms, device {busy:.0%} busy",
                flush=True,
            )
        with Client(server.address) as client:
            for model in models:
                client.encode_tokens([np.arange(1, client.model(model.name).max_tokens + 1)], model=model.name)
        peak_mib = memory_mib("VmHWM", server.process.pid)
        swapped = asyncio.run(_swap(server, folder, new_version, models, rates, number))
        after_mib = memory_mib("VmRSS", server.process.pid)
    print(
        f"round {number + 1}: {rates[0]:.0f} and {rates[1]:.0f} requests/s; swap: "
        f"{sum(len(load.outcomes) - len(load.answered) for load in swapped)} of "
        f"{sum(len(load.outcomes) for load in swapped)} requests failed; memory: {start_mib:.0f} MiB at start, "
        f"predicted {predicted_mib:.0f}, peak {peak_mib:.0f}, after the swap {after_mib:.0f}",
        flush=True,
    )
    return p99_ms


def _capacities(server: RunningServer, models: tuple[Model, Model]) -> list[float]:
    """Return the requests/s of each model alone in a closed loop."""

    async def measure(model: Model) -> float:
        async with AsyncClient(server.address, timeout_s=_TIMEOUT_S) as client:
            numbers = [number % _SEQUENCES for number in range(_CLOSED_REQUESTS)]
            load = await closed_loop(model.sender(client), numbers, _REQUESTERS)
        return len(load.answered) / load.answered_s

    return [asyncio.run(measure(model)) for model in models]


async def _loads(address: str, models: tuple[Model, Model], rates_per_s: list[float], seed: int) -> list[Load]:
    """Send Poisson arrivals to the first models, one rate for each."""
    async with AsyncClient(address, timeout_s=_TIMEOUT_S) as client:
        tasks = []
        for index, (model, rate_per_s) in enumerate(zip(models, rates_per_s, strict=False)):
            arrivals_s = takewhile(
                lambda arrival_s: arrival_s < _OPEN_S, poisson_arrivals(rate_per_s, 2 * seed + index)
            )
            tasks.append(open_loop(model.sender(client), cycle(range(_SEQUENCES)), arrivals_s))
        return await asyncio.gather(*tasks)


async def _swap(
    server: RunningServer,
    folder: Path,
    new_version: Path,
    models: tuple[Model, Model],
    rates_per_s: list[float],
    seed: int,
) -> list[Load]:
    """Replace the padded model's version under both loads, and return the loads."""
    loads = asyncio.create_task(_loads(server.address, models, rates_per_s, seed))
    await asyncio.sleep(_OPEN_S / 10)
    await asyncio.to_thread(shutil.copytree, new_version, folder / PADDED / ".2")
    (folder / PADDED / ".2").rename(folder / PADDED / "2")
    outcomes = await loads
    async with AsyncClient(server.address) as client:
        version = (await client.model(PADDED)).model.version
    assert version == "2", f"the server still serves version {version} after the swap"
    return outcomes


def _latencies_ms(load: Load) -> Any:
    return np.quantile([outcome.latency_s for outcome in load.answered], (0.5, 0.99)) * 1e3


if __name__ == "__main__":
    main()
