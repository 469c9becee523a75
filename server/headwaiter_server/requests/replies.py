"""Write the outcome of a request, or the description of a model, as a reply message."""

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_proto.rules.limits import RequestLimits
from headwaiter_proto.rules.outputs import WantedOutput, hidden_width
from headwaiter_proto.rules.pooling import normalize_pooled, pool
from headwaiter_proto.rules.responses import attend_response, encode_response, model_response
from headwaiter_proto.rules.sequences import ParsedInput
from headwaiter_proto.rules.sparse import dense_vectors
from headwaiter_server.models.model_version import VersionStatus
from headwaiter_server.models.served_model import ModelFacts, ServedModel
from headwaiter_server.requests.call import Call, clock
from headwaiter_server.requests.stage_durations import stage_durations
from headwaiter_server.runtime.attention_weights import AttentionSelection, AttentionWeights
from headwaiter_server.scheduling.job import BatchTimes, Interval, Outcome

_FLOAT_BYTES = 4
# A sparse vector has an index and a number for each entry.
_NUMBERS_PER_ENTRY = 2


def answer_bytes(parsed: ParsedInput, output: WantedOutput, manifest: Manifest) -> int:
    """Return the largest size of an answer's vectors and rows, in bytes; an estimate for sparse vectors."""
    tokens, sequences = sum(map(len, parsed.sequences)), len(parsed.sequences)
    rows = tokens if output.needs_rows(parsed.skipped_tokens) else 0
    scores = 0
    if output.head is not None:
        scores = (tokens if output.head.per_token else sequences) * len(output.head.labels)
        scores *= 2 if output.logits else 1
    vectors = sequences * manifest.width if output.pooled else 0
    if output.pooled and output.sparse:
        vectors = _NUMBERS_PER_ENTRY * sequences * (manifest.sparse_entries or manifest.width)
    if output.unweighted_ids is not None:
        vectors += _NUMBERS_PER_ENTRY * tokens
    return (vectors + rows * hidden_width(manifest) + scores) * _FLOAT_BYTES


def attend_answer_bytes(selection: AttentionSelection, tokens: int) -> int:
    """Return the largest size of the attention weights in an answer, in bytes."""
    return len(selection.layers) * len(selection.heads) * tokens * tokens * _FLOAT_BYTES


def encode_reply(
    request_id: str, parsed: ParsedInput, output: WantedOutput, outcome: Outcome, served: ServedModel
) -> pb.EncodeResponse:
    """Return the reply to an Encode request, without its timings.

    Raises:
        InvalidInput: the request asks for FLOAT16, which cannot hold a value of the reply.
    """
    hidden = None
    if output.hidden:
        no_rows = np.empty((0, hidden_width(served.manifest)), np.float16)
        hidden = np.concatenate([no_rows, *(outcome.hidden or ())])
    pooled = _finished_vectors(parsed, output, outcome, served.manifest) if output.pooled else None
    reply = encode_response(parsed, output, pooled, hidden, outcome.failures, outcome.logits)
    reply.request_id = request_id
    reply.model.CopyFrom(model_ref(served.facts))
    return reply


def _finished_vectors(
    parsed: ParsedInput, output: WantedOutput, outcome: Outcome, manifest: Manifest
) -> NDArray[np.float32] | list[NDArray[Any]]:
    """Return the pooled vectors [answered sequences, dimensions], pooled by the graph or from hidden rows.

    Sparse vectors are lists of entries.
    """
    vectors = outcome.pooled or []
    if output.sparse:
        return [_unit_length(each) for each in vectors] if output.normalized else vectors
    if manifest.sparse:
        dense = dense_vectors(vectors, manifest.width)
        return normalize_pooled(dense[:, : output.dimensions], normalized=output.normalized)
    if not output.graph_pools or parsed.skipped_tokens:
        vectors = [pool(rows, output.pooling, parsed.skipped_tokens) for rows in outcome.hidden or ()]
    if not vectors:
        return np.empty((0, output.dimensions), np.float32)
    return normalize_pooled(np.array(vectors)[:, : output.dimensions], normalized=output.normalized)


def _unit_length(entries: NDArray[Any]) -> NDArray[Any]:
    """Return a sparse vector scaled to unit length."""
    scaled = entries.copy()
    scaled["value"] = normalize_pooled(entries["value"][None], normalized=True)[0]
    return scaled


def attend_reply(
    request_id: str, attention: AttentionWeights, tokens: list[str], served: ServedModel
) -> pb.AttendResponse:
    """Return the reply to an Attend request, without its timings; `tokens` is empty unless the input is a text."""
    head = attention.vectors
    vectors = () if head is None else (head.query, head.keys, head.values)
    reply = attend_response(attention.weights, attention.context, tokens, *vectors)
    reply.request_id = request_id
    reply.model.CopyFrom(model_ref(served.facts))
    # The graph of attention weights is always float32.
    if reply.model.precision != pb.PRECISION_FP32:
        reply.model.precision, reply.model.results_digest = pb.PRECISION_FP32, ""
    return reply


def model_ref(facts: ModelFacts) -> pb.ModelRef:
    """Return the name, the version, the digests and the precision of a model."""
    return pb.ModelRef(
        name=facts.name,
        digest=facts.digest,
        precision=facts.precision,
        version=facts.version,
        results_digest=facts.results_digest,
    )


def model_status(version: VersionStatus) -> pb.ModelStatus:
    """Describe what a version of a model is doing."""
    state = f"MODEL_STATE_{version.state.name}"
    reply = pb.ModelStatus(name=version.name, version=version.version, state=state, reason=version.reason)
    reply.loads, reply.evictions, reply.loading_s = version.history
    return reply


def model_reply(facts: ModelFacts, limits: RequestLimits, described: pb.GetModelResponse) -> pb.GetModelResponse:
    """Describe a model: its inputs and outputs, and what the engine says of it."""
    reply = model_response(facts.manifest, limits)
    reply.model.CopyFrom(model_ref(facts))
    reply.MergeFrom(described)
    return reply


def set_timings(
    timings: pb.Timings, call: Call, admitted_s: float, batches: Collection[BatchTimes], completed_s: float
) -> None:
    """Fill in the stages of a request whose reply is ready to be sent.

    Args:
        timings: the message to fill in.
        call: the call of the request.
        admitted_s: when the request was read and tokenised.
        batches: the times of the request's batches.
        completed_s: when the last result was complete.
    """
    request = Interval(call.arrived_s, clock())
    stages = stage_durations(
        request,
        tokenizing=Interval(call.started_s, admitted_s),
        packing=[batch.packing for batch in batches],
        runs=[batch.run for batch in batches],
        responding=Interval(completed_s, request.end_s),
    )
    call.stages = stages
    if call.span is not None:
        call.span.note_stages(stages, Interval(call.started_s, admitted_s), batches, completed_s)
    for stage, duration_s in stages.items():
        setattr(timings, f"{stage}_s", duration_s)
    timings.total_s = request.seconds
    timings.batches = len(batches)
