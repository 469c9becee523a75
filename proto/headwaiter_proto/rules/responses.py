"""Write the replies that the server and the client's FakeEncoder share."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_proto.rules.classification import join_logits, scores
from headwaiter_proto.rules.errors import HeadwaiterError, InvalidInput
from headwaiter_proto.rules.images import min_tokens, prefix_rows, takes_images
from headwaiter_proto.rules.limits import RequestLimits
from headwaiter_proto.rules.outputs import WantedOutput, hidden_width, poolings
from headwaiter_proto.rules.sequences import ParsedInput
from headwaiter_proto.rules.sparse import sparse_message, weighted_tokens
from headwaiter_proto.rules.status import failure
from headwaiter_proto.rules.target import takes_target
from headwaiter_proto.rules.tasks import tasks, weighs_tokens
from headwaiter_proto.rules.token_types import without_types

_INT8_MAX = 127


def encode_response(
    parsed: ParsedInput,
    output: WantedOutput,
    pooled: NDArray[np.float32] | Sequence[NDArray[Any]] | None,
    hidden: NDArray[np.generic] | None,
    failures: Mapping[int, HeadwaiterError],
    logits: Sequence[NDArray[np.float32]] | None = None,
) -> pb.EncodeResponse:
    """Return the reply to an Encode request, without its id, its model and its timings.

    Args:
        parsed: the sequences of the request.
        output: the outputs of the reply.
        pooled: [answered sequences, dimensions], or the entries of each answered sequence if the reply has sparse
            vectors; None to leave pooled vectors out.
        hidden: [tokens of all answered sequences, hidden width]; None to leave hidden rows out.
        failures: the errors of the other sequences, by index.
        logits: [1, labels] of each answered sequence, or [its tokens, labels]; used if the reply has scores,
            or sparse vectors of token weights.

    Raises:
        InvalidInput: the request asks for FLOAT16, which cannot hold a value of the reply.
    """
    lengths = [0 if index in failures else len(sequence) for index, sequence in enumerate(parsed.sequences)]
    reply = pb.EncodeResponse(lengths=lengths)
    kept = parsed.kept_rows
    if kept is not None:
        reply.rows.extend(int(rows.sum()) if length else 0 for rows, length in zip(kept, lengths, strict=True))
    if output.unweighted_ids is not None:
        answered = [tokens for tokens, length in zip(parsed.sequences, lengths, strict=True) if length]
        weights = [
            weighted_tokens(without_types(tokens), scores(rows, pb.SCORE_FUNCTION_RELU)[:, 0], output.unweighted_ids)
            for tokens, rows in zip(answered, logits or (), strict=True)
        ]
        reply.sparse.CopyFrom(_sparse(weights, lengths, output.pooled_dtype))
    if isinstance(pooled, Sequence):
        reply.sparse.CopyFrom(_sparse(pooled, lengths, output.pooled_dtype))
    elif pooled is not None:
        fill(reply.pooled, _add_zero_rows(pooled, lengths), output.pooled_dtype)
    if hidden is not None:
        if kept is not None:
            answered = [rows for rows, length in zip(kept, lengths, strict=True) if length]
            hidden = hidden[np.concatenate([np.empty(0, bool), *answered])]
        field = "output.dtype" if output.hidden_dtype == output.pooled_dtype else "output.hidden_dtype"
        fill(reply.hidden, hidden, output.hidden_dtype, field)
    if output.head is not None:
        joined = join_logits(logits or (), output.head)
        outputs = [(reply.scores, scores(joined, output.head.function))]
        if output.logits:
            outputs.append((reply.logits, joined))
        for tensor, rows in outputs:
            aligned = rows if output.head.per_token else _add_zero_rows(rows, lengths)
            fill(tensor, aligned, pb.DATA_TYPE_FLOAT32)
    shown = [offsets[: lengths[index]] for index, offsets in enumerate(parsed.offsets or ())]
    if kept is not None:
        shown = [offsets[kept[index][: lengths[index]]] for index, offsets in enumerate(shown)]
    add_truncated_and_offsets(reply, parsed.truncated, shown)
    reply.failures.extend(failure(index, error) for index, error in sorted(failures.items()))
    return reply


def add_truncated_and_offsets(
    reply: pb.EncodeResponse | pb.TokenizeResponse,
    truncated: Mapping[int, int],
    offsets: Sequence[NDArray[np.int64]],
) -> None:
    """Add the number of tokens that truncated texts had, by index, and the offsets [n, 2] of each text."""
    for index, original_tokens in truncated.items():
        reply.truncated.add(sequence=index, original_tokens=original_tokens)
    for each in offsets:
        reply.offsets.add(begin=each[:, 0].tolist(), end=each[:, 1].tolist())


def row_counts(reply: pb.EncodeResponse) -> Sequence[int]:
    """Return the number of hidden rows of each sequence of a reply."""
    return reply.rows or reply.lengths


def attend_response(
    weights: NDArray[np.float32],
    context: NDArray[np.float32] | None,
    tokens: Sequence[str],
    query_vector: NDArray[np.float32] | None = None,
    keys: NDArray[np.float32] | None = None,
    values: NDArray[np.float32] | None = None,
) -> pb.AttendResponse:
    """Return the reply to an Attend request, without its id, its model and its timings.

    Args:
        weights: [layers, heads, n, n].
        context: [layers, heads, value_dim], if the request has a query.
        tokens: the tokens of a text; empty for other inputs.
        query_vector: [head_dim]; None if the request asks for no vectors.
        keys: [n, head_dim]; None without `query_vector`.
        values: [n, value_dim]; None without `query_vector`.
    """
    reply = pb.AttendResponse(tokens=tokens)
    arrays = {"weights": weights, "context": context, "query_vector": query_vector, "keys": keys, "values": values}
    for name, array in arrays.items():
        if array is not None:
            fill(getattr(reply, name), array, pb.DATA_TYPE_FLOAT32)
    return reply


def model_response(manifest: Manifest, limits: RequestLimits) -> pb.GetModelResponse:
    """Return the description of a model, without `model`, `execution` and `parity`."""
    return pb.GetModelResponse(
        takes_tokens=manifest.vocabulary_size > 0,
        takes_features=manifest.feature_width > 0,
        takes_texts=manifest.max_text_tokens > 0,
        vocabulary_size=manifest.vocabulary_size,
        feature_width=manifest.feature_width,
        min_tokens=min_tokens(manifest),
        max_tokens=manifest.max_tokens,
        max_text_tokens=manifest.max_text_tokens,
        width=manifest.width,
        hidden_width=hidden_width(manifest),
        layers=manifest.layers,
        heads=manifest.heads,
        pooling=manifest.pooling,
        normalized=manifest.normalized,
        limits=limits.message(),
        attends=manifest.HasField("attend"),
        prompts=manifest.prompts,
        default_prompt=manifest.default_prompt,
        poolings=poolings(manifest),
        prefix_rows=prefix_rows(manifest),
        image=manifest.image if manifest.HasField("image") else None,
        sound=manifest.sound if manifest.HasField("sound") else None,
        target=manifest.target if takes_target(manifest) else None,
        tasks=tasks(manifest),
        head=manifest.head if manifest.HasField("head") else None,
        takes_pairs=manifest.takes_pairs,
        token_types=manifest.token_types,
        sparse=manifest.sparse,
        weighs_tokens=weighs_tokens(manifest),
        takes_images=takes_images(manifest),
        without_rows=manifest.without_rows,
    )


def fill(tensor: pb.Tensor, values: NDArray[np.generic], dtype: pb.DataType, field: str = "output.dtype") -> None:
    """Write an array [..., width] of floats as FLOAT32, FLOAT16 or INT8; errors name the request's `field`.

    Raises:
        InvalidInput: FLOAT16 cannot hold a value.
    """
    cast: NDArray[np.generic]
    if dtype == pb.DATA_TYPE_INT8:
        cast, scales = quantize_rows(values.astype(np.float32, copy=False))
        tensor.row_scales.extend(scales.tolist())
    else:
        cast = _to_float16(values, field) if dtype == pb.DATA_TYPE_FLOAT16 else values.astype("<f4", copy=False)
    tensor.dtype = dtype
    tensor.shape.extend(cast.shape)
    tensor.data = cast.tobytes()


def quantize_rows(rows: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return rows [n, width] as int8, and the scales [n]: a row's largest magnitude becomes 127."""
    scales = np.abs(rows).max(axis=-1, initial=0.0) / np.float32(_INT8_MAX)
    # The scale is 0 if the row is all zeros, or if its largest magnitude / 127 is too small for float32.
    quotients = np.divide(rows, scales[:, None], out=np.zeros_like(rows), where=scales[:, None] > 0)
    return np.rint(quotients).clip(-_INT8_MAX, _INT8_MAX).astype(np.int8), scales


def _sparse(vectors: Sequence[NDArray[Any]], lengths: Sequence[int], dtype: pb.DataType) -> pb.SparseVectors:
    for entries in vectors if dtype == pb.DATA_TYPE_FLOAT16 else ():
        _to_float16(entries["value"], "output.dtype")
    return sparse_message(vectors, lengths, dtype)


def _to_float16(values: NDArray[np.generic], field: str) -> NDArray[np.float16]:
    with np.errstate(over="ignore"):
        half = values.astype("<f2", copy=False)
    if not np.isfinite(half).all():
        largest = np.abs(values).max()
        raise InvalidInput(
            f"{field}: the answer has the value {largest:g}, which FLOAT16 cannot hold: ask for FLOAT32",
            field=field,
        )
    return half


def _add_zero_rows(vectors: NDArray[np.float32], lengths: list[int]) -> NDArray[np.float32]:
    """Insert a row of zeros for each failed sequence, whose length is 0."""
    if len(vectors) == len(lengths):
        return vectors
    aligned = np.zeros((len(lengths), vectors.shape[1]), np.float32)
    aligned[np.flatnonzero(lengths)] = vectors
    return aligned
