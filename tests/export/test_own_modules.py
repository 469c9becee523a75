"""A module of the caller is packed, with equal results alone and beside others, or refused with the reason."""

import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from headwaiter_export import export_module
from headwaiter_export.bundle.graphs import MODULE_GRAPHS
from headwaiter_export.cli import main
from headwaiter_export.config.field_checks import ConfigError
from headwaiter_export.encoder.own_module import ModuleEncoder, run_module
from headwaiter_export.encoder.reference import Reference
from headwaiter_export.graphs.float16 import in_float16
from headwaiter_export.graphs.packed_cuda import PackedCuda, PackedCudaSeparateNorms
from headwaiter_export.graphs.ranges import ActivationRanges
from headwaiter_export.graphs.tracing import write_graph
from headwaiter_proto.encoder_pb2 import POOLING_LAST
from headwaiter_server.runtime.bundle import Bundle
from headwaiter_server.runtime.model import open_model
from tests.export.conftest import Refused
from tests.support.checkpoints import VOCABULARY as TEXT_VOCABULARY
from tests.support.checkpoints import save_tokenizer
from tests.support.export.helpers import (
    assert_close_to_scale,
    assert_others_change_no_bit,
    cosines,
    operators_of,
    run_graph,
)
from tests.support.export.own_modules import (
    IDS,
    MAX_TOKENS,
    PACKED,
    VOCABULARY,
    WIDTH,
    Tokens,
    WithMask,
    draw_sequences,
    random_module,
    stack,
)
from tests.support.tiers import exhaustive

pytestmark = pytest.mark.usefixtures("runs_graphs")

GRAPH = "packed-cpu.fp32.onnx"
PACKED_CPU = [plan for plan in MODULE_GRAPHS if plan.file == GRAPH]
# One module of each path through the export.
FEW = ["added_causal", "causal_window", "relative_table", "grouped_einsum", "cut_rotary", "with_mask", "features"]
LENGTHS = (9, 2, MAX_TOKENS, 5, MAX_TOKENS - 1, 3)


@pytest.mark.parametrize("name", [*FEW, *exhaustive(*(name for name in PACKED if name not in FEW))])
def test_a_packed_module_gives_its_own_rows_alone_and_beside_others(name: str, tmp_path: Path) -> None:
    make, takes = PACKED[name]
    module = random_module(make)
    export_module(module, tmp_path / "bundle", max_tokens=MAX_TOKENS, plans=PACKED_CPU, **takes)
    sequences = draw_sequences(takes, LENGTHS)
    with torch.inference_mode():
        expected = [run_module(module, torch.from_numpy(each)).numpy() for each in sequences]
    run = partial(run_graph, tmp_path / "bundle" / GRAPH, "cpu")
    mixed = run(sequences)
    assert_close_to_scale(mixed.hidden, np.concatenate(expected), 1e-6)
    assert_close_to_scale(mixed.pooled, np.stack([rows.mean(0) for rows in expected]), 1e-6)
    for sequence, rows in zip(sequences, expected, strict=True):
        assert_close_to_scale(run([sequence]).hidden, rows, 1e-6)
    assert_others_change_no_bit(run, sequences, 1 if "vocabulary_size" in takes else 1e4)
    # A server accepts the bundle.
    open_model(tmp_path / "bundle", "cpu", "auto", threads=1)


def test_a_compiled_module_is_packed_without_compiling_it(tmp_path: Path) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the module was compiled")

    module = random_module(WithMask)
    (ids,) = draw_sequences(IDS, (7,))
    with torch.inference_mode():
        expected = run_module(module, torch.from_numpy(ids)).numpy()
    module.get_submodule("blocks.0").compile(backend=refuse)
    compiled: Any = torch.compile(module, backend=refuse)
    export_module(compiled, tmp_path / "bundle", max_tokens=MAX_TOKENS, plans=PACKED_CPU, **IDS)
    assert Bundle.open(tmp_path / "bundle").manifest.name == "WithMask"
    assert_close_to_scale(run_graph(tmp_path / "bundle" / GRAPH, "cpu", [ids]).hidden, expected, 1e-6)


@pytest.mark.parametrize(
    "name", ["rotary", "alibi", *exhaustive(*(each for each in PACKED if each not in ("rotary", "alibi")))]
)
def test_the_graphs_for_cuda_give_the_rows_of_the_module(name: str, tmp_path: Path) -> None:
    make, takes = PACKED[name]
    module, sequences = random_module(make), draw_sequences(takes, LENGTHS)
    with torch.no_grad():
        expected = np.concatenate([run_module(module, torch.from_numpy(each)).numpy() for each in sequences])
        encoder = ModuleEncoder.of(module, max_tokens=MAX_TOKENS, **takes)
        write_graph(encoder, PackedCuda, tmp_path / "fp32.onnx")
        with in_float16(encoder) as half:
            write_graph(half, PackedCuda, tmp_path / "fp16.onnx")
    assert_close_to_scale(run_graph(tmp_path / "fp32.onnx", "standard", sequences).hidden, expected, 1e-6)
    rows = run_graph(tmp_path / "fp16.onnx", "standard", sequences).hidden
    assert rows is not None
    assert rows.dtype == np.float16
    assert cosines(rows.astype(np.float32), expected).min() > 0.9999


