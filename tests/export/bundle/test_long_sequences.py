"""The export and the server check a model up to its maximum length, as far as that takes a bounded time."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headwaiter_export.bundle import export, verification
from headwaiter_export.bundle.atomic_folder import BundleError
from headwaiter_export.bundle.export import export_bundle
from headwaiter_export.bundle.golden_writer import golden_lengths
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_export.encoder.padded_module import usual_sizes
from headwaiter_export.encoder.reference import long_lengths, operations
from headwaiter_export.graphs.graph_layout import GraphLayout
from headwaiter_export.graphs.tracing import trace
from headwaiter_server.runtime.bundle import GOLDEN, Bundle
from headwaiter_server.runtime.errors import ToleranceExceeded
from headwaiter_server.runtime.model import open_model
from tests.export.conftest import keep_graphs
from tests.support.export.helpers import assert_mentions, oracle_of, random_encoder
from tests.support.server.bundles import copy, sign

GRAPH, WEIGHTS = "packed-cpu.fp32.onnx", "weights.fp32.bin"
TABLE = "embedding.positions.table.weight"
LONGEST = 2100


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    """An encoder of more than 1,024 learned positions."""
    return random_encoder(vocabulary_size=50, layers=1, d_model=8, heads=1, d_ff=8, max_tokens=LONGEST)


@pytest.fixture(scope="module")
def long_bundle(encoder: Encoder, tmp_path_factory: pytest.TempPathFactory, runs_graphs: None) -> Path:
    """The encoder's bundle, with one graph."""
    folder = tmp_path_factory.mktemp("long") / "bundle"
    with pytest.MonkeyPatch.context() as monkeypatch:
        keep_graphs(monkeypatch, GRAPH)
        export_bundle(encoder, None, folder, "long")
    return folder


def without_later_positions(encoder: Encoder) -> Encoder:
    """Return a copy of an encoder that is right for sequences of up to 1,024 tokens only."""
    weights = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    weights[TABLE][1024:] = 0
    return Encoder.with_weights(encoder.config, weights)


@pytest.mark.exhaustive
def test_golden_inputs_reach_the_maximum_length_and_parity_says_which_lengths_were_checked(
    encoder: Encoder, long_bundle: Path
) -> None:
    exported = Bundle.open(long_bundle)
    golden = exported.golden()
    lengths = [len(sequence) for sequence in golden.sequences]
    assert sorted(lengths)[-2:] == [1024, LONGEST]
    (check,) = exported.parity().checks
    assert check.graph == GRAPH
    assert list(check.lengths) == sorted({*lengths, 2048})
    assert 0.99999 <= check.hidden_min_cosine <= 1
    # 512 hidden rows of the longest sequence are stored, from its first to its last.
    assert golden.outputs.hidden is not None
    assert golden.hidden_rows is not None
    rows = golden.hidden_rows[golden.hidden_rows >= sum(lengths) - LONGEST] - (sum(lengths) - LONGEST)
    assert (len(rows), rows[0], rows[-1], np.diff(rows).max()) == (512, 0, LONGEST - 1, 5)
    expected = oracle_of(encoder).hidden(golden.sequences[-1].astype(np.int64))[rows]
    assert np.abs(golden.outputs.hidden[-512:].astype(np.float64) - expected).max() <= 1e-4
    assert open_model(long_bundle, "cpu", "fp32", 1).self_check_sequences == 33


