"""The figures of one run, which the tables and the JSON file are made of."""

import json
import math
from dataclasses import asdict, dataclass, field
from typing import Any

from bench.studies.client import ClientStreaming
from bench.studies.failover import Failover
from bench.studies.front_end import FrontEnd
from bench.studies.int8 import Int8
from bench.studies.open_loop import OpenLoop
from bench.studies.overheads import MetricsCost, PoisonCost, SingleRequest
from bench.studies.planning_cost import PlanningCost
from bench.studies.shapes import MixedShapes
from bench.studies.throughput import Throughput
from bench.studies.tokenizing import Tokenizing


@dataclass
class Figures:
    """The figures of the studies that ran; the others are empty or None."""

    rounds: int
    throughput: list[Throughput] = field(default_factory=list)
    open_loops: list[OpenLoop] = field(default_factory=list)
    single_request: SingleRequest | None = None
    metrics: MetricsCost | None = None
    poison: PoisonCost | None = None
    front_end: FrontEnd | None = None
    client: ClientStreaming | None = None
    failover: Failover | None = None
    planning: list[PlanningCost] = field(default_factory=list)
    shapes: list[MixedShapes] = field(default_factory=list)
    int8: Int8 | None = None
    tokenizing: list[Tokenizing] = field(default_factory=list)

    def to_json(self) -> str:
        """Return all figures of all rounds as JSON; null stands for NaN."""
        return json.dumps(asdict(self, dict_factory=_without_nan), indent=1, ensure_ascii=False) + "\n"


def _without_nan(items: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: None if isinstance(value, float) and math.isnan(value) else value for name, value in items}
