"""Writes replies: the outcome of a request, or the description of a model, as messages."""

from dataclasses import asdict

import numpy as np
from numpy.typing import NDArray

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_server.config import Settings
from headwaiter_server.rpc.inputs import Inputs
from headwaiter_server.rpc.outputs import Output
from headwaiter_server.rpc.requests import RequestLimits
from headwaiter_server.rpc.status import failure
from headwaiter_server.rpc.tensors import fill
from headwaiter_server.runtime.attention_weights import AttentionWeights
from headwaiter_server.runtime.model import Model
from headwaiter_server.runtime.pooling import POOLINGS, pool
from headwaiter_server.runtime.tolerance import normalize_pooled
from headwaiter_server.scheduling.calibration import Calibration
from headwaiter_server.scheduling.queued_request import Outcome

_FLOAT_BYTES = 4


def answer_bytes(inputs: Inputs, output: Output, model: Model) -> int:
    """Return how many bytes of numbers there are on the way to the answer, at most."""
    rows = sum(map(len, inputs.sequences)) if output.needs_rows(inputs.skipped_tokens) else 0
    return (len(inputs.sequences) + rows) * model.bundle.manifest.width * _FLOAT_BYTES


def encode_reply(request_id: str, inputs: Inputs, output: Output, outcome: Outcome, model: Model) -> pb.EncodeResponse:
    """Write the answer, but for its timings.

    Raises:
        InvalidInput: float16 was asked for and cannot hold the answer.
    """
    lengths = [0 if index in outcome.failures else len(each) for index, each in enumerate(inputs.sequences)]
    reply = pb.EncodeResponse(request_id=request_id, model=model_ref(model), lengths=lengths)
    if output.pooled:
        fill(reply.pooled, _with_zeros(_finished(inputs, output, outcome), lengths), output.pooled_dtype)
    if output.hidden:
        none = np.empty((0, model.bundle.manifest.width), np.float16)
        fill(reply.hidden, np.concatenate([none, *(outcome.hidden or ())]), output.hidden_dtype)
    for index, original_tokens in inputs.truncated.items():
        reply.truncated.add(sequence=index, original_tokens=original_tokens)
    for length, offsets in zip(lengths, inputs.offsets or (), strict=False):
        reply.offsets.add(begin=offsets[:length, 0].tolist(), end=offsets[:length, 1].tolist())
    reply.failures.extend(failure(index, error) for index, error in sorted(outcome.failures.items()))
    return reply


def _finished(inputs: Inputs, output: Output, outcome: Outcome) -> NDArray[np.float32]:
    """Return the pooled vectors [answered, dimensions], the graph's or those of hidden rows."""
    vectors = outcome.pooled or []
    if not output.graph_pools or inputs.skipped_tokens:
        vectors = [pool(rows, output.pooling, inputs.skipped_tokens) for rows in outcome.hidden or ()]
    if not vectors:
        return np.empty((0, output.dimensions), np.float32)
    return normalize_pooled(np.array(vectors)[:, : output.dimensions], normalized=output.normalized)


def _with_zeros(vectors: NDArray[np.float32], lengths: list[int]) -> NDArray[np.float32]:
    """Put vectors of zeros where sequences have no tokens, which are those that failed."""
    if len(vectors) == len(lengths):
        return vectors
    aligned = np.zeros((len(lengths), vectors.shape[1]), np.float32)
    aligned[np.flatnonzero(lengths)] = vectors
    return aligned


def attend_reply(request_id: str, attention: AttentionWeights, tokens: list[str], model: Model) -> pb.AttendResponse:
    """Write what attention looked at, but for its timings; the tokens are those of a text."""
    reply = pb.AttendResponse(request_id=request_id, model=model_ref(model), tokens=tokens)
    reply.model.precision = pb.PRECISION_FP32  # Its graph has no other.
    fill(reply.weights, attention.weights, pb.DATA_TYPE_FLOAT32)
    if attention.context is not None:
        fill(reply.context, attention.context, pb.DATA_TYPE_FLOAT32)
    return reply


def model_ref(model: Model) -> pb.ModelRef:
    """Name the weights that answer."""
    manifest = model.bundle.manifest
    return pb.ModelRef(name=manifest.name, digest=model.bundle.digest, precision=model.precision)


def model_reply(model: Model, settings: Settings, calibration: Calibration) -> pb.GetModelResponse:
    """Describe a model: what it takes and gives, where it runs, and how far it is from PyTorch."""
    manifest = model.bundle.manifest
    limits = RequestLimits(settings.max_request_sequences, settings.max_request_tokens)
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
            max_sequences=limits.sequences,
            max_tokens=limits.tokens,
            max_message_bytes=settings.max_request_bytes,
            max_attend_bytes=settings.max_attend_bytes,
            # More would not fit into a message.
            max_text_bytes=min(limits.text_bytes, settings.max_request_bytes),
        ),
        execution=pb.Execution(
            provider=model.provider,
            requested_provider=settings.provider,
            fallback_reason=model.fallback_reason,
            precision=model.precision,
            graph=model.graph_file,
            token_budget=calibration.limits.tokens,
            cell_budget=calibration.limits.cells,
            self_check=pb.SelfCheck(sequences=model.self_check_sequences, **asdict(model.self_check)),
            cost=_cost(calibration),
        ),
        parity=model.parity.graphs,
        attends=manifest.HasField("attend"),
        prompts=manifest.prompts,
        default_prompt=manifest.default_prompt,
        poolings=POOLINGS,
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
