"""A module that cannot be packed is padded, with equal results in all batches that its bundle allows."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from headwaiter_export import export_module
from headwaiter_export.bundle.atomic_folder import BundleError
from headwaiter_export.bundle.graphs import MODULE_GRAPHS, PADDED_GRAPHS, GraphPlan
from headwaiter_export.bundle.padding import BATCHES, largest_arrays
from headwaiter_export.cli import main
from headwaiter_export.config.field_checks import ConfigError
from headwaiter_export.encoder.padded_module import PaddedModuleEncoder
from headwaiter_export.graphs.float16 import in_float16
from headwaiter_export.graphs.padded import Padded
from headwaiter_export.graphs.tracing import write_graph
from headwaiter_proto.encoder_pb2 import (
    ISOLATION_MIXED,
    ISOLATION_ONE_LENGTH,
    ISOLATION_ONE_SEQUENCE,
    POOLING_NONE,
    POOLING_OWN,
    Isolation,
)
from headwaiter_proto.manifest_pb2 import LOWERING_PADDED
from headwaiter_server.runtime.bundle import Bundle
from headwaiter_server.runtime.graph import EncoderGraph, GraphOutputs
from headwaiter_server.runtime.model import open_model
from headwaiter_server.runtime.packing import pack
from tests.support.export.helpers import cosines
from tests.support.export.own_modules import (
    IDS,
    LABELS,
    MAX_TOKENS,
    PADDED,
    REFUSED,
    VOCABULARY,
    Classifier,
    MaskedTokens,
    Tokens,
    draw_sequences,
    own_outputs,
    random_module,
)
from tests.support.oracle import Array
from tests.support.tiers import exhaustive

pytestmark = pytest.mark.usefixtures("runs_graphs")

GRAPH = "padded.fp32.onnx"
FP32: list[GraphPlan] = [MODULE_GRAPHS[0], PADDED_GRAPHS[0]]
# One module of each isolation, of each output, and of each part that recognises what cannot be packed.
FEW = ["capped", "positions_of_positions", "masked_convolution", "masked_vectors", "scaled_by_batch", "token_logits"]
LENGTHS = (9, 2, MAX_TOKENS, 9, 5, 2, MAX_TOKENS - 1, 9, 1)


def outputs_of(graph: EncoderGraph, sequences: list[Array]) -> list[Array]:
    """Return the rows, the logits or the vector of each sequence of a batch."""
    batch = pack(sequences)
    outputs: GraphOutputs = graph.run(batch, hidden=True)
    if outputs.logits is not None:
        return [rows if len(rows) > 1 else rows[0] for rows in outputs.logits]
    if outputs.hidden is None:
        assert outputs.pooled is not None
        return [*outputs.pooled]
    return batch.split(outputs.hidden)


def error(actual: list[Array], expected: list[Array]) -> float:
    """Return the largest difference, relative to the largest number."""
    scale = max(float(np.abs(each).max()) for each in expected)
    return max(float(np.abs(one - other).max()) for one, other in zip(actual, expected, strict=True)) / scale


@pytest.mark.parametrize("name", [*FEW, *exhaustive(*(name for name in PADDED if name not in FEW))])
def test_a_padded_module_gives_its_own_results_in_the_batches_that_it_allows(name: str, tmp_path: Path) -> None:
    make, takes, isolation, reason = PADDED[name]
    module = random_module(make)
    lines: list[str] = []
    export_module(module, tmp_path / "bundle", max_tokens=MAX_TOKENS, plans=FP32, report=lines.append, **takes)
    manifest = Bundle.open(tmp_path / "bundle").manifest
    assert [(graph.file, graph.lowering) for graph in manifest.graphs] == [(GRAPH, LOWERING_PADDED)]
    assert manifest.padding.isolation == isolation
    assert reason in manifest.padding.reason
    assert any(manifest.padding.reason in line for line in lines)
    sequences = draw_sequences(takes, LENGTHS)
    expected = [own_outputs(module, each) for each in sequences]
    graph = EncoderGraph.open(tmp_path / "bundle" / GRAPH, "cpu", threads=1)
    run = partial(outputs_of, graph)
    assert error([run([each])[0] for each in sequences], expected) < 1e-6
    equal = [i for i, each in enumerate(sequences) if len(each) == 9]
    in_one_length = error(run([sequences[i] for i in equal]), [expected[i] for i in equal])
    mixed = error(run(sequences), expected)
    assert (in_one_length < 1e-6) == (isolation in (ISOLATION_MIXED, ISOLATION_ONE_LENGTH))
    assert (mixed < 1e-6) == (isolation == ISOLATION_MIXED)
    # A server runs the golden inputs in these batches alone.
    model = open_model(tmp_path / "bundle", "cpu", "auto", threads=1)
    assert model.graph_file == GRAPH
    assert max(model.self_check.pooled_max_abs, model.self_check.logits_max_relative) < 1e-5


class SumOfLateRows(nn.Module):
    """Adds the rows from the `first` one on, without a mask."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self.first = first
        self.embedding = nn.Embedding(VOCABULARY, 8)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        is_late = (torch.arange(ids.shape[1]) >= self.first)[:, None]
        rows: torch.Tensor = x + (x * is_late).sum(1, keepdim=True)
        return rows


