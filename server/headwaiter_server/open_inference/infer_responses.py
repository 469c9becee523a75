"""Turn an EncodeResponse of headwaiter.v1 into a ModelInferResponse. Pure functions."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto import open_inference_pb2 as oip
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_proto.rules.errors import InvalidInput
from headwaiter_proto.rules.outputs import WantedOutput, hidden_width
from headwaiter_proto.rules.responses import row_counts
from headwaiter_proto.rules.sequences import ParsedInput
from headwaiter_server.open_inference.infer_requests import WantedReply
from headwaiter_server.open_inference.tensors import add_output, pad
from headwaiter_server.requests.replies import answer_bytes

_FLOAT_BYTES = 4
# Replies of streams carry this parameter. A request has one reply, which is the last.
_FINAL_RESPONSE = "triton_final_response"


def padded_answer_bytes(
    parsed: ParsedInput, output: WantedOutput, manifest: Manifest, wanted: WantedReply, max_reply_bytes: int
) -> int:
    """Return the largest size of an answer's vectors and padded rows, in bytes.

    Raises:
        InvalidInput: the padded rows have more than `max_reply_bytes` bytes.
    """
    size_bytes = answer_bytes(parsed, output, manifest)
    sequences, longest = len(parsed.sequences), max(map(len, parsed.sequences), default=0)
    if wanted.kept is not None:
        longest = wanted.kept.shape[1]
    token_widths = {"hidden": hidden_width(manifest)} if output.hidden else {}
    if output.head is not None and output.head.per_token:
        token_widths["scores"] = len(output.head.labels)
    for name, width in token_widths.items():
        padded_bytes = sequences * longest * width * _FLOAT_BYTES
        if padded_bytes > max_reply_bytes:
            raise InvalidInput(
                f"output {name!r} has the shape {[sequences, longest, width]}, padding included, and takes "
                f"{padded_bytes} bytes; the server sends at most {max_reply_bytes}: split the request, long sequences "
                "apart from short ones",
                field="outputs",
                limit=max_reply_bytes,
                actual=padded_bytes,
            )
        size_bytes += padded_bytes
    return size_bytes


def infer_response(response: pb.EncodeResponse, wanted: WantedReply) -> oip.ModelInferResponse:
    """Return the reply to a request.

    Args:
        response: the reply in headwaiter.v1, in FLOAT32, without failed sequences.
        wanted: what the request asked for.
    """
    reply = oip.ModelInferResponse(
        model_name=response.model.name, model_version=response.model.version, id=wanted.request_id
    )
    default = next(name for name in ("scores", "pooled", "hidden") if response.HasField(name))
    for name in wanted.outputs or (default,):
        if name == "token_count":
            add_output(reply, name, "INT32", np.array(row_counts(response), np.int32), raw=wanted.raw)
        else:
            values = _array(getattr(response, name))
            if name == "hidden":
                # If only some tokens have rows, such as those of a target, the rows are not at the places of the input.
                values = pad(values, row_counts(response), None if response.rows else wanted.kept)
            elif name == "scores" and wanted.pads_scores:
                values = pad(values, response.lengths, wanted.kept)
            add_output(reply, name, "FP32", values, raw=wanted.raw)
    return reply


def stream_response(response: oip.ModelInferResponse) -> oip.ModelStreamInferResponse:
    """Return the reply to a request of a stream."""
    response.parameters[_FINAL_RESPONSE].bool_param = True
    return oip.ModelStreamInferResponse(infer_response=response)


def stream_failure(request: oip.ModelInferRequest, message: str) -> oip.ModelStreamInferResponse:
    """Return the reply to a request of a stream that failed.

    Clients hand only the message to their caller, so the message names the request, as Triton's messages do.
    """
    failed = oip.ModelInferResponse(model_name=request.model_name, model_version=request.model_version, id=request.id)
    failed.parameters[_FINAL_RESPONSE].bool_param = True
    named = f"[request id: {request.id}] {message}" if request.id else message
    return oip.ModelStreamInferResponse(error_message=named, infer_response=failed)


def _array(tensor: pb.Tensor) -> NDArray[Any]:
    return np.frombuffer(tensor.data, "<f4").reshape(tuple(tensor.shape))
