"""Turn a request for inference into an EncodeRequest of headwaiter.v1, whose rules then apply. Pure functions.

gRPC reads the request from a message, HTTP from JSON: see `rpc/open_inference/messages.py` and
`http/api/open_inference.py`.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import MAX_QUOTED_CHARACTERS, InvalidInput
from headwaiter_proto.rules.limits import RequestLimits, check_count
from headwaiter_server.open_inference.parameters import PARAMETERS
from headwaiter_server.open_inference.tensors import Input, kept_positions, read_array, read_texts
from headwaiter_server.requests.fields import Question, fill

OUTPUTS = ("pooled", "hidden", "scores", "token_count")

# The types of each input, its possible numbers of axes, and its shape in words.
_TEXTS = (("BYTES",), (1, 2), "[sequences] or [sequences, 1]")
_TOKENS = (("INT64", "INT32"), (2,), "[sequences, longest length]")
_INPUTS: dict[str, tuple[tuple[str, ...], tuple[int, ...], str]] = {
    "text": _TEXTS,
    "text_pair": _TEXTS,
    "input_ids": _TOKENS,
    "features": (("FP32", "FP16"), (3,), "[sequences, longest length, width]"),
    "attention_mask": _TOKENS,
    "token_type_ids": _TOKENS,
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


@dataclass(frozen=True, slots=True)
class InferQuestion:
    """A request for inference.

    Attributes:
        model: name of the model; may be empty.
        version: version of the model; may be empty.
        request_id: the id of the request; may be empty.
        inputs: the inputs, which passed `check_input`. Those of a message are unpacked when they are taken.
        outputs: the names of the wanted outputs; empty for the default output.
        parameters: the values of the parameters, by name.
        raw: whether the values of the reply are raw.
        size_bytes: size of the request.
    """

    model: str
    version: str
    request_id: str
    inputs: Iterable[Input]
    outputs: Sequence[str]
    parameters: Mapping[str, Any]
    raw: bool
    size_bytes: int


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
    question: InferQuestion,
    limits: RequestLimits,
    head: pb.Head | None = None,
    *,
    scores: bool = False,
    sparse: bool = False,
) -> tuple[pb.EncodeRequest, WantedReply]:
    """Return the request as a message of headwaiter.v1, and what its reply must look like.

    Args:
        question: the request.
        limits: the limits of the request.
        head: the head of the model, if it has one.
        scores: whether scores are the default output.
        sparse: whether the model's vectors are sparse; here they have all their numbers.

    Raises:
        InvalidInput: an input, an output or a parameter is wrong.
        Unimplemented: the request uses an extension that the server lacks.
    """
    encode_request = pb.EncodeRequest(
        model=question.model, model_version=question.version, request_id=question.request_id
    )
    outputs = tuple(question.outputs)
    _check_outputs(outputs)
    encode_request.output.dense = sparse
    if "pooled" in outputs:
        encode_request.output.pooled = True
    if "hidden" in outputs:
        encode_request.output.hidden = True
    if "scores" in outputs or (scores and not outputs):
        encode_request.output.scores = True
    inputs: dict[str, Input] = {}
    for each in question.inputs:
        if each.name in inputs:
            raise InvalidInput("the request has two inputs of the same name: send each input once", field="inputs")
        inputs[each.name] = each
    kinds = [name for name in _SEQUENCE_INPUTS if name in inputs]
    if len(kinds) != 1:
        found = " and ".join(map(repr, kinds)) or "none of them"
        raise InvalidInput(f"the request has {found}: send exactly one of the inputs {_names(_SEQUENCE_INPUTS)}")
    kept = _fill_sequences(encode_request, inputs, kinds[0], limits)
    # After the sequences, because a prompt belongs to texts.
    fill(Question(encode_request), PARAMETERS, question.parameters, "parameters")
    per_token = head is not None and head.per_token
    return encode_request, WantedReply(question.request_id, outputs, question.raw, per_token, kept)


def check_input(name: str, datatype: str, shape: Sequence[int]) -> None:
    """Check the name, the type and the shape of an input.

    Raises:
        InvalidInput: one of them is wrong.
    """
    if name not in _INPUTS:
        shown = name[:MAX_QUOTED_CHARACTERS]
        raise InvalidInput(f"input {shown!r} is unknown: send {_names(tuple(_INPUTS))}", field="inputs")
    types, axes, expected = _INPUTS[name]
    if datatype not in types:
        shown = datatype[:MAX_QUOTED_CHARACTERS]
        raise InvalidInput(f"input {name!r} has the datatype {shown!r}: send {' or '.join(types)}", field=name)
    sizes = list(shape[: max(axes) + 1])
    two_dimensional_texts = datatype == "BYTES" and len(sizes) == 2
    # A longer axis cannot hold values, but numpy would refuse the shape even of an empty array.
    wrong_axis = min(sizes, default=0) < 0 or max(sizes, default=0) > _LONGEST_AXIS
    if len(sizes) not in axes or wrong_axis or (two_dimensional_texts and sizes[1] != 1):
        raise InvalidInput(f"input {name!r} has the shape {sizes}: send {expected}", field=name)


def _check_outputs(names: Sequence[str]) -> None:
    for name in names:
        if name not in OUTPUTS:
            shown = name[:MAX_QUOTED_CHARACTERS]
            raise InvalidInput(f"output {shown!r} is unknown: ask for {_names(OUTPUTS)}", field="outputs")
    if len(set(names)) < len(names):
        # Each output of the reply takes room, and the limits count it once.
        raise InvalidInput("the request has two outputs of the same name: ask for each output once", field="outputs")


def _fill_sequences(
    encode_request: pb.EncodeRequest, inputs: Mapping[str, Input], kind: str, limits: RequestLimits
) -> NDArray[np.bool_] | None:
    """Write the sequences of an input into a request; return which positions of the input are tokens."""
    tensor = inputs[kind]
    # Before any value is read, because reading takes time for each sequence.
    check_count(tensor.shape[0], limits)
    for name, owners in _OWNERS.items():
        if name in inputs and kind not in owners:
            problem = f"{name} belongs to {' or '.join(owners)}, and the request has {kind}: leave it out"
            raise InvalidInput(problem, field=name)
    if kind == "text":
        texts = read_texts(tensor)
        if "text_pair" in inputs:
            encode_request.pairs.first.extend(texts)
            encode_request.pairs.second.extend(read_texts(inputs["text_pair"]))
        else:
            encode_request.texts.values.extend(texts)
        return None
    values = read_array(tensor)
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


def _kept(values: NDArray[Any], mask_input: Input | None) -> NDArray[np.bool_] | None:
    """Return which positions of padded sequences [n, s, ...] are tokens; None if all are."""
    if mask_input is None:
        return None
    mask = read_array(mask_input)
    _check_shape("attention_mask", mask, values)
    kept = kept_positions(mask)
    return None if kept.all() else kept


def _token_types(values: NDArray[Any], kept: NDArray[np.bool_] | None, types_input: Input) -> bytes:
    """Return the token type of each token as a byte; no bytes if all types are 0, as tokenizers of many models send."""
    types = read_array(types_input)
    _check_shape("token_type_ids", types, values)
    is_wrong = (types < 0) | (types > _HIGHEST_TYPE)
    wrong = np.argwhere(is_wrong if kept is None else is_wrong & kept)
    if len(wrong):
        sequence, position = wrong[0].tolist()
        raise InvalidInput(
            f"has {types[sequence, position]} in token_type_ids: send types from 0 to {_HIGHEST_TYPE}",
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


def _names(names: tuple[str, ...]) -> str:
    return ", ".join(map(repr, names))
