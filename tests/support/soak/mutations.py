"""Mutated messages: pure functions from a seed to the bytes of requests for every method."""

import struct
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NamedTuple

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from grpc_health.v1.health_pb2 import HealthCheckRequest
from grpc_reflection.v1alpha.reflection_pb2 import ExtensionRequest, ServerReflectionRequest

from headwaiter_proto import encoder_pb2 as pb

_ENCODER = "/headwaiter.v1.Encoder/"
_IDS = struct.pack("<8i", *range(8))
_ROWS = struct.pack("<12f", *range(12))
_TOKENS = pb.TokenSequences(dtype=pb.DATA_TYPE_INT32, data=_IDS, lengths=[3, 5])
_FEATURES = pb.FeatureSequences(dtype=pb.DATA_TYPE_FLOAT32, width=6, data=_ROWS, lengths=[1, 1])
_TEXTS = pb.Texts(values=["fresh bread", "rain falls on stone"], prompt="query")
_OUTPUT = pb.OutputOptions(hidden=True, pooled=True, pooling=pb.POOLING_MEAN, dimensions=8, dtype=pb.DATA_TYPE_FLOAT16)
_ENCODE_REQUESTS: list[Message] = [
    pb.EncodeRequest(request_id="a", tokens=_TOKENS, output=_OUTPUT, priority=pb.PRIORITY_BULK, partial=True),
    pb.EncodeRequest(request_id="b", features=_FEATURES, output=_OUTPUT, timeout_s=1.5),
    pb.EncodeRequest(
        request_id="c", texts=_TEXTS, truncation=pb.TRUNCATION_LEFT, output=pb.OutputOptions(offsets=True)
    ),
    pb.EncodeRequest(request_id="d", model="tiny-text", texts=_TEXTS, partial=True),
]
VALID: dict[str, list[Message]] = {
    f"{_ENCODER}Encode": _ENCODE_REQUESTS,
    f"{_ENCODER}EncodeStream": _ENCODE_REQUESTS,
    f"{_ENCODER}Attend": [
        pb.AttendRequest(texts=pb.Texts(values=["fresh bread"]), layers=[1, 0], heads=[2], query=1),
        pb.AttendRequest(tokens=pb.TokenSequences(dtype=pb.DATA_TYPE_INT32, data=_IDS, lengths=[8]), heads=[0, 3]),
    ],
    f"{_ENCODER}ListModels": [pb.ListModelsRequest()],
    f"{_ENCODER}GetModel": [pb.GetModelRequest(name="tiny-text"), pb.GetModelRequest()],
    "/grpc.health.v1.Health/Check": [HealthCheckRequest(service="headwaiter.v1.Encoder"), HealthCheckRequest()],
    "/grpc.health.v1.Health/Watch": [HealthCheckRequest(service="headwaiter.v1.Encoder"), HealthCheckRequest()],
    "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo": [
        ServerReflectionRequest(list_services="*"),
        ServerReflectionRequest(file_containing_symbol="headwaiter.v1.Encoder"),
        ServerReflectionRequest(file_by_filename="headwaiter_proto/encoder.proto"),
        ServerReflectionRequest(all_extension_numbers_of_type="google.protobuf.MethodOptions"),
        ServerReflectionRequest(
            file_containing_extension=ExtensionRequest(containing_type="headwaiter.v1.Texts", extension_number=9)
        ),
    ],
}
_STREAMS = ("EncodeStream", "ServerReflectionInfo")
# Encode and its stream have the most code behind them.
_WEIGHTS = [8 if method.endswith("Encode") else 3 if method.endswith("EncodeStream") else 1 for method in VALID]

_INTEGERS = (0, 1, -1, 2, 63, 64, 65, 255, 1 << 16, (1 << 31) - 1, -(1 << 31), (1 << 32) - 1, (1 << 63) - 1)
_FLOATS = (0.0, -0.0, -1.0, 1e-320, 1e-6, 1e308, float("inf"), float("-inf"), float("nan"))
_STRINGS = ("", " ", "\x00", "a" * 300, "￿", "e" + "\u0301" * 500, "\U0001f600" * 40, "bread " * 400, "../" * 90)


class Messages(NamedTuple):
    """The messages of one call.

    Attributes:
        method: full name of the gRPC method.
        raw: the bytes of each message; a single one, unless the caller may send a stream.
    """

    method: str
    raw: list[bytes]


def mutated_calls(seed: int) -> Iterator[Messages]:
    """Yield calls of all methods with mutated messages, without end; the same seed yields the same calls."""
    return _calls(Random(seed), _mutated)


def valid_calls(seed: int) -> Iterator[Messages]:
    """Yield calls with unchanged messages, from the same mix of methods."""
    return _calls(Random(seed), lambda _, message: message.SerializeToString())


