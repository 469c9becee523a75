"""Encoders of many forms run on the CUDA provider with the predicted kernels, few copies and few waits."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from headwaiter_server.runtime.attention_routes import Route
from tests.support.cuda_double import build
from tests.support.cuda_double.environment import double_in, run_on
from tests.support.cuda_double.log import (
    Event,
    Log,
    Product,
    between,
    copies,
    invalid_launches,
    kernel_names,
    of,
    waits,
)
from tests.support.cuda_double.models import OTHER_FORMS
from tests.support.shared_folders import SharedFolders
from tests.support.tiers import exhaustive

if reason := build.why_unavailable():
    pytest.skip(reason, allow_module_level=True)

CAPABILITIES = ("7.5", "8.0", "9.0", "12.0")
# Graphs by the name of their form and their precision, with the kernels of attention on compute capability 7.5, and on
# 8.0 and newer.
FLASH, EFFICIENT, SOFTMAX = "flash_fwd_kernel", "attention_kernel_batched_impl", "BiasSoftmaxWarpForward"
KERNELS: Mapping[str, tuple[set[str], set[str]]] = {
    "bert fp16": ({EFFICIENT}, {FLASH}),
    "bert fp32": ({EFFICIENT}, {EFFICIENT}),
    "causal fp16": ({EFFICIENT}, {EFFICIENT}),
    "local fp16": ({EFFICIENT}, {EFFICIENT, FLASH}),
    "alibi fp32": ({EFFICIENT}, {EFFICIENT}),
    "t5 fp16": ({EFFICIENT}, {EFFICIENT}),
    "deberta fp16": ({SOFTMAX}, {SOFTMAX}),
    "registers fp16": ({EFFICIENT}, {FLASH}),
    "experts fp32": ({EFFICIENT}, {EFFICIENT}),
    "decoder fp16": ({EFFICIENT}, {EFFICIENT, FLASH}),
    "first-row fp16": ({EFFICIENT, SOFTMAX}, {FLASH, SOFTMAX}),
    "target fp16": ({EFFICIENT, SOFTMAX}, {EFFICIENT, FLASH, SOFTMAX}),
    "sparse fp16": ({EFFICIENT}, {FLASH}),
    "large-heads fp16": ({EFFICIENT}, {FLASH}),
    "masked-tokens fp16": ({EFFICIENT}, {FLASH}),
    "convolution fp16": ({EFFICIENT}, {FLASH}),
    "sounds fp16": ({EFFICIENT}, {FLASH}),
    "sounds-by-channel fp16": ({EFFICIENT}, {FLASH}),
    "gated-sounds fp16": ({SOFTMAX}, {SOFTMAX}),
    "capped fp16": ({SOFTMAX}, {SOFTMAX}),
    "attention-pooling fp16": ({EFFICIENT}, {FLASH}),
}
# A graph with a kernel has this route. Several kernels count as the one that comes first; of a graph with a first row,
# the softmax is that of one query for each sequence, which has no route.
_WITHOUT_ROUTE = {"first-row fp16": {SOFTMAX}}
ROUTES = {SOFTMAX: Route.GATHERED, EFFICIENT: Route.MEMORY_EFFICIENT, FLASH: Route.FLASH}
# What the check of GPUs reads from the lines that ONNX Runtime prints.
_PRINTED = {FLASH: "flash", EFFICIENT: "memory-efficient"}
# The operators that may run on the CPU, because they compute sizes of arrays from the shapes of inputs.
OPERATORS_ON_CPU = {"Add", "Cast", "Concat", "Mul", "Reshape", "Squeeze", "Sub"}
MOST_BYTES_ON_CPU = 40


class Run:
    """What graphs did on the devices of the double."""

    def __init__(self, folder: Path) -> None:
        self.found: Mapping[str, Any] = json.loads((folder / "found.json").read_text())
        self.events = Log(folder / "cuda.log").events()

    def batches(self, graph: str) -> Iterator[tuple[str, int, list[Event]]]:
        """Yield the name, the device and the events of each batch of a graph."""
        for device in range(len(CAPABILITIES)):
            for batch in self.found[f"{graph} {device}"]["inputs"]:
                mark = f"{graph} {device} {batch}"
                yield batch, device, between(self.events, mark, f"{mark} end")


@cache
def _read(folder: Path) -> Run:
    return Run(folder)


_OTHERS = [graph for graph in KERNELS if graph.split()[0] in OTHER_FORMS]
each_graph = pytest.mark.parametrize(
    "graph", [*(graph for graph in KERNELS if graph not in _OTHERS), *exhaustive(*_OTHERS)]
)


@pytest.fixture
def run(graph: str, request: pytest.FixtureRequest, shared_folders: SharedFolders) -> Run:
    """What the graphs of every run did, or those of exhaustive tests if the test is about one of them."""
    models = "other_forms" if graph.split()[0] in OTHER_FORMS else "forms"
    forms: Mapping[str, Path] = request.getfixturevalue(models)

    def run_forms(folder: Path) -> None:
        folder.mkdir()
        double = double_in(folder, devices=len(CAPABILITIES), capability=CAPABILITIES)
        folders = [f"{name}={path}" for name, path in forms.items()]
        (folder / "found.json").write_text(json.dumps(run_on(double, "forms", str(len(CAPABILITIES)), *folders)))

    return _read(shared_folders.get(f"cuda-{models}-run", run_forms))


@each_graph
def test_every_graph_runs_on_every_device(run: Run, graph: str) -> None:
    assert run.found.keys() >= {f"{graph} {device}" for device in range(len(CAPABILITIES))}


@each_graph
def test_attention_launches_the_predicted_kernels(run: Run, graph: str) -> None:
    for _, device, events in run.batches(graph):
        expected = KERNELS[graph][device > 0]
        assert set(ROUTES) & set(kernel_names(events)) == expected
        routed = expected - _WITHOUT_ROUTE.get(graph, set())
        found = run.found[f"{graph} {device}"]
        assert found["route"] == next(ROUTES[kernel] for kernel in ROUTES if kernel in routed)
        printed = [name for kernel, name in _PRINTED.items() if kernel in expected]
        assert found["printed"] == (", ".join(printed) or "gathered")


@each_graph
def test_the_cpu_computes_only_sizes_of_arrays(run: Run, graph: str) -> None:
    for device in range(len(CAPABILITIES)):
        nodes = run.found[f"{graph} {device}"]["nodes"]
        assert {provider for provider, *_ in nodes} <= {"CPUExecutionProvider"}
        assert {operator for _, operator, _ in nodes} <= OPERATORS_ON_CPU
        assert max(size for *_, size in nodes) <= MOST_BYTES_ON_CPU
        assert not {"MemcpyFromHost", "MemcpyToHost"} & set(run.found[f"{graph} {device}"]["operators"])


@each_graph
def test_only_inputs_are_copied_without_a_wait_and_only_outputs_come_back(run: Run, graph: str) -> None:
    for batch, device, events in run.batches(graph):
        found = run.found[f"{graph} {device}"]
        copied = [copy.bytes for copy in copies(events, "pageable to device")]
        assert Counter(copied) == Counter(found["inputs"][batch])
        assert not any(copy.waits for copy in copies(events) if copy.target == "device")
        assert len(copies(events, "device to pageable")) == found["outputs"]
        assert not copies(events, "device to pinned")


@each_graph
def test_a_batch_whose_inputs_and_outputs_are_on_the_device_copies_neither(run: Run, graph: str) -> None:
    bound, ordinary = (
        between(run.events, f"{graph} 0 {batch}", f"{graph} 0 {batch} end") for batch in ("bound", "one")
    )
    # What a graph itself copies stays: a few bytes inside the device, or the size of an array.
    own = [(copy.direction, copy.bytes) for copy in copies(ordinary) if "pageable" not in copy.direction]
    assert [(copy.direction, copy.bytes) for copy in copies(bound)] == own
    assert kernel_names(bound) == kernel_names(ordinary)


@each_graph
def test_a_batch_waits_once_for_each_output_and_twice_at_its_end(run: Run, graph: str) -> None:
    for _, device, events in run.batches(graph):
        assert len(waits(events)) == run.found[f"{graph} {device}"]["outputs"] + 2


@each_graph
def test_the_number_of_products_and_launches_does_not_depend_on_the_lengths(run: Run, graph: str) -> None:
    counts = [(len(of(Product, events)), len(kernel_names(events))) for _, _, events in run.batches(graph)]
    assert len({products for products, _ in counts}) == 1
    # Products with one row have kernels of their own: eight of a decoder's first row, and three after the attention of
    # a pooling. The norm of channels has three other kernels for a batch of one sequence.
    most = {"first-row": 8, "attention-pooling": 3, "sounds-by-channel": 3}.get(graph.split()[0], 1)
    assert max(launches for _, launches in counts) - min(launches for _, launches in counts) <= most


@pytest.mark.parametrize("graph", ["causal fp16", *exhaustive("alibi fp32")])
def test_no_launch_is_invalid_even_for_the_longest_sequence_and_for_the_most_sequences(run: Run, graph: str) -> None:
    assert {"longest", "most sequences"} <= {batch for batch, *_ in run.batches(graph)}
    assert [(launch.name, launch.grid, launch.invalid) for launch in invalid_launches(run.events)] == []