@pytest.mark.parametrize(
    ("first", "max_tokens", "isolation"), [(200, 600, ISOLATION_ONE_LENGTH), (1500, 2048, ISOLATION_ONE_SEQUENCE)]
)
def test_padding_that_changes_long_sequences_alone_keeps_sequences_apart(
    first: int, max_tokens: int, isolation: Isolation, tmp_path: Path
) -> None:
    module, lines = random_module(partial(SumOfLateRows, first)), list[str]()
    export_module(module, tmp_path / "bundle", max_tokens=max_tokens, plans=FP32, report=lines.append, **IDS)
    assert Bundle.open(tmp_path / "bundle").manifest.padding.isolation == isolation
    assert f"padded: {BATCHES[isolation]}" in lines


@pytest.mark.parametrize("name", ["masked", *exhaustive("masked_convolution", "masked_vectors")])
def test_the_graph_in_fp16_gives_the_results_of_the_module(name: str, tmp_path: Path) -> None:
    make, takes, *_ = PADDED[name]
    module, sequences = random_module(make), draw_sequences(takes, (9, 9, 9))
    encoder = PaddedModuleEncoder.padded(module, "", None, max_tokens=MAX_TOKENS, **IDS)
    with torch.no_grad(), in_float16(encoder) as half:
        write_graph(half, Padded, tmp_path / "fp16.onnx")
    rows = np.stack(outputs_of(EncoderGraph.open(tmp_path / "fp16.onnx", "cpu", threads=1), sequences))
    assert cosines(rows.astype(np.float32), np.stack([own_outputs(module, each) for each in sequences])).min() > 0.999


def test_a_module_of_two_precisions_has_no_graph_in_fp16(tmp_path: Path) -> None:
    """The weights of its mixture are float32, because it divides whole numbers."""
    lines: list[str] = []
    module = random_module(PADDED["masked_mixer"][0])
    export_module(module, tmp_path / "bundle", max_tokens=9, plans=PADDED_GRAPHS, report=lines.append, **IDS)
    assert any("no fp16 graph" in line and "LayerNormalization" in line for line in lines)
    assert [graph.file for graph in Bundle.open(tmp_path / "bundle").manifest.graphs] == [GRAPH]
    assert not [*(tmp_path / "bundle").glob("*fp16*")]


class ConvolutionOfRows(nn.Module):
    """Adds to the rows of a layer a convolution of each of their channels."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, "gelu", batch_first=True)
        self.convolution = nn.Conv1d(16, 16, 5, padding=2, groups=16)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.layer(self.embedding(ids))
        rows: torch.Tensor = x + self.convolution(x.transpose(1, 2)).transpose(1, 2)
        return rows


def test_a_convolution_has_a_graph_in_fp16(tmp_path: Path) -> None:
    """ONNX Runtime's optimisation for CPUs, which servers on CUDA do not run, crashes the process on this graph."""
    module = random_module(ConvolutionOfRows)
    export_module(module, tmp_path / "bundle", max_tokens=9, plans=PADDED_GRAPHS, **IDS)
    assert {graph.file for graph in Bundle.open(tmp_path / "bundle").manifest.graphs} == {GRAPH, "padded.fp16.onnx"}


def test_a_model_of_logits_has_labels_and_no_vectors(tmp_path: Path) -> None:
    module = random_module(partial(Classifier, per_token=True))
    export_module(module, tmp_path / "bundle", max_tokens=MAX_TOKENS, labels=LABELS, plans=FP32, **IDS)
    manifest = Bundle.open(tmp_path / "bundle").manifest
    assert (manifest.pooling, manifest.width, manifest.without_rows) == (POOLING_NONE, 0, True)
    assert (tuple(manifest.head.labels), manifest.head.per_token) == (LABELS, True)
    with pytest.raises(ConfigError, match="3 logits"):
        export_module(module, tmp_path / "other", max_tokens=MAX_TOKENS, labels=("one",), plans=FP32, **IDS)


