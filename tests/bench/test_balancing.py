"""The simulation of replicas agrees with queueing theory, and uses the client's rule."""

import numpy as np
import pytest

from bench.studies.balancing import LOADS, RULES, Calls, Recorded, Simulation, capacity_per_s
from headwaiter_client.transport.replicas import Replicas
from headwaiter_server.scheduling.cost import BatchLimits, CostModel
from tests.support.tiers import exhaustive

# Each sequence runs alone, and takes 10 ms.
ONE_BY_ONE = Recorded(CostModel(10e-3, 0.0, 0.0, 0.0), BatchLimits(tokens=1, cells=1), [1.0], [8])


def test_the_capacity_is_that_of_the_batches() -> None:
    assert capacity_per_s(ONE_BY_ONE) == pytest.approx(100)
    in_batches = Recorded(CostModel(10e-3, 0.0, 0.0, 0.0), BatchLimits(tokens=64, cells=1 << 20), [1.5], [8] * 800)
    assert capacity_per_s(in_batches) == pytest.approx(8 * 100 / 1.5)


@pytest.mark.parametrize("load", [LOADS[0], *exhaustive(*LOADS[1:])])
def test_one_replica_waits_as_long_as_in_the_queue_of_pollaczek_and_khinchine(load: float) -> None:
    simulation = Simulation(ONE_BY_ONE, RULES["by connection"], [1.0])
    simulation.run(load * 100, run_s=150.0 / (1 - load))
    waits_s = np.array(simulation.latencies_s) - 10e-3
    assert np.mean(waits_s) == pytest.approx(load * 10e-3 / (2 * (1 - load)), rel=0.1)


def test_the_rules_choose_as_their_names_say() -> None:
    calls = Calls([Replicas(3, 1, probe_first=False) for _ in range(4)], [[0, 2, 1], [3, 0, 0], [0] * 3, [0] * 3])
    chosen = {name: [rule(calls, caller) for caller in (0, 0, 1, 3)] for name, rule in RULES.items()}
    assert chosen["by connection"] == [0, 0, 1, 0]
    assert chosen["in turn"] == [0, 1, 1, 0]
    assert chosen["fewest of the caller's own calls (the client)"] == [1, 2, 1, 1]
    assert chosen["fewest of all calls"] == [2] * 4
    assert calls.clients[0].next(0.0) == 0
    calls.clients[0].ended(1)
    assert calls.clients[0].next(0.0) == 1


@pytest.mark.exhaustive
def test_a_rule_that_knows_all_calls_avoids_a_slow_replica() -> None:
    slow = [2.0] + [1.0] * 9
    found = {name: Simulation(ONE_BY_ONE, rule, slow).run(0.7 * 1000, run_s=20.0) for name, rule in RULES.items()}
    assert [name for name, each in found.items() if each.overloaded] == ["by connection", "in turn"]
    assert found["fewest of all calls"].p99_ms < found["in turn"].p99_ms / 5