@pytest.mark.parametrize(("has_biases", "gelus"), [(True, 2), (False, 0)])
def test_the_graph_for_cuda_adds_biases_and_sums_where_their_results_are_read(
    gelus: int, tmp_path: Path, *, has_biases: bool
) -> None:
    module = random_module(partial(stack, activation="gelu", bias=has_biases))
    with torch.no_grad():
        encoder = ModuleEncoder.of(module, feature_width=WIDTH, max_tokens=MAX_TOKENS)
        write_graph(encoder, PackedCuda, tmp_path / "fused.onnx")
        write_graph(encoder, PackedCudaSeparateNorms, tmp_path / "separate.onnx")
    names = "BiasGelu", "SkipLayerNormalization", "LayerNormalization"
    for file, counts in (("fused.onnx", (gelus, 2, 2)), ("separate.onnx", (gelus, 0, 4))):
        operators = operators_of(tmp_path / file)
        assert tuple(operators[name] for name in names) == counts


def test_norms_of_a_module_are_measured() -> None:
    """A mean that is much larger than the deviation makes SkipLayerNormalization inexact."""
    module = random_module(stack)
    ranges: dict[bool, ActivationRanges] = {}
    for is_shifted in (False, True):
        if is_shifted:
            with torch.no_grad():
                module.get_submodule("layers.0.linear2").get_parameter("bias").add_(1000)
        encoder = ModuleEncoder.of(module, feature_width=WIDTH, max_tokens=MAX_TOKENS)
        ranges[is_shifted] = ActivationRanges(encoder)
        with torch.no_grad(), ranges[is_shifted].watch(encoder):
            Reference.compute(encoder, ranges[is_shifted].sequence)
    assert ranges[False].fuse_norms
    assert not ranges[True].fuse_norms


class NeedsFloat32(Tokens):
    """Multiplies rows in float32 with weights."""

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        return super().embed(ids).float()


def test_a_module_that_does_not_run_in_float16_has_no_graph_in_fp16(tmp_path: Path) -> None:
    lines: list[str] = []
    export_module(random_module(NeedsFloat32), tmp_path / "bundle", max_tokens=9, report=lines.append, **IDS)
    assert any("no fp16 graph" in line and "own_modules.py:" in line for line in lines)
    manifest = Bundle.open(tmp_path / "bundle").manifest
    assert [graph.file for graph in manifest.graphs] == ["packed-cpu.fp32.onnx", "packed-cuda.fp32.onnx"]
    assert not (tmp_path / "bundle" / "weights.fp16.bin").exists()


def test_the_bundle_names_the_module_and_the_export_says_which_graph_it_wrote(tmp_path: Path) -> None:
    lines: list[str] = []
    choices: dict[str, Any] = {"pooling": "cls", "plans": PACKED_CPU, **IDS}
    export_module(Tokens(), tmp_path / "bundle", max_tokens=MAX_TOKENS, report=lines.append, **choices)
    manifest = Bundle.open(tmp_path / "bundle").manifest
    assert (manifest.reference_module, manifest.name, manifest.layers, manifest.heads) == ("Tokens", "Tokens", 2, 3)
    assert any(re.match("packed: .* 2 attention layers", line) for line in lines)


def test_a_changed_activation_that_the_fast_path_does_not_know_is_computed_and_reported(tmp_path: Path) -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()
    lines: list[str] = []
    export = partial(export_module, max_tokens=MAX_TOKENS, feature_width=16, report=lines.append, plans=PACKED_CPU)
    export(layer, tmp_path / "as-made")
    assert not any("activation" in line for line in lines)
    layer.activation = torch.tanh
    export(layer, tmp_path / "bundle")
    assert any("activation" in line for line in lines)
    rows = np.random.default_rng(0).standard_normal((7, 16), np.float32)
    # With gradients, PyTorch runs the code of the layer.
    expected = layer(torch.from_numpy(rows)[None]).detach().numpy()[0]
    assert_close_to_scale(run_graph(tmp_path / "bundle" / GRAPH, "cpu", [rows]).hidden, expected, 1e-6)


def test_a_module_keeps_its_mode_and_its_weights(tmp_path: Path) -> None:
    module = random_module(Tokens)
    module.train()
    module.get_submodule("blocks.0").eval()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    modes = [each.training for each in module.modules()]
    export_module(module, tmp_path / "bundle", max_tokens=MAX_TOKENS, **IDS)
    files = {path.name for path in (tmp_path / "bundle").iterdir()}
    assert {"packed-cpu.fp32.onnx", "packed-cuda.fp32.onnx", "packed-cuda.fp16.onnx"} < files
    assert modes == [each.training for each in module.modules()]
    assert all(tensor.equal(before[name]) for name, tensor in module.state_dict().items())