def test_a_module_of_vectors_gives_them_at_unit_length(tmp_path: Path) -> None:
    module = random_module(PADDED["masked_vectors"][0])
    export_module(module, tmp_path / "bundle", max_tokens=MAX_TOKENS, normalize=True, plans=FP32, **IDS)
    bundle = Bundle.open(tmp_path / "bundle")
    assert (bundle.manifest.pooling, bundle.manifest.normalized) == (POOLING_OWN, True)
    vectors = bundle.golden().outputs.pooled
    assert vectors is not None
    assert np.abs(np.linalg.norm(vectors, axis=1) - 1).max() < 1e-6


@pytest.mark.parametrize(
    "name",
    ["branch", "baked_length", *exhaustive(*(each for each in REFUSED if each not in ("branch", "baked_length")))],
)
def test_a_module_that_cannot_be_traced_is_refused_with_place_and_reason(name: str, tmp_path: Path) -> None:
    make, facts = REFUSED[name]
    with pytest.raises((BundleError, ConfigError)) as refused:
        export_module(random_module(make), tmp_path / "bundle", max_tokens=MAX_TOKENS, **IDS)
    for fact in facts:
        assert fact in str(refused.value)
    assert not (tmp_path / "bundle").exists()


def test_graphs_chosen_by_the_caller_are_packed_or_padded(tmp_path: Path) -> None:
    export_module(random_module(Tokens), tmp_path / "padded", max_tokens=9, plans=PADDED_GRAPHS, **IDS)
    assert {graph.file for graph in Bundle.open(tmp_path / "padded").manifest.graphs} == {GRAPH, "padded.fp16.onnx"}
    with pytest.raises(BundleError, match=r"without padding: .*own_modules\.py:"):
        export_module(random_module(MaskedTokens), tmp_path / "packed", max_tokens=9, plans=MODULE_GRAPHS, **IDS)


def test_the_largest_arrays_are_measured_per_token_and_per_pair(tmp_path: Path) -> None:
    """A block has rows of 40 numbers in its feed-forward part and of 48 before it is cut, and 3 heads."""
    encoder = PaddedModuleEncoder.padded(random_module(MaskedTokens), "", max_tokens=MAX_TOKENS, **IDS)
    with torch.no_grad():
        write_graph(encoder, Padded, tmp_path / GRAPH)
    files = {*tmp_path.iterdir()}
    shorter, longer = draw_sequences(IDS, (20, 40))
    assert largest_arrays(tmp_path / GRAPH, (shorter, longer)) == (48, 3)
    assert {*tmp_path.iterdir()} == files


CODE = """
import torch
from torch import nn

class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 3)

    def forward(self, x, attention_mask=None):
        mask = torch.ones(x.shape[:2]) if attention_mask is None else attention_mask.float()
        return self.linear((x * mask[..., None]).sum(1))

def mixer():
    return Mixer()
"""


class NeedsNamedMask(MaskedTokens):
    """Fails without its argument `attention_mask`, which has a default."""

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        assert attention_mask is not None
        return super().forward(ids, attention_mask)


def test_a_module_that_does_not_run_without_its_named_mask_is_padded(tmp_path: Path) -> None:
    export_module(random_module(NeedsNamedMask), tmp_path / "bundle", vocabulary_size=VOCABULARY, max_tokens=MAX_TOKENS)
    assert "without attention_mask" in Bundle.open(tmp_path / "bundle").manifest.padding.reason


def test_the_command_exports_a_module_of_logits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "code.py").write_text(CODE)
    flags = ["--feature-width", "8", "--max-tokens", "12", "--labels", *LABELS]
    assert main(["module", f"{tmp_path / 'code.py'}:mixer", "-o", str(tmp_path / "bundle"), *flags]) == 0
    printed = capsys.readouterr().out
    assert "padded: the module gives logits" in printed
    manifest = Bundle.open(tmp_path / "bundle").manifest
    assert (manifest.name, manifest.padding.isolation, len(manifest.graphs)) == ("mixer", ISOLATION_MIXED, 1)
    # ONNX Runtime cannot run the mixer's product of float16 and float32.
    assert "fp16: the bundle has no fp16 graph" in printed
