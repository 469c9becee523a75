"""Small batches replay CUDA graphs: one copy in, one launch, one copy out, and the numbers of an ordinary run."""

from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.cuda_double.environment import double_in, run_on
from tests.support.cuda_double.log import (
    Allocation,
    Capture,
    Copy,
    Event,
    GraphLaunch,
    Wait,
    between,
    copies,
    of,
)

pytestmark = pytest.mark.usefixtures("_double")

ID_BYTES, ALIGNMENT, MIB = 8, 256, 1 << 20
BATCHES = 2000
CAPTURE_INVALIDATED = 901


@dataclass(frozen=True)
class Finished:
    """What the process on the double found, and its log."""

    found: dict[str, Any]
    events: list[Event]


@pytest.fixture(scope="module")
def graphs(_double: None, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    double = double_in(tmp_path_factory.mktemp("graphs"), devices=2)
    return Finished(run_on(double, "graphs", str(BATCHES)), double.log.events())


def test_every_shape_of_a_model_of_64_tokens_has_a_graph(graphs: Finished) -> None:
    assert graphs.found["warnings"] == []
    assert graphs.found["graphs"] == 53


def test_a_replay_is_one_copy_one_launch_and_one_copy(graphs: Finished) -> None:
    events = between(graphs.events, "replay", "replayed")
    steps = [type(event) for event in events if not isinstance(event, Wait)]
    assert steps == [Copy, GraphLaunch, Copy]
    # B = 4, T = N = 32: the grid of rows, the ids and the positions go in, and the grid and the ids come out.
    grid, ids = 4 * 32 * ID_BYTES, 32 * ID_BYTES
    assert ids % ALIGNMENT == 0
    assert [copy.bytes for copy in copies(events)] == [grid + 2 * ids, grid + ids]


def test_hidden_rows_are_those_of_an_ordinary_run(graphs: Finished) -> None:
    assert graphs.found["hidden"]
    assert of(GraphLaunch, between(graphs.events, "replayed", "with hidden rows")) == []


def test_replays_compute_what_ordinary_runs_compute(graphs: Finished) -> None:
    replays, wrong_ids, wrong_grids = graphs.found["wrong"]
    assert BATCHES / 3 < replays < BATCHES
    assert (wrong_ids, wrong_grids) == (0, 0)
    assert graphs.found["more memory"] == 0


def test_two_models_have_their_own_graphs_and_one_outlives_the_other(graphs: Finished) -> None:
    for case in ("two models in turn", "after the other is closed"):
        replays, *wrong = graphs.found[case]
        assert replays > 0
        assert wrong == [0, 0]


def test_one_number_for_all_graphs_is_noticed_and_the_model_runs_without_graphs(graphs: Finished) -> None:
    (warning,) = graphs.found["one number for all"]
    assert "gives other numbers than an ordinary run" in warning
    assert graphs.found["runs without graphs"] == [0, 0, 0, 0]


def test_a_failed_capture_costs_the_graphs_and_no_batch(graphs: Finished) -> None:
    (warning,) = graphs.found["failed capture"]
    assert "runs without CUDA graphs" in warning
    assert f"CUDA failure {CAPTURE_INVALIDATED}" in warning
    assert "\n" not in warning
    assert graphs.found["after it"] == [0, 0, 0, 0]


def test_another_thread_may_allocate_memory_during_a_capture(graphs: Finished) -> None:
    during = graphs.found["first batches during a capture"]
    assert during["as served"] == [False, 0]
    assert during["without ignoring captures"] == [True, CAPTURE_INVALIDATED]


def test_swaps_need_no_more_memory_and_closed_sessions_keep_only_buffers_for_the_next(graphs: Finished) -> None:
    first, *others = graphs.found["memory after swaps"]
    assert others == [first] * len(others)
    assert graphs.found["memory after all sessions"] < 4 * MIB


def test_no_memory_is_allocated_during_a_capture(graphs: Finished) -> None:
    captures = of(Capture, graphs.events)
    assert len(captures) == 2 * graphs.found["graphs"]
    assert {(capture.error, capture.action) for capture in captures} == {(0, "begin"), (0, "end")}
    for begin, end in zip(captures[::2], captures[1::2], strict=True):
        inside = graphs.events[graphs.events.index(begin) + 1 : graphs.events.index(end)]
        assert not [event for event in inside if isinstance(event, Allocation)]
