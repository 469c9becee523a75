"""The graph for bf16 has no loop, computes the same as the graph with a loop, and runs in bf16 with OpenVINO.

The tests that compute in bf16 need the package openvino, and a processor with AVX512_BF16 or AMX.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from headwaiter_export.bundle.export import export_bundle
from headwaiter_export.bundle.graphs import EVERY_GRAPH, chosen_plans
from headwaiter_export.config.choices import Mask
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_export.encoder.from_torch import from_transformer_decoder
from headwaiter_export.encoder.reference import sequence_of_parts
from headwaiter_export.graphs.graph_layout import Packed
from headwaiter_export.graphs.packed_cpu import PackedCpu
from headwaiter_proto.encoder_pb2 import PRECISION_BF16
from headwaiter_server.runtime.errors import ProviderUnavailable, ToleranceExceeded
from headwaiter_server.runtime.graph import EncoderGraph
from headwaiter_server.runtime.model import open_model
from headwaiter_server.runtime.openvino_session import require_bf16
from headwaiter_server.runtime.packing import pack
from tests.support.checkpoints import randomize
from tests.support.export.helpers import (
    GraphPaths,
    assert_close_to_scale,
    assert_others_change_no_bit,
    cosines,
    operators_of,
    random_encoder,
    random_sequences,
    write_graphs,
)
from tests.support.oracle import Array
from tests.support.server.bundles import copy, read_manifest, sign
from tests.support.tiers import exhaustive

pytestmark = pytest.mark.usefixtures("runs_graphs")

LENGTHS = (9, 5, 48, 2, 17, 1, 30, 11, 3)
# Tokens of the sequences that are longer than all others in these tests.
LONG = 700
# Like BERT, ModernBERT, ALiBi's models, T5 and Qwen3.
ENCODERS: dict[str, dict[str, Any]] = {
    "learned": {},
    "windows": {"local_layers": (0,), "window": 5, "positions": "rotary"},
    "alibi": {"positions": "alibi"},
    "distances": {"distance_bias": True, "positions": "none", "rms_norm": True},
    "causal": {"mask": "causal", "positions": "rotary", "rms_norm": True, "query_key_norm": True, "gated": True},
}
# Prints the memory in MiB after 100 and after 400 batches of random shapes.
RUN_RANDOM_SHAPES = """
import sys
from pathlib import Path
import numpy as np
from headwaiter_server.runtime.graph import EncoderGraph
from headwaiter_server.runtime.packing import pack

graph, rng = EncoderGraph.open(Path(sys.argv[1]), "cpu", 1, bf16=True), np.random.default_rng(0)
for number in range(1, 401):
    lengths = rng.integers(1, 49, rng.integers(1, 25))
    graph.run(pack([np.ones((length, 6), np.float32) for length in lengths]), hidden=False)
    if number in (100, 400):
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        print(int(status["VmRSS"].split()[0]) / 1024)
"""


def encoder_with_target() -> Encoder:
    """Return an encoder with a decoder, whose graph has inputs of sources and of targets."""
    torch.manual_seed(0)
    whole = nn.Transformer(16, 4, 1, 2, 24, batch_first=True).eval()
    randomize(whole)
    return from_transformer_decoder(whole.decoder, whole.encoder, max_tokens=80, target_mask=Mask.CAUSAL)


@pytest.fixture(scope="module", params=[*ENCODERS, "target"])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Encoder, GraphPaths]:
    """An encoder, and its graphs for CPUs with and without a loop."""
    encoder = (
        encoder_with_target()
        if request.param == "target"
        else random_encoder(**{"feature_width": 6, "max_tokens": LONG, **ENCODERS[request.param]})
    )
    return encoder, write_graphs(encoder, tmp_path_factory.mktemp("graphs"), PackedCpu, Packed)


@pytest.fixture
def _computes_bf16() -> None:
    """Skip a test where OpenVINO cannot compute in bf16."""
    pytest.importorskip("openvino")
    try:
        require_bf16()
    except ProviderUnavailable as reason:
        pytest.skip(str(reason))


def sequences_of(encoder: Encoder, lengths: tuple[int, ...] = LENGTHS) -> list[Array]:
    """Draw sequences; those of an encoder with targets have as many rows of the source and one more of the target."""
    if not encoder.config.takes_target:
        return random_sequences(encoder.config, lengths)
    rng = np.random.default_rng(7)
    return [sequence_of_parts(encoder.config, min(n, 39), min(n, 39) + 1, rng) for n in lengths]


def hidden_rows(graph: EncoderGraph, sequences: list[Array]) -> Array:
    """Run a graph, and return its hidden rows."""
    hidden = graph.run(pack(sequences), hidden=True).hidden
    assert hidden is not None
    return hidden


def test_the_graph_without_a_loop_equals_the_graph_with_a_loop_also_in_rounded_shapes(
    written: tuple[Encoder, GraphPaths],
) -> None:
    encoder, paths = written
    assert not operators_of(paths[Packed])["Scan"]
    loop, plain, rounded = (EncoderGraph.open(paths[each], "cpu", 1) for each in (PackedCpu, Packed, Packed))
    rounded._uses_few_shapes = True
    for lengths in (LENGTHS, (1,), (33, 2)):
        sequences = sequences_of(encoder, lengths)
        expected = hidden_rows(loop, sequences)
        assert_close_to_scale(hidden_rows(plain, sequences), expected)
        assert_close_to_scale(hidden_rows(rounded, sequences), expected)


@pytest.fixture(scope="module")
def bundle(feature_encoder: Encoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle with graphs for CPUs in fp32 and bf16."""
    folder = tmp_path_factory.mktemp("bundles") / "bf16"
    export_bundle(feature_encoder, None, folder, "bf16", plans=chosen_plans(["packed-cpu"], ["fp32", "bf16"]))
    return folder


