"""The rules of heads: which requests may ask for scores, and how logits become scores."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_proto.rules.errors import InvalidInput
from headwaiter_proto.rules.tasks import SCORES, wrong_model

# The fields that requests to Classify and to Encode share, except the input and the output.
_OPTIONS = [
    field.name
    for field in pb.ClassifyRequest.DESCRIPTOR.fields
    if field.containing_oneof is None and field.name != "output"
]


def read_head(options: pb.OutputOptions, manifest: Manifest) -> pb.Head | None:
    """Return the head whose scores a request asks for; None if it asks for no scores.

    The head of a request for raw scores has the function IDENTITY.

    Raises:
        InvalidInput: the model has no head, or the request chooses the form of scores that it does not ask for.
    """
    if not options.scores:
        if options.raw_scores:
            raise InvalidInput("output.raw_scores is set without output.scores: set both", field="output.raw_scores")
        if options.logits:
            raise InvalidInput("output.logits is set without output.scores: set both", field="output.logits")
        return None
    if not SCORES.has(manifest):
        raise wrong_model(manifest.name, manifest, SCORES)
    if not options.raw_scores:
        return manifest.head
    return pb.Head(labels=manifest.head.labels, function=pb.SCORE_FUNCTION_IDENTITY, per_token=manifest.head.per_token)


def scores(logits: NDArray[np.float32], function: pb.ScoreFunction) -> NDArray[np.float32]:
    """Return the scores [n, labels] of logits [n, labels]."""
    if function == pb.SCORE_FUNCTION_IDENTITY:
        return logits
    if function == pb.SCORE_FUNCTION_RELU:
        return np.maximum(logits, 0)
    exact = logits.astype(np.float64)
    if function == pb.SCORE_FUNCTION_SIGMOID:
        # exp(−|x|) cannot overflow: 1 / (1 + exp(−x)) = exp(x) / (1 + exp(x)).
        small = np.exp(-np.abs(exact))
        probabilities = np.where(exact >= 0, 1.0, small) / (1.0 + small)
    else:
        powers = np.exp(exact - exact.max(axis=1, keepdims=True))
        probabilities = powers / powers.sum(axis=1, keepdims=True)
    return probabilities.astype(np.float32)


def encode_request(request: pb.ClassifyRequest) -> pb.EncodeRequest:
    """Return a request to Classify as a request to Encode for scores; its fields have the same names."""
    encode = pb.EncodeRequest(**{name: getattr(request, name) for name in _OPTIONS})
    if kind := request.WhichOneof("input"):
        getattr(encode, kind).CopyFrom(getattr(request, kind))
    output = request.output
    encode.output.CopyFrom(
        pb.OutputOptions(scores=True, raw_scores=output.raw_scores, offsets=output.offsets, logits=output.logits)
    )
    return encode


def classify_response(response: pb.EncodeResponse, head: pb.Head) -> pb.ClassifyResponse:
    """Return the reply to Classify from the reply to its `encode_request`; `head` as `read_head` returns it."""
    return pb.ClassifyResponse(
        request_id=response.request_id,
        model=response.model,
        head=head,
        scores=response.scores,
        logits=response.logits if response.HasField("logits") else None,
        lengths=response.lengths,
        timings=response.timings,
        truncated=response.truncated,
        offsets=response.offsets,
        failures=response.failures,
    )


def join_logits(logits: Sequence[NDArray[np.float32]], head: pb.Head) -> NDArray[np.float32]:
    """Return the logits of several sequences, one after another, [n, labels]."""
    return np.concatenate([np.empty((0, len(head.labels)), np.float32), *logits])
