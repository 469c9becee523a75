"""Graphs of a bundle equal transformers and the formulas, on batches other than the traced one."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import transformers

from headwaiter_export.encoder.encoder import Encoder
from headwaiter_server.runtime.graph import open_session, session_options
from tests.support.checkpoints import VOCABULARY, bert_hidden
from tests.support.export.helpers import (
    BATCH_LENGTHS,
    FP32_GRAPHS,
    Runtime,
    assert_close,
    cosines,
    oracle_of,
    random_sequences,
    run_graph,
)
from tests.support.oracle import Array

ON_CUDA = pytest.param("cuda", marks=pytest.mark.gpu)


@pytest.fixture(scope="module")
def bert(text_checkpoint: Path) -> transformers.BertModel:
    return transformers.BertModel.from_pretrained(text_checkpoint).eval()


def text_batch(lengths: tuple[int, ...]) -> list[Array]:
    rng = np.random.default_rng(len(lengths))
    return [rng.integers(0, len(VOCABULARY), n) for n in lengths]


@pytest.mark.parametrize(("file", "runtime"), FP32_GRAPHS)
def test_fp32_graphs_of_text_equal_transformers_bert(
    file: str, runtime: Runtime, text_bundle: Path, bert: transformers.BertModel
) -> None:
    for lengths in (*BATCH_LENGTHS, (64,), (64, 1, 33, 7)):
        sequences = text_batch(lengths)
        outputs = run_graph(text_bundle / file, runtime, sequences)
        expected = [bert_hidden(bert, sequence) for sequence in sequences]
        assert_close(outputs.hidden, np.concatenate(expected))
        assert_close(outputs.pooled, np.stack([rows.mean(0) for rows in expected]))


@pytest.mark.parametrize(("file", "runtime"), FP32_GRAPHS)
def test_fp32_graphs_of_features_equal_the_formulas(
    file: str, runtime: Runtime, feature_bundle: Path, feature_encoder: Encoder
) -> None:
    oracle = oracle_of(feature_encoder)
    for lengths in BATCH_LENGTHS:
        sequences = random_sequences(feature_encoder.config, lengths)
        outputs = run_graph(feature_bundle / file, runtime, sequences)
        expected = [oracle.hidden(sequence) for sequence in sequences]
        assert_close(outputs.hidden, np.concatenate(expected))
        assert_close(outputs.pooled, np.stack([rows.mean(0) for rows in expected]))


@pytest.mark.parametrize("runtime", ["standard", ON_CUDA])
def test_the_fp16_graph_has_a_cosine_of_at_least_0_9999_to_fp32(
    runtime: Runtime, text_bundle: Path, bert: transformers.BertModel
) -> None:
    for lengths in BATCH_LENGTHS:
        sequences = text_batch(lengths)
        outputs = run_graph(text_bundle / "packed-cuda.fp16.onnx", runtime, sequences)
        assert outputs.pooled is not None
        assert outputs.hidden is not None
        expected = [bert_hidden(bert, sequence) for sequence in sequences]
        assert (outputs.pooled.dtype.name, outputs.hidden.dtype.name) == ("float32", "float16")
        assert cosines(outputs.pooled, np.stack([rows.mean(0) for rows in expected])).min() >= 0.9999


@pytest.mark.parametrize("runtime", ["standard", ON_CUDA])
def test_the_fp16_graph_accepts_float32_features(
    runtime: Runtime, feature_bundle: Path, feature_encoder: Encoder
) -> None:
    oracle = oracle_of(feature_encoder)
    sequences = random_sequences(feature_encoder.config, (5, 48, 1))
    outputs = run_graph(feature_bundle / "packed-cuda.fp16.onnx", runtime, sequences)
    assert outputs.pooled is not None
    assert cosines(outputs.pooled, np.stack([oracle.hidden(each).mean(0) for each in sequences])).min() >= 0.9999


def inputs_of(path: Path) -> set[str]:
    return {value.name for value in onnx.load(path, load_external_data=False).graph.input}


def test_a_graph_declares_only_the_inputs_that_it_uses(text_bundle: Path, feature_bundle: Path) -> None:
    pooled, blocks = {"lengths", "gather"}, {"query_blocks", "block_scatter"}
    assert inputs_of(text_bundle / "packed-cpu.fp32.onnx") == {"input_ids", "positions", *blocks, *pooled}
    assert inputs_of(feature_bundle / "packed-cpu.fp32.onnx") == {"features", *blocks, *pooled}
    cuda = {"token_offset", "cu_seqlens", *pooled}
    assert inputs_of(text_bundle / "packed-cuda.fp16.onnx") == {"input_ids", "positions", *cuda}
    assert inputs_of(text_bundle / "portable.fp32.onnx") == {"input_ids", "attention_mask"}


@pytest.mark.parametrize("file", ["portable.fp32.onnx", "packed-cpu.fp32.onnx"])
def test_graphs_for_the_cpu_have_only_standard_operators(file: str, text_bundle: Path) -> None:
    model = onnx.load(text_bundle / file, load_external_data=False)
    assert {node.domain for node in model.graph.node} == {""}
    assert not model.functions


def test_the_portable_graph_ignores_the_content_of_padding(text_bundle: Path) -> None:
    session = open_session(text_bundle / "portable.fp32.onnx", "cpu", session_options(threads=1))
    mask = np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    zeros, others = (np.where(mask == 1, 7, filler) for filler in (0, 9))
    first, second = (session.run(["pooled"], {"input_ids": ids, "attention_mask": mask})[0] for ids in (zeros, others))
    assert first.tobytes() == second.tobytes()