def _calls(random: Random, write: Callable[[Random, Message], bytes]) -> Iterator[Messages]:
    while True:
        (method,) = random.choices(list(VALID), _WEIGHTS)
        messages = random.choices(VALID[method], k=random.randint(1, 4) if method.endswith(_STREAMS) else 1)
        yield Messages(method, [write(random, message) for message in messages])


def _mutated(random: Random, message: Message) -> bytes:
    changed = type(message)()
    changed.CopyFrom(message)
    for _ in range(random.choice((0, 1, 1, 2, 4))):
        _set_random_field(random, changed)
    raw = changed.SerializeToString()
    for _ in range(random.choice((0, 0, 1, 1, 3))):
        raw = random.choice(_BYTE_MUTATIONS)(random, raw)
    return raw


def _set_random_field(random: Random, message: Message) -> None:
    """Set one field of a message, or of a message inside it, to an unusual value."""
    if not message.DESCRIPTOR.fields:
        return
    field: Any = random.choice(list(message.DESCRIPTOR.fields))
    if field.message_type and not field.is_repeated:
        _set_random_field(random, getattr(message, field.name))
    elif field.is_repeated:
        values = getattr(message, field.name)
        values.extend(_unusual(random, field) for _ in range(random.choice((1, 3, 20))))
    else:
        setattr(message, field.name, _unusual(random, field))


def _unusual(random: Random, field: FieldDescriptor) -> Any:
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_BOOL:
            return random.random() < 0.5
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            return random.choice(_FLOATS)
        case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
            return _random_values(random)
        case FieldDescriptor.CPPTYPE_STRING:
            return random.choice(_STRINGS)
        case FieldDescriptor.CPPTYPE_UINT32:
            return random.choice(_INTEGERS) % (1 << 32)
        case _:
            return (random.choice(_INTEGERS) + (1 << 31)) % (1 << 32) - (1 << 31)


def _random_values(random: Random) -> bytes:
    """Return the bytes of a tensor: noise, or floats of which some are NaN, infinite or huge."""
    if random.random() < 0.5:
        return random.randbytes(random.choice((0, 1, 7, 8, 48, 1000)))
    return struct.pack("<12f", *random.choices((0.5, float("nan"), float("inf"), 3e38, -3e38, 1e-45), k=12))


def _flip_bits(random: Random, raw: bytes) -> bytes:
    changed = bytearray(raw or b"\0")
    for _ in range(random.choice((1, 1, 2, 8))):
        changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
    return bytes(changed)


def _splice(random: Random, raw: bytes) -> bytes:
    other = random.choice(_ENCODE_REQUESTS).SerializeToString()
    return raw[: random.randint(0, len(raw))] + other[random.randint(0, len(other)) :]


def _insert(make: Callable[[Random], bytes]) -> Callable[[Random, bytes], bytes]:
    def insert(random: Random, raw: bytes) -> bytes:
        place = random.choice((len(raw), random.randint(0, len(raw))))
        return raw[:place] + make(random) + raw[place:]

    return insert


def _deep(random: Random) -> bytes:
    """Return a message inside a message inside a message …, or groups that never end."""
    depth, tag = random.choice((50, 99, 101, 3000)), random.randint(1, 15) << 3
    if random.random() < 0.5:
        return bytes([tag | 3]) * depth
    nested = b""
    for _ in range(depth):
        nested = bytes([tag | 2]) + _varint(len(nested)) + nested
    return nested


def _varint(value: int) -> bytes:
    groups = [value & 0x7F | 0x80]
    while value := value >> 7:
        groups.append(value & 0x7F | 0x80)
    groups[-1] &= 0x7F
    return bytes(groups)


def _key(random: Random) -> bytes:
    """Return the key of a field, with a wire type that may be wrong or undefined."""
    return _varint(random.choice((*range(1, 12), 18999, (1 << 29) - 1)) << 3 | random.randrange(8))


_BYTE_MUTATIONS: list[Callable[[Random, bytes], bytes]] = [
    _flip_bits,
    _splice,
    lambda random, raw: raw[: random.randint(0, len(raw))],
    lambda random, raw: raw * random.choice((2, 10)),
    _insert(lambda random: random.randbytes(random.choice((1, 4, 64)))),
    _insert(lambda random: _key(random) + random.choice((b"\xff" * 9 + b"\x01", b"\xff" * 11, b"\x80" * 30 + b"\0"))),
    _insert(lambda random: _key(random) + _varint(random.choice((1 << 20, (1 << 31) - 1, (1 << 63) - 1)))),
    _insert(
        lambda random: b"\x0a\x04" + random.choice((b"\xff\xfe\xfd\xfc", b"\xed\xa0\x80\xff", b"\xc0\x80\xf8\x88"))
    ),
    _insert(_deep),
]
