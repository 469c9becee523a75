"""A simulated graph with a known cost, for the tests of calibration."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from headwaiter_server.runtime.graph import GraphOutputs, at_once
from headwaiter_server.runtime.model import Model
from headwaiter_server.runtime.packing import PackedBatch
from headwaiter_server.runtime.shape_buckets import round_up_to_buckets
from headwaiter_server.scheduling.cost import CostModel, Shape
from tests.support.server.stand_ins import model as stand_in

GATHERED = CostModel(launch_s=2e-4, token_s=1e-5, padded_s=4e-7, cell_s=2e-8)
VARYING = CostModel(launch_s=2e-3, token_s=1e-6, padded_s=0.0, cell_s=2e-9, variable_length=True)


class SimulatedGraph:
    """A graph with its own clocks, on which a batch takes the time that a cost model predicts.

    Attributes:
        now_s: CPU time of the thread that runs the graph.
        stolen_s: seconds in which other programs held the core of the thread.
        next_stolen_s: returns how long other programs hold the core during the next batch.
        ran: shapes of the batches that ran.
        most_tokens: batches with more tokens fail.
        most_sequences: batches with more sequences fail, after rounding as on a GPU.
    """

    hidden_is_optional = True
    cuda_graphs = None
    turn = staticmethod(at_once)
    on_gpu = False

    def __init__(self, cost: CostModel) -> None:
        self.now_s = self.stolen_s = 0.0
        self.next_stolen_s: Callable[[], float] = lambda: 0.0
        self.ran: list[Shape] = []
        self.most_tokens = 1 << 20
        self.most_sequences: int | None = None
        self._cost = cost
        self.variable_length = cost.variable_length

    def thread_time(self) -> float:
        return self.now_s

    def perf_counter(self) -> float:
        return self.now_s + self.stolen_s

    def prepare(self, batch: PackedBatch) -> PackedBatch:
        return batch

    def run(self, batch: PackedBatch, *, hidden: bool) -> GraphOutputs:
        if batch.tokens > self.most_tokens:
            raise RuntimeError("out of memory")
        if self.most_sequences is not None and round_up_to_buckets(batch).sequences > self.most_sequences:
            raise RuntimeError("invalid configuration argument")
        self.ran.append(Shape.of(batch.lengths.tolist(), hidden=hidden))
        self.now_s += self._cost.seconds(*self.ran[-1])
        self.stolen_s += self.next_stolen_s()
        return GraphOutputs(None, None)


def simulated_model(folder: Path, cost: CostModel, width: int = 2, **changes: Any) -> tuple[Model, SimulatedGraph]:
    graph: Any = SimulatedGraph(cost)
    graph.on_gpu = changes.get("provider") == "cuda"
    return replace(stand_in(folder, max_tokens=512, heads=12, width=width), graph=graph, **changes), graph
