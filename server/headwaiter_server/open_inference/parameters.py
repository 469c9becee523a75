"""Apply the parameters of a ModelInferRequest to an EncodeRequest of headwaiter.v1. Pure functions."""

from collections.abc import Callable, Mapping
from typing import Any

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto import open_inference_pb2 as oip
from headwaiter_proto.rules.errors import MAX_QUOTED_CHARACTERS, InvalidInput

# A caller that sets this parameter wants to know which reply to a request is the last. The server sends one reply to
# each request, and marks each reply of a stream as the last, so it needs to do nothing for this parameter.
_EMPTY_FINAL_RESPONSE = "triton_enable_empty_final_response"
# Requests of a sequence belong together only for models that keep a state, which encoders do not.
_SEQUENCE_PARAMETERS = ("sequence_id", "sequence_start", "sequence_end")
_TRUNCATIONS = {
    "error": pb.TRUNCATION_ERROR,
    "left": pb.TRUNCATION_LEFT,
    "right": pb.TRUNCATION_RIGHT,
}
_PAIR_TRUNCATIONS = {
    "longest_first": pb.PAIR_TRUNCATION_LONGEST_FIRST,
    "only_second": pb.PAIR_TRUNCATION_ONLY_SECOND,
}
_MAX_DIMENSIONS = 2**32 - 1
_MICROSECONDS_PER_S = 1e6


def apply_parameters(parameters: Mapping[str, oip.InferParameter], request: pb.EncodeRequest) -> None:
    """Write the parameters into the options of a request.

    Raises:
        InvalidInput: a parameter is unknown, or has a wrong type or value.
    """
    for name, parameter in sorted(parameters.items(), key=lambda item: item[0]):
        apply = _APPLY.get(name)
        if apply is None:
            known = ", ".join(each for each in _APPLY if _APPLY[each] not in (_ignore, _ignore_flag))
            raise InvalidInput(
                f"parameter {name[:MAX_QUOTED_CHARACTERS]!r} is unknown: the server knows {known}", field="parameters"
            )
        choice = parameter.WhichOneof("parameter_choice")
        apply(name, None if choice is None else getattr(parameter, choice), request)


def _apply_priority(name: str, value: Any, request: pb.EncodeRequest) -> None:
    if not _is_integer(value) or value < 0:
        raise _wrong(name, value, "a whole number: 0 for the default, 1 for interactive, more for bulk")
    if value:
        request.priority = pb.PRIORITY_INTERACTIVE if value == 1 else pb.PRIORITY_BULK


def _apply_timeout(name: str, value: Any, request: pb.EncodeRequest) -> None:
    if not _is_integer(value) or value < 0:
        raise _wrong(name, value, "a whole number of microseconds, or 0 to use the deadline of the call")
    request.timeout_s = value / _MICROSECONDS_PER_S


def _apply_truncation(name: str, value: Any, request: pb.EncodeRequest) -> None:
    if value not in _TRUNCATIONS:
        raise _wrong(name, value, "'error', 'left' or 'right'")
    request.truncation = _TRUNCATIONS[value]


def _apply_pair_truncation(name: str, value: Any, request: pb.EncodeRequest) -> None:
    if value not in _PAIR_TRUNCATIONS:
        raise _wrong(name, value, "'longest_first' or 'only_second'")
    if not request.HasField("pairs"):
        problem = f"parameter {name!r} belongs to text_pair, and the request has {request.WhichOneof('input')}"
        raise InvalidInput(f"{problem}: leave the parameter out", field=f"parameters.{name}")
    request.pairs.pair_truncation = _PAIR_TRUNCATIONS[value]


def _apply_raw_scores(name: str, value: Any, request: pb.EncodeRequest) -> None:
    if not isinstance(value, bool):
        raise _wrong(name, value, "true or false")
    request.output.raw_scores = value


def _apply_normalize(name: str, value: Any, request: pb.EncodeRequest) -> None:
    if not isinstance(value, bool):
        raise _wrong(name, value, "true or false")
    request.output.normalize = value


def _apply_dimensions(name: str, value: Any, request: pb.EncodeRequest) -> None:
    if not _is_integer(value) or not 0 <= value <= _MAX_DIMENSIONS:
        raise _wrong(name, value, "a whole number, at most the width of the model")
    request.output.dimensions = value


def _apply_prompt(name: str, value: Any, request: pb.EncodeRequest) -> None:
    if not isinstance(value, str):
        raise _wrong(name, value, "the name of a prompt as a string")
    if not value:
        return
    if not request.HasField("texts"):
        problem = f"parameter {name!r} belongs to text, and the request has {request.WhichOneof('input')}"
        raise InvalidInput(f"{problem}: leave the parameter out", field=f"parameters.{name}")
    request.texts.prompt = value


def _ignore(name: str, value: Any, _: pb.EncodeRequest) -> None:
    pass


def _ignore_flag(name: str, value: Any, _: pb.EncodeRequest) -> None:
    if not isinstance(value, bool):
        raise _wrong(name, value, "true or false")


_APPLY: dict[str, Callable[[str, Any, pb.EncodeRequest], None]] = {
    "priority": _apply_priority,
    "timeout": _apply_timeout,
    "truncation": _apply_truncation,
    "pair_truncation": _apply_pair_truncation,
    "raw_scores": _apply_raw_scores,
    "normalize": _apply_normalize,
    "dimensions": _apply_dimensions,
    "prompt": _apply_prompt,
    _EMPTY_FINAL_RESPONSE: _ignore_flag,
    **dict.fromkeys(_SEQUENCE_PARAMETERS, _ignore),
}


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _wrong(name: str, value: Any, expected: str) -> InvalidInput:
    quoted = "no value" if value is None else repr(value)[:MAX_QUOTED_CHARACTERS]
    return InvalidInput(f"parameter {name!r} has {quoted}: send {expected}", field=f"parameters.{name}")
