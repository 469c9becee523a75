"""Helpers for the tests of the export."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import pytest
import safetensors.torch
import torch
from tokenizers import Tokenizer
from torch import Tensor

from headwaiter_export.checkpoints.json_files import CheckpointError
from headwaiter_export.checkpoints.reader import LoadedModel, read_checkpoint
from headwaiter_export.config.choices import Pooling
from headwaiter_export.config.encoder import EncoderConfig
from headwaiter_export.encoder.encoder import Encoder
from headwaiter_export.graphs.graph_layout import Packed
from headwaiter_export.graphs.packed_cpu import PackedCpu
from headwaiter_export.graphs.packed_cuda import PackedCuda
from headwaiter_export.graphs.portable import Portable
from headwaiter_export.graphs.tracing import WeightsFile, trace
from headwaiter_server.runtime.graph import EncoderGraph, GraphOutputs, Provider
from headwaiter_server.runtime.packing import pack
from tests.support.checkpoints import randomize, write_json
from tests.support.export.standard_attention import open_with_standard_attention
from tests.support.oracle import Array, Oracle, unit

GraphPaths = dict[type[Packed | Portable], Path]
Runtime = Provider | Literal["standard"]

# Where graphs run without a GPU. Those for CUDA run in ONNX Runtime, with standard_attention.py.
RUNTIMES: dict[type[Packed | Portable], Runtime] = {PackedCpu: "cpu", Portable: "cpu", PackedCuda: "standard"}
# The float32 graphs of a bundle, and where each runs.
FP32_GRAPHS = [
    pytest.param("packed-cpu.fp32.onnx", "cpu", id="packed-cpu"),
    pytest.param("portable.fp32.onnx", "cpu", id="portable"),
    pytest.param("packed-cuda.fp32.onnx", "standard", id="packed-cuda-standard"),
    pytest.param("packed-cuda.fp32.onnx", "cuda", id="packed-cuda", marks=pytest.mark.gpu),
]
# Lengths of batches: of one token, of the maximum, equal and different. The last batch has more sequences than a shape
# bucket, so inputs for CUDA are rounded up.
BATCH_LENGTHS: tuple[tuple[int, ...], ...] = (
    (1,),
    (48,),
    (1, 1, 1),
    (7, 7),
    (48, 1, 2, 3),
    (5, 31, 1, 12, 47, 2, 9, 3, 7),
)


def random_encoder(**choices: Any) -> Encoder:
    """Build a small encoder with weights far from their initial values."""
    torch.manual_seed(0)
    sizes = {"d_model": 24, "heads": 3, "layers": 2, "d_ff": 40, "max_tokens": 48}
    encoder = Encoder(EncoderConfig(**{**sizes, **choices}))
    randomize(encoder)
    return encoder.eval()


def shifted_encoder(ratio: float, **choices: Any) -> Encoder:
    """Build an encoder in which the mean of a row is this many times its deviation before each norm of a residual sum.

    The norm removes the mean, so the results do not depend on it.
    """
    encoder = random_encoder(feature_width=6, **choices)
    for name in ("attention.output", "feed_forward.down"):
        for layer in encoder.layers:
            layer.get_submodule(name).get_parameter("bias").data += 3 * ratio
    return encoder


def oracle_of(encoder: Encoder) -> Oracle:
    """Return the encoder as formulas in numpy, with the same weights."""
    weights = {name: tensor.double().numpy() for name, tensor in encoder.state_dict().items()}
    return Oracle(weights, asdict(encoder.config))


def formula_outputs(formula: Oracle, config: EncoderConfig, rows: list[Array]) -> GraphOutputs:
    """Return the outputs of the formulas, given the hidden rows of each sequence."""
    pooled = None
    if config.pooling is not Pooling.NONE:
        pooled = np.stack([formula.pooled(each) for each in rows])
        pooled = unit(pooled) if config.normalize else pooled
    logits = [each for each in map(formula.logits, rows) if each is not None]
    return GraphOutputs(pooled, np.concatenate([formula.reply_rows(each) for each in rows]), logits or None)


def assert_equals_formulas(
    encoder: Encoder, run: Callable[[list[Array]], GraphOutputs], batches: Iterable[list[Array]]
) -> None:
    """Check that the hidden rows, vectors and logits of batches are those of the formulas."""
    formula = oracle_of(encoder)
    for sequences in batches:
        actual = run(sequences)
        expected = formula_outputs(formula, encoder.config, [formula.hidden(each) for each in sequences])
        assert expected.hidden is not None
        assert_close_to_scale(actual.hidden, expected.hidden)
        assert (actual.pooled is None) == (expected.pooled is None)
        if expected.pooled is not None:
            assert_close_to_scale(actual.pooled, expected.pooled)
        assert (actual.logits is None) == (expected.logits is None)
        if actual.logits is not None and expected.logits is not None:
            assert_close_to_scale(np.concatenate(actual.logits), np.concatenate(expected.logits))


def random_sequences(config: EncoderConfig, lengths: Sequence[int], seed: int = 7) -> list[Array]:
    """Draw token ids or features for sequences of these lengths."""
    rng = np.random.default_rng(seed)
    if not config.vocabulary_size:
        return [rng.standard_normal((n, config.feature_width), np.float32) for n in lengths]
    if config.token_types:
        drawn = [rng.integers(0, (config.vocabulary_size, config.token_types), (n, 2)) for n in lengths]
    else:
        drawn = [rng.integers(0, config.vocabulary_size, n) for n in lengths]
    if config.mask_id is not None:
        for sequence in drawn:
            # Sometimes all ids but one, or none: without positions, masks alone would give rows of zeros.
            ids = sequence.reshape(len(sequence), -1)[:, 0]
            ids[rng.random(len(ids)) < rng.choice((0, 0.3, 1))] = config.mask_id
            ids[rng.integers(len(ids))] = 0
    if config.expansion_id is not None:
        for sequence in drawn:
            # Sometimes all ids, or none.
            sequence.reshape(len(sequence), -1)[rng.integers(0, len(sequence) + 1) :, 0] = config.expansion_id
    return drawn


def write_graphs(encoder: Encoder, folder: Path, *layouts: type[Packed | Portable]) -> GraphPaths:
    """Write one graph of the encoder in each layout, as the export does."""
    paths = {layout: folder / f"{layout.__name__}.onnx" for layout in layouts}
    with WeightsFile(folder / "weights.bin") as weights:
        for layout, path in paths.items():
            weights.write_graph(trace(encoder.fold_temperatures().merge_dense(), layout), path)
    return paths


def operators_of(path: Path) -> Counter[str]:
    """Count the operators of a graph."""
    return Counter(node.op_type for node in onnx.load(path, load_external_data=False).graph.node)


def run_hidden(path: Path, runtime: Runtime, sequences: list[Array]) -> list[Array]:
    """Run a graph on one batch, and return the hidden rows of each sequence."""
    hidden = run_graph(path, runtime, sequences).hidden
    assert hidden is not None
    return pack(sequences).split(hidden)


def run_graph(path: Path, runtime: Runtime, sequences: list[Array]) -> GraphOutputs:
    """Run a graph on one batch.

    Runtimes are ONNX Runtime's "cpu" and "cuda" providers, and "standard": the CPU provider with a function in place of
    the operator that the CPU lacks, and with batches rounded up to shape buckets, as on CUDA.
    """
    return _session(path, runtime).run(pack(sequences), hidden=True)


def assert_others_change_no_bit(
    run: Callable[[list[Array]], GraphOutputs], sequences: list[Array], content: float, kept_columns: int = 0
) -> None:
    """Check that sequences of any content beside a sequence change no bit of its hidden rows and pooled vector.

    The last `kept_columns` columns of the sequences keep their content.
    """
    before = _results(run(sequences), sequences)
    for kept in range(len(sequences)):
        others = [each.copy() for each in sequences]
        for i, each in enumerate(others):
            if i != kept:
                each[..., : each.shape[-1] - kept_columns] = content
        after = _results(run(others), others)[kept]
        for old, new in zip(before[kept], after, strict=True):
            assert np.isfinite(new).all()
            assert old.tobytes() == new.tobytes()


def _results(outputs: GraphOutputs, sequences: list[Array]) -> list[tuple[Array, Array]]:
    assert outputs.hidden is not None
    rows = pack(sequences).split(outputs.hidden)
    return list(zip(rows if outputs.pooled is None else outputs.pooled, rows, strict=True))


# Loading a graph takes longer than running it, and a test uses only a few graphs.
@lru_cache(4)
def _session(path: Path, runtime: Runtime) -> EncoderGraph:
    if runtime == "standard":
        return EncoderGraph(open_with_standard_attention(path), gpu=0)
    return EncoderGraph.open(path, runtime, threads=1)


def assert_close(actual: Array | None, expected: Array, tolerance: float = 1e-5) -> None:
    """Check that every value is within 1e-5, the tolerance of pooled vectors (that of hidden rows is 1e-4)."""
    assert actual is not None
    np.testing.assert_allclose(actual, expected, rtol=0, atol=tolerance)


def assert_close_to_scale(actual: Array | None, expected: Array, tolerance: float = 1e-5) -> None:
    """Check that every difference is at most 1e-5 × the largest expected value."""
    assert actual is not None
    scale = np.abs(expected).max()
    assert_close(actual / scale, expected / scale, tolerance)


def cosines(actual: Array, expected: Array) -> Array:
    """Return the cosine of each vector with the expected vector."""
    cosine: Array = (unit(actual.astype(np.float64)) * unit(expected)).sum(-1)
    return cosine


def edit_json(path: Path, **changes: Any) -> None:
    """Change fields of a JSON object in a file."""
    write_json(path, {**json.loads(path.read_text()), **changes})


def token_ids(loaded: LoadedModel, texts: Sequence[str]) -> list[Array]:
    """Return the ids of texts with the tokenizer that a bundle of a checkpoint has."""
    assert loaded.text is not None
    return [np.array(each.ids) for each in Tokenizer.from_str(loaded.text.tokenizer).encode_batch([*texts])]


def drop_fields(path: Path, *names: str) -> None:
    """Remove fields of a JSON object in a file."""
    write_json(path, {name: value for name, value in json.loads(path.read_text()).items() if name not in names})


@contextmanager
def changed_tensors(folder: Path) -> Iterator[dict[str, Tensor]]:
    """Let a test change the tensors of a checkpoint."""
    path = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    yield tensors
    safetensors.torch.save_file(tensors, path, {"format": "pt"})


def save_dense(folder: Path, width: int, *, bias: bool, **settings: Any) -> dict[str, Tensor]:
    """Save a module Dense of vectors of 32 numbers with random weights, and return the weights."""
    write_json(folder / "config.json", {"in_features": 32, "out_features": width, "bias": bias, **settings})
    tensors = {"linear.weight": torch.randn(width, 32) / 8}
    if bias:
        tensors["linear.bias"] = torch.randn(width)
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    return tensors


def assert_checkpoint_refused(folder: Path, *facts: str, route: str | None = None) -> None:
    """Check that reading a checkpoint fails with an error that contains every fact."""
    with pytest.raises(CheckpointError) as error:
        read_checkpoint(folder, route=route)
    assert_mentions(error.value, *facts)


def assert_mentions(error: BaseException, *facts: str) -> None:
    """Check that an error's message contains every fact, such as a file, a field and its value."""
    for fact in facts:
        assert fact in str(error)
