"""Writes replies: the outcome of a request, or the description of a model, as messages."""

from dataclasses import asdict

import numpy as np
from numpy.typing import NDArray

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_server.batching.calibration import Calibration
from headwaiter_server.batching.job import Outcome
from headwaiter_server.config import Settings
from headwaiter_server.errors import InvalidInput
from headwaiter_server.runtime.attention import Attention
from headwaiter_server.runtime.contract import finish_pooled
from headwaiter_server.runtime.model import Model

_FLOAT_BYTES = 4


def wants_hidden(request: pb.EncodeRequest, model: Model) -> bool:
    """Tell whether hidden rows are part of the answer: asked for, or all that the model has."""
    return request.output.hidden or not model.graph.pools


def answer_bytes(request: pb.EncodeRequest, lengths: list[int], model: Model) -> int:
    """Return how many bytes of numbers the answer to sequences of these lengths has, at most."""
    vectors = len(lengths) + (sum(lengths) if wants_hidden(request, model) else 0)
    return vectors * model.bundle.manifest.width * _FLOAT_BYTES


def encode_reply(
    request: pb.EncodeRequest, request_id: str, lengths: list[int], outcome: Outcome, model: Model
) -> pb.EncodeResponse:
    """Write the answer, but for its timings.

    Raises:
        InvalidInput: float16 was asked for and cannot hold the answer.
    """
    output = request.output
    reply = pb.EncodeResponse(request_id=request_id, model=model_ref(model), lengths=lengths)
    if outcome.pooled is not None and (output.pooled or not output.hidden):
        normalized = output.normalize if output.HasField("normalize") else model.bundle.manifest.normalized
        _fill(reply.pooled, finish_pooled(np.stack(outcome.pooled), normalized=normalized), output.dtype)
    if outcome.hidden is not None:
        _fill(reply.hidden, np.concatenate(outcome.hidden), output.hidden_dtype or output.dtype)
    return reply


def attend_reply(request_id: str, attention: Attention, tokens: list[str], model: Model) -> pb.AttendResponse:
    """Write what attention looked at, but for its timings; the tokens are those of a text."""
    reply = pb.AttendResponse(request_id=request_id, model=model_ref(model), tokens=tokens)
    _fill(reply.weights, attention.weights, pb.DATA_TYPE_FLOAT32)
    if attention.context is not None:
        _fill(reply.context, attention.context, pb.DATA_TYPE_FLOAT32)
    return reply


def model_ref(model: Model) -> pb.ModelRef:
    """Name the weights that answer."""
    return pb.ModelRef(name=model.bundle.manifest.name, digest=model.bundle.digest)


def model_reply(model: Model, settings: Settings, calibration: Calibration) -> pb.GetModelResponse:
    """Describe a model: what it takes and gives, where it runs, and how far it is from PyTorch."""
    manifest = model.bundle.manifest
    return pb.GetModelResponse(
        model=model_ref(model),
        takes_tokens=manifest.vocabulary_size > 0,
        takes_features=manifest.feature_width > 0,
        takes_texts=manifest.max_text_tokens > 0,
        vocabulary_size=manifest.vocabulary_size,
        feature_width=manifest.feature_width,
        min_tokens=max(1, manifest.min_tokens),
        max_tokens=manifest.max_tokens,
        max_text_tokens=manifest.max_text_tokens,
        width=manifest.width,
        layers=manifest.layers,
        heads=manifest.heads,
        pooling=manifest.pooling,
        normalized=manifest.normalized,
        limits=pb.RequestLimits(
            max_sequences=settings.max_request_sequences,
            max_tokens=settings.max_request_tokens,
            max_message_bytes=settings.max_request_bytes,
            max_attend_bytes=settings.max_attend_bytes,
        ),
        execution=pb.Execution(
            provider=model.provider,
            requested_provider=settings.provider,
            fallback_reason=model.fallback_reason,
            precision=model.precision,
            graph=model.file,
            token_budget=calibration.limits.tokens,
            cell_budget=calibration.limits.cells,
            self_check=pb.SelfCheck(sequences=model.self_check_sequences, **asdict(model.self_check)),
            cost=_cost(calibration),
        ),
        parity=model.parity.graphs,
        attends=manifest.HasField("attend"),
    )


def _cost(calibration: Calibration) -> pb.BatchCost:
    cost = calibration.cost
    return pb.BatchCost(
        launch_s=cost.launch_s,
        token_s=cost.token_s,
        padded_row_s=cost.padded_s,
        cell_s=cost.cell_s,
        variable_length=cost.variable_length,
        error_ratio=calibration.error_ratio,
        service_tokens_per_s=calibration.service_tokens_per_s,
        remembered=calibration.remembered,
    )


def _fill(tensor: pb.Tensor, values: NDArray[np.generic], dtype: pb.DataType) -> None:
    half = dtype == pb.DATA_TYPE_FLOAT16
    with np.errstate(over="ignore"):
        cast = values.astype("<f2" if half else "<f4", copy=False)
    if half and not np.isfinite(cast).all():
        raise InvalidInput("output.dtype: the answer is beyond FLOAT16's range; ask for FLOAT32", field="output.dtype")
    tensor.dtype = pb.DATA_TYPE_FLOAT16 if half else pb.DATA_TYPE_FLOAT32
    tensor.shape.extend(cast.shape)
    tensor.data = cast.tobytes()