@pytest.mark.usefixtures("runs_graphs", "packed_cpu_alone")
def test_a_graph_that_is_wrong_only_beyond_1024_tokens_is_not_exported(
    encoder: Encoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trace_wrongly(encoder: Encoder, layout: type[GraphLayout]) -> object:
        return trace(without_later_positions(encoder), layout)

    monkeypatch.setattr(export, "trace", trace_wrongly)
    with pytest.raises(BundleError) as error:
        export_bundle(encoder, None, tmp_path / "bundle", "wrong")
    assert_mentions(error.value, GRAPH, "pooled", "1e-05")
    assert list(tmp_path.iterdir()) == []


def test_a_server_refuses_weights_that_are_wrong_only_beyond_1024_tokens(
    encoder: Encoder, long_bundle: Path, tmp_path: Path
) -> None:
    folder = copy(long_bundle, tmp_path)
    table = encoder.state_dict()[TABLE]
    content = (folder / WEIGHTS).read_bytes()
    right, wrong = (each.numpy().tobytes() for each in (table, without_later_positions(encoder).state_dict()[TABLE]))
    assert content.count(right) == 1
    (folder / WEIGHTS).write_bytes(content.replace(right, wrong))
    sign(folder, [WEIGHTS])
    with pytest.raises(ToleranceExceeded):
        open_model(folder, "cpu", "fp32", 1)


XLM_R_BASE = {"vocabulary_size": 9, "d_model": 768, "heads": 12, "layers": 12, "d_ff": 3072}
XLM_R_LARGE = {"vocabulary_size": 9, "d_model": 1024, "heads": 16, "layers": 24, "d_ff": 4096}
SMALL = {"feature_width": 3, "d_model": 8, "heads": 1, "layers": 1, "d_ff": 8}


@pytest.mark.parametrize(
    ("sizes", "max_tokens", "checked", "golden"),
    [
        (SMALL, 1, [], []),
        (SMALL, 1024, [], []),
        (SMALL, 1025, [1025], [1025]),
        (SMALL, 4096, [2048, 4096], [4096]),
        (SMALL, 5000, [2048, 4096, 5000], [5000]),
        (SMALL, 32_768, [2048, 4096, 8192, 16_384, 32_768], [32_768]),
        (XLM_R_BASE, 8192, [2048, 4096, 8192], [8192]),
        (XLM_R_BASE, 32_768, [2048, 4096, 8192, 16_384], [8192]),
        (XLM_R_LARGE, 8192, [2048, 4096, 8192], [4096]),
        ({**XLM_R_LARGE, "layers": 1000}, 8192, [], []),
    ],
)
def test_lengths_beyond_1024_tokens_are_checked_as_far_as_their_operations_are_bounded(
    sizes: dict[str, int], max_tokens: int, checked: list[int], golden: list[int]
) -> None:
    config = EncoderConfig(**sizes, max_tokens=max_tokens)  # type: ignore[arg-type]
    assert long_lengths(config) == checked
    assert golden_lengths(config) == golden


@pytest.mark.exhaustive
@pytest.mark.usefixtures("runs_graphs")
def test_only_the_portable_graph_is_checked_on_shorter_sequences_because_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verification, "_PADDED_SCORES_BYTES", 4 * 8191**2)
    sizes = {"feature_width": 6, "layers": 1, "d_model": 8, "heads": 1, "d_ff": 8, "max_tokens": 8192}
    export_bundle(random_encoder(**sizes, positions="rotary"), None, tmp_path / "bundle", "long")
    longest = {check.graph: max(check.lengths) for check in Bundle.open(tmp_path / "bundle").parity().checks}
    assert longest.items() >= {GRAPH: 8192, "packed-cpu.int8.onnx": 8192, "portable.fp32.onnx": 4096}.items()
    assert (tmp_path / "bundle" / GOLDEN).stat().st_size < 5e6
    assert open_model(tmp_path / "bundle", "cpu", "int8", 1).self_check_sequences == 33


@pytest.mark.parametrize(("width", "layers"), [(768, 12), (1024, 24)])
@pytest.mark.parametrize("output_width", [1, 5, None])
def test_layers_of_an_unknown_shape_take_about_as_long_as_known_ones(
    output_width: int | None, width: int, layers: int
) -> None:
    sizes: dict[str, Any] = {"vocabulary_size": 250_002, "max_tokens": 8192}
    known = EncoderConfig(**sizes, d_model=width, heads=width // 64, layers=layers, d_ff=4 * width)
    layer = [*[(width, width)] * 4, (4 * width, width), (width, 4 * width), (width,)]
    shapes = [(250_002, width), (8192, width), *layer * layers, (width, output_width or width)]
    unknown = EncoderConfig(**sizes, **usual_sizes(output_width or width, 250_002, shapes))
    assert unknown.d_model == (output_width or width)
    for tokens in (512, 8192):
        assert operations(unknown, tokens) == pytest.approx(operations(known, tokens), rel=0.35)
