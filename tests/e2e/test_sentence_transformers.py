"""Truncation, prompts, dimensions, poolings and data types equal those of sentence-transformers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import numpy as np
import pytest
from numpy.typing import NDArray

from bench.loads.traces import sentences
from headwaiter_proto import encoder_pb2 as pb
from testbed.server_process import RunningServer

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# The first run downloads and exports the model.
pytestmark = pytest.mark.timeout(600)

MAX_ABS = 1e-5
SENTENCES = 16
LONG_CHARACTERS = 2000
TIMEOUT_S = 60.0
DTYPES = {pb.DATA_TYPE_FLOAT32: "<f4", pb.DATA_TYPE_FLOAT16: "<f2", pb.DATA_TYPE_INT8: "i1"}


@dataclass
class ServedAndReference:
    """A served model, and the model of sentence-transformers from the same checkpoint.

    Attributes:
        model: the server's description of its model.
        encode: sends texts to the server and returns the reply.
        reference: the reference model, with the modules Transformer, Pooling and Normalize.
        texts: short texts.
        long: a text far above the maximum length.
    """

    model: pb.GetModelResponse
    encode: Callable[..., pb.EncodeResponse]
    reference: "SentenceTransformer"
    texts: list[str]
    long: str

    def unnormalized(self, pooling: str = "mean") -> "SentenceTransformer":
        """Return the reference model with another pooling and without scaling to unit length."""
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer.modules import Pooling

        return SentenceTransformer(modules=[self.reference[0], Pooling(self.width, pooling)], device="cpu")

    @property
    def width(self) -> int:
        return int(self.reference.get_embedding_dimension() or 0)


@contextmanager
def connect(server: RunningServer, checkpoint: Path, texts: list[str]) -> Iterator[ServedAndReference]:
    """Yield the served model and the reference model of a checkpoint."""
    from sentence_transformers import SentenceTransformer

    with grpc.insecure_channel(server.address) as channel:
        call: Any = channel.unary_unary("/headwaiter.v1.Encoder/Encode")
        describe: Any = channel.unary_unary("/headwaiter.v1.Encoder/GetModel")
        model = pb.GetModelResponse.FromString(describe(b"", timeout=TIMEOUT_S))

        def encode(texts: list[str], prompt: str = "", **fields: Any) -> pb.EncodeResponse:
            message = pb.EncodeRequest(texts=pb.Texts(values=texts, prompt=prompt), **fields)
            return pb.EncodeResponse.FromString(call(message.SerializeToString(), timeout=TIMEOUT_S))

        reference = SentenceTransformer(str(checkpoint), device="cpu")
        yield ServedAndReference(model, encode, reference, texts, " ".join(texts * 12)[:LONG_CHARACTERS])


@pytest.fixture(scope="module")
def tiny(text_server: RunningServer, text_checkpoint: Path) -> Iterator[ServedAndReference]:
    texts = ["the bread is fresh", "two tables for rain, please", "Rain falls on stones — ΑΒΓ 雨", "a", ""]
    with connect(text_server, text_checkpoint, texts) as models:
        yield models


@pytest.fixture(scope="module")
def real(real_server: RunningServer, real_checkpoint: Path) -> Iterator[ServedAndReference]:
    with connect(real_server, real_checkpoint, sentences()[:SENTENCES]) as models:
        yield models


@pytest.fixture(params=["tiny", "real"])
def pair(request: pytest.FixtureRequest) -> ServedAndReference:
    models: ServedAndReference = request.getfixturevalue(request.param)
    return models


def values(tensor: pb.Tensor) -> NDArray[np.float64]:
    """Return the values of a tensor, with int8 rows multiplied by their scales."""
    rows = np.frombuffer(tensor.data, DTYPES[tensor.dtype]).reshape(tuple(tensor.shape)).astype(np.float64)
    return rows * np.array(tensor.row_scales)[:, None] if tensor.row_scales else rows


def assert_near(actual: NDArray[Any], expected: NDArray[Any], max_abs: float = MAX_ABS) -> None:
    np.testing.assert_allclose(actual, expected, rtol=0, atol=max_abs)


@pytest.mark.parametrize(("truncation", "side"), [(pb.TRUNCATION_RIGHT, "right"), (pb.TRUNCATION_LEFT, "left")])
def test_a_truncated_text_equals_sentence_transformers(
    pair: ServedAndReference, truncation: pb.Truncation, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = pair.reference.tokenizer
    monkeypatch.setattr(tokenizer, "truncation_side", side)
    texts = [pair.long, pair.texts[0]]
    reply = pair.encode(texts, truncation=truncation)
    assert_near(values(reply.pooled), pair.reference.encode(texts))
    (truncated,) = reply.truncated
    assert (truncated.sequence, truncated.original_tokens) == (0, len(tokenizer(pair.long)["input_ids"]))
    assert reply.lengths[0] == pair.reference.max_seq_length < truncated.original_tokens


@pytest.mark.parametrize("name", ["query", "passage", "document"])
def test_a_text_with_a_prompt_equals_sentence_transformers(tiny: ServedAndReference, name: str) -> None:
    texts = [*tiny.texts, tiny.long]
    reply = tiny.encode(texts, name, truncation=pb.TRUNCATION_RIGHT)
    assert_near(values(reply.pooled), tiny.reference.encode(texts, prompt_name=name))


def test_prompts_and_their_token_counts_equal_sentence_transformers(tiny: ServedAndReference) -> None:
    counted = {
        name: tiny.reference[0]._get_prompt_length(text) for name, text in tiny.reference.prompts.items() if text
    }
    assert {prompt.name: prompt.tokens for prompt in tiny.model.prompts if prompt.text} == counted
    assert {prompt.name: prompt.text for prompt in tiny.model.prompts} == tiny.reference.prompts


def test_vectors_of_fewer_dimensions_equal_sentence_transformers(pair: ServedAndReference) -> None:
    for dimensions in (1, pair.width // 2):
        unit = pair.encode(pair.texts, output=pb.OutputOptions(dimensions=dimensions))
        expected = pair.reference.encode(pair.texts, truncate_dim=dimensions, normalize_embeddings=True)
        assert_near(values(unit.pooled), expected)
        raw = pair.encode(pair.texts, output=pb.OutputOptions(dimensions=dimensions, normalize=False))
        assert_near(values(raw.pooled), pair.unnormalized().encode(pair.texts, truncate_dim=dimensions))


@pytest.mark.parametrize(
    ("pooling", "name"),
    [
        (pb.POOLING_MEAN, "mean"),
        (pb.POOLING_CLS, "cls"),
        (pb.POOLING_MAX, "max"),
        (pb.POOLING_LAST, "lasttoken"),
        (pb.POOLING_WEIGHTED_MEAN, "weightedmean"),
        (pb.POOLING_MEAN_SQRT_LEN, "mean_sqrt_len_tokens"),
    ],
)
def test_every_pooling_equals_sentence_transformers(pair: ServedAndReference, pooling: pb.Pooling, name: str) -> None:
    reply = pair.encode(pair.texts, output=pb.OutputOptions(pooling=pooling, normalize=False))
    assert_near(values(reply.pooled), pair.unnormalized(name).encode(pair.texts))


def test_int8_vectors_are_within_one_step_of_sentence_transformers(pair: ServedAndReference) -> None:
    from sentence_transformers.util.quantization import quantize_embeddings

    exact = pair.reference.encode(pair.texts)
    pooled = pair.encode(pair.texts, output=pb.OutputOptions(dtype=pb.DATA_TYPE_INT8)).pooled
    scales = np.array(pooled.row_scales)[:, None]
    assert pooled.dtype == pb.DATA_TYPE_INT8
    assert_near(values(pooled), exact, scales.max() / 2 + MAX_ABS)

    # sentence-transformers divides the range of each dimension into 255 steps, and returns the step of each value.
    by_dimension = np.stack([exact.min(axis=0), exact.max(axis=0)])
    steps = (by_dimension[1] - by_dimension[0]) / 255
    reference_steps = quantize_embeddings(exact, "int8", ranges=by_dimension) + 128.5
    differences = np.abs(values(pooled) - (by_dimension[0] + reference_steps * steps))
    assert (differences <= np.maximum(scales, steps) + MAX_ABS).all()

    # With the ranges of one row, sentence-transformers returns our values, except for values halfway between two steps.
    for row, step, vector in zip(np.frombuffer(pooled.data, "i1").reshape(exact.shape), scales, exact, strict=True):
        ranges = np.stack([np.full(pair.width, -128.5 * step), np.full(pair.width, 126.5 * step)])
        assert_near(row, quantize_embeddings(vector[None], "int8", ranges=ranges)[0], 1)


def test_float16_vectors_equal_sentence_transformers_after_rounding(pair: ServedAndReference) -> None:
    reply = pair.encode(pair.texts, output=pb.OutputOptions(dtype=pb.DATA_TYPE_FLOAT16))
    half = float(np.finfo(np.float16).eps) / 2
    assert_near(values(reply.pooled), pair.reference.encode(pair.texts), half + MAX_ABS)


def test_valid_texts_of_a_partial_request_equal_sentence_transformers(pair: ServedAndReference) -> None:
    texts = [pair.texts[0], pair.long, "\u3000 "]
    reply = pair.encode(texts, partial=True)
    assert_near(values(reply.pooled)[[0, 2]], pair.reference.encode([texts[0], texts[2]]))
    assert not values(reply.pooled)[1].any()
    assert [(failure.sequence, failure.reason) for failure in reply.failures] == [(1, pb.SEQUENCE_TOO_LONG)]
