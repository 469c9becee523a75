"""The parameters of requests for inference, and of their inputs and outputs, as fields."""

from typing import Any

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import Unimplemented
from headwaiter_server.requests.fields import ANYTHING, BOOLEAN, Field, Kind, ignored, one_of, whole_number
from headwaiter_server.requests.options import DIMENSIONS, NORMALIZE, PRIORITIES, PROMPT, RAW_SCORES, TRUNCATION

_NUMBER = whole_number(0, 2**64 - 1)
_PRIORITY_LEVELS = (pb.PRIORITY_UNSPECIFIED, *PRIORITIES.values())
_PAIR_TRUNCATIONS = {
    "longest_first": pb.PAIR_TRUNCATION_LONGEST_FIRST,
    "only_second": pb.PAIR_TRUNCATION_ONLY_SECOND,
}
_MICROSECONDS_PER_S = 1e6


def _read_priority(value: Any, name: str) -> int:
    level: int = min(_NUMBER.read(value, name), len(PRIORITIES))
    return _PRIORITY_LEVELS[level]


def _read_timeout(value: Any, name: str) -> float:
    return float(_NUMBER.read(value, name) / _MICROSECONDS_PER_S)


def _refuse(_: Any, name: str) -> None:
    raise Unimplemented(f"{name}: the server offers neither shared memory nor classification: leave it out", field=name)


PARAMETERS = (
    Field("priority", Kind(_read_priority, _NUMBER.schema), "priority", "0: default; 1: interactive; larger: bulk."),
    Field("timeout", Kind(_read_timeout, _NUMBER.schema), "timeout_s", "Microseconds until the answer is too late."),
    TRUNCATION,
    Field("pair_truncation", one_of(_PAIR_TRUNCATIONS), "pairs.pair_truncation", "Which text of a pair loses tokens."),
    RAW_SCORES,
    NORMALIZE,
    DIMENSIONS,
    PROMPT,
    # The server sends one reply to each request, and marks each reply of a stream as the last.
    ignored("triton_enable_empty_final_response", BOOLEAN),
    # Requests of a sequence belong together only for models that keep a state, which encoders do not.
    *(ignored(name, ANYTHING) for name in ("sequence_id", "sequence_start", "sequence_end")),
)
_NOT_OFFERED = Kind(_refuse, {"not": {}, "description": "not offered"})
# Of inputs and of outputs. KServe's client sends the size over gRPC too, beside raw values.
TENSOR_PARAMETERS = (
    Field("binary_data_size", whole_number(0), "options.size_bytes", "Size of an input after the JSON."),
    *(
        Field(name, _NOT_OFFERED, about="Refused.")
        for name in ("classification", "shared_memory_region", "shared_memory_byte_size", "shared_memory_offset")
    ),
)
