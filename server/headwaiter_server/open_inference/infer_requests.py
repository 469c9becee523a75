"""Turn a ModelInferRequest into an EncodeRequest of headwaiter.v1, whose rules then apply. Pure functions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto import open_inference_pb2 as oip
from headwaiter_proto.rules.errors import MAX_QUOTED_CHARACTERS, InvalidInput, Unimplemented
from headwaiter_proto.rules.limits import RequestLimits, check_count
from headwaiter_server.open_inference.parameters import apply_parameters
from headwaiter_server.open_inference.tensors import (
    InputTensor,
    kept_positions,
    read_array,
    read_texts,
)

OUTPUTS = ("pooled", "hidden", "scores", "token_count")

# The types of each input, and its possible numbers of axes.
_INPUTS: dict[str, tuple[tuple[str, ...], tuple[int, ...]]] = {
    "text": (("BYTES",), (1, 2)),
    "text_pair": (("BYTES",), (1, 2)),
    "input_ids": (("INT64", "INT32"), (2,)),
    "features": (("FP32", "FP16"), (3,)),
    "attention_mask": (("INT64", "INT32"), (2,)),
    "token_type_ids": (("INT64", "INT32"), (2,)),
}
# The inputs that go with others.
_OWNERS = {
    "text_pair": ("text",),
    "attention_mask": ("input_ids", "features"),
    "token_type_ids": ("input_ids",),
}
_HIGHEST_TYPE = 255
_SEQUENCE_INPUTS = ("text", "input_ids", "features")
_DTYPES = {
    "INT32": pb.DATA_TYPE_INT32,
    "INT64": pb.DATA_TYPE_INT64,
    "FP16": pb.DATA_TYPE_FLOAT16,
    "FP32": pb.DATA_TYPE_FLOAT32,
}
_LONGEST_AXIS = 2**31 - 1
_SHARED_MEMORY = "shared_memory_region"
# KServe's client sends this parameter of the protocol over HTTP over gRPC too, with the size of the raw values.
_BINARY_DATA_SIZE = "binary_data_size"

# An input, and its raw values; None if the values are in its contents.
_Input = tuple[InputTensor, bytes | None]


@dataclass(frozen=True, slots=True)
class WantedReply:
    """What the reply to a request has besides its values.

    Attributes:
        request_id: the id of the request; may be empty.
        outputs: the outputs in the order of the reply; empty for the default output.
        raw: whether the values are raw.
        pads_scores: whether each token has scores, so that they are padded.
        kept: which positions [sequences, padded length] of the input are tokens; outputs have the same places. None for
            an input without padding.
    """

    request_id: str
    outputs: tuple[str, ...]
    raw: bool
    pads_scores: bool = False
    kept: NDArray[np.bool_] | None = None


def read_infer_request(
    request: oip.ModelInferRequest,
    limits: RequestLimits,
    head: pb.Head | None = None,
    *,
    scores: bool = False,
    sparse: bool = False,
) -> tuple[pb.EncodeRequest, WantedReply]:
    """Return the request as a message of headwaiter.v1, and what its reply must look like.

    Args:
        request: the request.
        limits: the limits of the request.
        head: the head of the model, if it has one.
        scores: whether scores are the default output.
        sparse: whether the model's vectors are sparse; here they have all their numbers.

    Raises:
        InvalidInput: an input, an output or a parameter is wrong.
        Unimplemented: the request uses an extension that the server lacks.
    """
    encode_request = pb.EncodeRequest(
        model=request.model_name, model_version=request.model_version, request_id=request.id
    )
    outputs = _read_outputs(request)
    encode_request.output.dense = sparse
    if "pooled" in outputs:
        encode_request.output.pooled = True
    if "hidden" in outputs:
        encode_request.output.hidden = True
    if "scores" in outputs or (scores and not outputs):
        encode_request.output.scores = True
    inputs = _read_inputs(request)
    kinds = [name for name in _SEQUENCE_INPUTS if name in inputs]
    if len(kinds) != 1:
        found = " and ".join(map(repr, kinds)) or "none of them"
        raise InvalidInput(f"the request has {found}: send exactly one of the inputs {_names(_SEQUENCE_INPUTS)}")
    kept = _fill_sequences(encode_request, inputs, kinds[0], limits)
    # After the sequences, because a prompt belongs to texts.
    apply_parameters(request.parameters, encode_request)
    per_token = head is not None and head.per_token
    return encode_request, WantedReply(request.id, outputs, bool(request.raw_input_contents), per_token, kept)


def _read_outputs(request: oip.ModelInferRequest) -> tuple[str, ...]:
    """Return the names of the requested outputs."""
    for output in request.outputs:
        if output.name not in OUTPUTS:
            name = output.name[:MAX_QUOTED_CHARACTERS]
            raise InvalidInput(f"output {name!r} is unknown: ask for {_names(OUTPUTS)}", field="outputs")
        _refuse_parameters(f"output {output.name!r}", output.parameters)
    names = tuple(output.name for output in request.outputs)
    if len(set(names)) < len(names):
        # Each output of the reply takes room, and the limits count it once.
        raise InvalidInput("the request has two outputs of the same name: ask for each output once", field="outputs")
    return names


def _read_inputs(request: oip.ModelInferRequest) -> dict[str, _Input]:
    """Return the inputs by name, with their raw values; their names, types and shapes are checked."""
    raw, tensors = request.raw_input_contents, request.inputs
    for tensor in tensors:
        _check_input(tensor)
        if raw and tensor.HasField("contents"):
            raise InvalidInput(
                f"input {tensor.name!r} has contents, and the request has raw_input_contents: send all values in one "
                "of the two",
                field=tensor.name,
            )
    if raw and len(raw) != len(tensors):
        raise InvalidInput(
            f"the request has {len(tensors)} inputs and {len(raw)} raw_input_contents: send one for each input",
            field="raw_input_contents",
            limit=len(tensors),
            actual=len(raw),
        )
    inputs = {tensor.name: (tensor, raw[index] if raw else None) for index, tensor in enumerate(tensors)}
    if len(inputs) < len(tensors):
        raise InvalidInput("the request has two inputs of the same name: send each input once", field="inputs")
    return inputs


def _check_input(tensor: InputTensor) -> None:
    if tensor.name not in _INPUTS:
        name = tensor.name[:MAX_QUOTED_CHARACTERS]
        raise InvalidInput(f"input {name!r} is unknown: send {_names(tuple(_INPUTS))}", field="inputs")
    _refuse_parameters(f"input {tensor.name!r}", tensor.parameters)
    types, axes = _INPUTS[tensor.name]
    if tensor.datatype not in types:
        datatype = tensor.datatype[:MAX_QUOTED_CHARACTERS]
        problem = f"input {tensor.name!r} has the datatype {datatype!r}: send {' or '.join(types)}"
        raise InvalidInput(problem, field=tensor.name)
    shape = list(tensor.shape[: max(axes) + 1])
    two_dimensional_texts = tensor.datatype == "BYTES" and len(shape) == 2
    # A longer axis cannot hold values, but numpy would refuse the shape even of an empty array.
    wrong_axis = min(shape, default=0) < 0 or max(shape, default=0) > _LONGEST_AXIS
    if len(shape) not in axes or wrong_axis or (two_dimensional_texts and shape[1] != 1):
        expected = {
            "text": "[sequences] or [sequences, 1]",
            "text_pair": "[sequences] or [sequences, 1]",
            "features": "[sequences, longest length, width]",
        }.get(tensor.name, "[sequences, longest length]")
        raise InvalidInput(f"input {tensor.name!r} has the shape {shape}: send {expected}", field=tensor.name)


def _fill_sequences(
    encode_request: pb.EncodeRequest, inputs: Mapping[str, _Input], kind: str, limits: RequestLimits
) -> NDArray[np.bool_] | None:
    """Write the sequences of an input into a request; return which positions of the input are tokens."""
    tensor, raw = inputs[kind]
    # Before any value is read, because reading takes time for each sequence.
    check_count(tensor.shape[0], limits)
    for name, owners in _OWNERS.items():
        if name in inputs and kind not in owners:
            problem = f"{name} belongs to {' or '.join(owners)}, and the request has {kind}: leave it out"
            raise InvalidInput(problem, field=name)
    if kind == "text":
        texts = read_texts(tensor, raw)
        if "text_pair" in inputs:
            encode_request.pairs.first.extend(texts)
            encode_request.pairs.second.extend(read_texts(*inputs["text_pair"]))
        else:
            encode_request.texts.values.extend(texts)
        return None
    values = read_array(tensor, raw)
    kept = _kept(values, inputs.get("attention_mask"))
    rows = values if kept is None else values[kept]
    sequences, longest = values.shape[:2]
    lengths = [longest] * sequences if kept is None else np.count_nonzero(kept, axis=1).tolist()
    if kind == "input_ids":
        encode_request.tokens.dtype = _DTYPES[tensor.datatype]
        encode_request.tokens.data = rows.tobytes()
        encode_request.tokens.lengths.extend(lengths)
        if "token_type_ids" in inputs:
            encode_request.tokens.types = _token_types(values, kept, inputs["token_type_ids"])
        return kept
    encode_request.features.dtype = _DTYPES[tensor.datatype]
    encode_request.features.width = tensor.shape[2]
    encode_request.features.data = rows.tobytes()
    encode_request.features.lengths.extend(lengths)
    return kept


def _kept(values: NDArray[Any], mask_input: _Input | None) -> NDArray[np.bool_] | None:
    """Return which positions of padded sequences [n, s, ...] are tokens; None if all are."""
    if mask_input is None:
        return None
    mask = read_array(*mask_input)
    _check_shape("attention_mask", mask, values)
    kept = kept_positions(mask)
    return None if kept.all() else kept


def _token_types(values: NDArray[Any], kept: NDArray[np.bool_] | None, types_input: _Input) -> bytes:
    """Return the token type of each token as a byte; no bytes if all types are 0, as tokenizers of many models send."""
    types = read_array(*types_input)
    _check_shape("token_type_ids", types, values)
    is_wrong = (types < 0) | (types > _HIGHEST_TYPE)
    wrong = np.argwhere(is_wrong if kept is None else is_wrong & kept)
    if len(wrong):
        sequence, position = wrong[0].tolist()
        raise InvalidInput(
            f"token_type_ids of sequence {sequence} has {types[sequence, position]}: send types from 0 to "
            f"{_HIGHEST_TYPE}",
            sequence=sequence,
            field="token_type_ids",
        )
    packed = (types if kept is None else types[kept]).astype(np.uint8)
    return packed.tobytes() if packed.any() else b""


def _check_shape(name: str, array: NDArray[Any], values: NDArray[Any]) -> None:
    if array.shape != values.shape[:2]:
        raise InvalidInput(
            f"{name} has the shape {list(array.shape)}, and the sequences have {list(values.shape[:2])}: send one "
            "value for each token",
            field=name,
        )


def _refuse_parameters(owner: str, parameters: Mapping[str, oip.InferParameter]) -> None:
    """Refuse the parameters of an input or an output: they belong to extensions that the server lacks."""
    if _SHARED_MEMORY in parameters:
        raise Unimplemented(f"{owner} is in shared memory, which the server does not offer: send the values")
    if "classification" in parameters:
        raise Unimplemented(f"{owner} asks for a classification, which the server does not offer: leave it out")
    for name in sorted(parameters.keys() - {_BINARY_DATA_SIZE}):
        problem = f"{owner} has the unknown parameter {name[:MAX_QUOTED_CHARACTERS]!r}"
        raise InvalidInput(f"{problem}: leave it out", field="parameters")


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(map(repr, names))