def test_a_folder_gives_the_tokenizer_and_the_prompts(tmp_path: Path) -> None:
    save_tokenizer(tmp_path)
    (tmp_path / "config_sentence_transformers.json").write_text('{"prompts": {"query": "the "}}')
    module = nn.Sequential(nn.Embedding(len(TEXT_VOCABULARY), 8), stack_of_width(8))
    choices: dict[str, Any] = {"vocabulary_size": len(TEXT_VOCABULARY), "max_tokens": 16, "plans": PACKED_CPU}
    export_module(module, tmp_path / "bundle", tokenizer=tmp_path, **choices)
    manifest = Bundle.open(tmp_path / "bundle").manifest
    assert manifest.max_text_tokens == 16
    assert [(prompt.name, prompt.text, prompt.tokens) for prompt in manifest.prompts] == [("query", "the ", 2)]
    with pytest.raises(ConfigError, match="features"):
        export_module(stack_of_width(8), tmp_path / "other", feature_width=8, max_tokens=16, tokenizer=tmp_path)


def stack_of_width(width: int) -> nn.Module:
    layer = nn.TransformerEncoderLayer(width, 2, 8, batch_first=True)
    return nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)


@pytest.mark.parametrize(
    ("choices", "facts"),
    [
        ({**IDS, "max_tokens": MAX_TOKENS, "pooling": "attention"}, ["pooling is 'attention'", "cls"]),
        ({**IDS, "max_tokens": 2}, ["max_tokens is 2", "4"]),
        ({**IDS, "max_tokens": MAX_TOKENS + 1}, ["41 tokens", "own_modules.py:", "at most 40 tokens"]),
        ({"max_tokens": MAX_TOKENS}, ["vocabulary_size is 0", "feature_width 0"]),
        ({"vocabulary_size": VOCABULARY + 1, "max_tokens": MAX_TOKENS}, ["the module fails", "index out of range"]),
    ],
)
def test_a_wrong_argument_is_an_error_that_names_it(choices: dict[str, Any], facts: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        export_module(Tokens(), tmp_path / "bundle", **choices)
    for fact in facts:
        assert fact in str(error.value)


CODE = """
from neighbour import WIDTH
from torch import nn

def encoder():
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 8, batch_first=True)
    return nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)

def number():
    return 3

def failing():
    raise RuntimeError("no weights")
"""


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file with functions that make modules."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "neighbour.py").write_text("WIDTH = 8")
    (tmp_path / "code.py").write_text(CODE)
    return str(tmp_path / "code.py")


FLAGS = ["--feature-width", "8", "--max-tokens", "12"]


def test_the_command_exports_the_module_of_a_function(
    code: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    choices = ["--pooling", "last", "--normalize", "--graphs", "packed-cpu", "--precision", "fp32"]
    assert main(["module", f"{code}:encoder", "-o", str(tmp_path / "bundle"), *FLAGS, *choices]) == 0
    printed = capsys.readouterr().out
    assert "packed: the module has 1 attention layer" in printed
    manifest = Bundle.open(tmp_path / "bundle").manifest
    assert (manifest.name, manifest.reference_module) == ("encoder", "TransformerEncoder")
    assert (manifest.pooling, manifest.normalized, len(manifest.graphs)) == (POOLING_LAST, True, 1)


@pytest.mark.parametrize(
    ("function", "flags", "facts"),
    [
        ("number", FLAGS, ["code.py:number", "int", "torch.nn.Module"]),
        ("failing", FLAGS, ["code.py:failing", "no weights"]),
        ("other", FLAGS, ["no function other", "FILE.py:FUNCTION"]),
        ("encoder", FLAGS[:2], ["--max-tokens"]),
        ("encoder", FLAGS[2:], ["--vocabulary-size", "--feature-width"]),
        ("encoder", [*FLAGS, "--vocabulary-size", "9"], ["--vocabulary-size", "--feature-width"]),
        ("encoder", [*FLAGS[:3], "2"], ["--max-tokens is 2"]),
        ("encoder", ["--feature-width", "9", *FLAGS[2:]], ["--max-tokens", "--vocabulary-size"]),
        # The flags are checked before the code runs.
        ("failing", [*FLAGS, "--compare", "outputs.npz"], ["--compare"]),
        ("encoder", [*FLAGS, "--graphs", "portable", "packed-cuda"], ["packed-cpu.fp32.onnx", "--graphs"]),
    ],
)
def test_the_command_says_in_one_line_what_is_wrong(
    function: str, flags: list[str], facts: list[str], code: str, refused: Refused
) -> None:
    refused(["module", f"{code}:{function}", *flags], *facts)


def test_a_configuration_needs_weights(refused: Refused) -> None:
    refused(["module", "config.json"], "WEIGHTS.safetensors")


@pytest.mark.parametrize("flags", [("--max-tokens", "8"), ("--pooling", "cls"), ("--normalize",), ("--labels", "glad")])
def test_a_configuration_takes_no_flags_of_a_module(flags: tuple[str, ...], refused: Refused) -> None:
    refused(["module", "config.json", "weights.safetensors", *flags], flags[0])