def test_the_graph_is_written_on_request_and_shares_the_weights_of_fp32(bundle: Path, feature_bundle: Path) -> None:
    def weights(folder: Path) -> dict[str, str]:
        return {graph.file: graph.weights_file for graph in read_manifest(folder).graphs}

    assert weights(bundle) == dict.fromkeys(("packed-cpu.fp32.onnx", "packed-cpu.bf16.onnx"), "weights.fp32.bin")
    assert "packed-cpu.bf16.onnx" not in weights(feature_bundle)
    assert "packed-cpu.bf16.onnx" in {plan.file for plan in EVERY_GRAPH}
    # The export runs the graph in fp32, so its differences are not those of bf16.
    assert [graph.graph for graph in open_model(bundle, "cpu", "auto", 1).parity.graphs] == ["packed-cpu.fp32.onnx"]


@pytest.mark.usefixtures("_computes_bf16")
def test_a_model_opens_in_bf16_on_request_and_is_compared_with_pytorch(bundle: Path, tmp_path: Path) -> None:
    model = open_model(bundle, "auto", "bf16", 1)
    assert (model.provider, model.precision, model.graph_file) == ("cpu", PRECISION_BF16, "packed-cpu.bf16.onnx")
    assert model.fallback_reason == ""
    assert 0.9995 <= model.self_check.min_cosine < 0.999999

    changed = copy(bundle, tmp_path)
    weights = changed / "weights.fp32.bin"
    content = weights.read_bytes()
    weights.write_bytes(bytes(len(content) // 2) + content[len(content) // 2 :])
    sign(changed, [weights.name])
    with pytest.raises(ToleranceExceeded, match=r"packed-cpu\.bf16\.onnx"):
        open_model(changed, "cpu", "bf16", 1)


@pytest.mark.usefixtures("_computes_bf16")
@pytest.mark.parametrize("threads", [1, 2])
def test_rows_in_bf16_have_the_direction_of_float32_also_of_long_sequences(
    written: tuple[Encoder, GraphPaths], threads: int
) -> None:
    encoder, paths = written
    exact = EncoderGraph.open(paths[PackedCpu], "cpu", 1)
    graph = EncoderGraph.open(paths[Packed], "cpu", threads, bf16=True)
    for lengths in (LENGTHS, (LONG, 2)):
        sequences = sequences_of(encoder, lengths)
        actual, expected = hidden_rows(graph, sequences), hidden_rows(exact, sequences)
        assert cosines(actual, expected).min() >= 0.999
        # The rows are computed in bf16.
        assert np.abs(actual - expected).max() > 1e-3 * np.abs(expected).max()


@pytest.mark.usefixtures("_computes_bf16")
@pytest.mark.parametrize("content", [1.0, 3e38, np.nan])
def test_in_bf16_the_content_of_other_sequences_changes_no_bit_of_a_result(
    written: tuple[Encoder, GraphPaths], content: float
) -> None:
    encoder, paths = written
    graph = EncoderGraph.open(paths[Packed], "cpu", 1, bf16=True)
    assert_others_change_no_bit(
        lambda batch: graph.run(pack(batch), hidden=True),
        sequences_of(encoder, LENGTHS[:4]),
        content,
        kept_columns=encoder.config.takes_target,
    )


@pytest.mark.usefixtures("_computes_bf16", "starts_processes")
@pytest.mark.parametrize("layers", exhaustive(4))
def test_the_memory_of_batches_of_random_shapes_stays_level(layers: int, tmp_path: Path) -> None:
    encoder = random_encoder(feature_width=6, d_model=192, heads=6, d_ff=768, layers=layers)
    path = write_graphs(encoder, tmp_path, Packed)[Packed]
    command = [sys.executable, "-c", RUN_RANDOM_SHAPES, str(path)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    early, late = map(float, printed.split())
    assert late - early < 25
