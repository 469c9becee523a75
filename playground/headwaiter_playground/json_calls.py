"""The calls that the page may make, in JSON: a body becomes a request of the contract, a reply becomes a body.

The mapping is that of proto3: field names in camelCase, enum values by name, `bytes` in base64, so that numbers in them
stay exact, and whole numbers of 64 bits as texts.

One call is the page's own: `AttendRounded` is Attend with weights as a text, of which each character is a rounded
weight. The small maps of all heads need no more, and take a fifth of the bytes: a text compresses better than base64.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from textwrap import shorten
from types import MappingProxyType

import numpy as np
from google.protobuf import json_format
from google.protobuf.message import Message

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import MAX_QUOTED_CHARACTERS, HeadwaiterError, InvalidInput
from headwaiter_proto.rules.status import code_of, metadata_of
from headwaiter_proto.rules.unicode import check_json_texts

_API_PAGE = "docs/reference/grpc.md"
# What protobuf says of a field that a message does not have, before a list of the fields that it has.
_UNKNOWN_FIELD = re.compile(r'Message type "headwaiter\.v1\.(\w+)" has no field named "(.*?)"', re.DOTALL)
# The page reads, and changes nothing: it can neither load nor unload models.
_METHODS = ("ListModels", "GetModel", "Encode", "Classify", "Attend", "ListBatches")
# A weight (n / 127)² is the character with the code 35 + n: JSON escapes few of these. The colours of maps show the
# square roots of weights, too.
_STEPS, _CODE_OF_ZERO = 127, 35


@dataclass(frozen=True)
class JsonCall:
    """A call: a method of the contract, and the classes of its request and of its reply.

    Attributes:
        rounds_weights: whether the weights in the reply become a text.
    """

    method: str
    request_class: type[Message]
    reply_class: type[Message]
    rounds_weights: bool = False

    def read_request(self, body: bytes) -> Message:
        """Return the request that a JSON body holds.

        Raises:
            InvalidInput: the body is not JSON, or does not fit the request.
        """
        check_json_texts(body)
        try:
            # `json.loads` would also take UTF-16, which the server's count of values cannot read.
            fields = json.loads(body.decode())
            if isinstance(fields, dict):
                return json_format.ParseDict(fields, self.request_class())
            cause = "it is not an object"
        except RecursionError:
            cause = "it has too many levels"
        except Exception as error:  # noqa: BLE001  # Of JSON of a wrong shape, ParseDict raises errors of many classes.
            cause = str(error)
            if unknown := _UNKNOWN_FIELD.match(cause):
                message, field = unknown.groups()
                quoted = field[:MAX_QUOTED_CHARACTERS]
                raise InvalidInput(f"unknown field {quoted}: see {_API_PAGE}#{message.lower()}") from None
        name = self.request_class.__name__
        raise InvalidInput(
            f"the body is not the JSON of {name} ({shorten(cause, MAX_QUOTED_CHARACTERS, placeholder=' …')}): "
            f"see {_API_PAGE}#{name.lower()}"
        )

    def write_reply(self, reply: Message) -> bytes:
        """Return the JSON of a reply, with all fields that have a value or a default."""
        if not self.rounds_weights:
            return json_format.MessageToJson(reply, indent=None, always_print_fields_with_no_presence=True).encode()
        assert isinstance(reply, pb.AttendResponse)
        weights = {"shape": [*reply.weights.shape], "rounded": _rounded(reply.weights)}
        reply.ClearField("weights")
        fields = json_format.MessageToDict(reply, always_print_fields_with_no_presence=True)
        return json.dumps({**fields, "weights": weights}, ensure_ascii=False).encode()


def _rounded(weights: pb.Tensor) -> str:
    """Return the text of weights."""
    roots = np.sqrt(np.frombuffer(weights.data, "<f4"))
    codes: bytes = (np.rint(_STEPS * roots) + _CODE_OF_ZERO).astype(np.uint8).tobytes()
    return codes.decode("latin-1")


# By the name in the address.
JSON_CALLS: Mapping[str, JsonCall] = MappingProxyType(
    {
        method.name: JsonCall(method.name, getattr(pb, method.input_type.name), getattr(pb, method.output_type.name))
        for method in pb.DESCRIPTOR.services_by_name["Encoder"].methods
        if method.name in _METHODS
    }
    | {"AttendRounded": JsonCall("Attend", pb.AttendRequest, pb.AttendResponse, rounds_weights=True)}
)


def error_body(error: HeadwaiterError) -> bytes:
    """Return the JSON of an error; its HTTP status is `http_status_of`."""
    body = {
        "code": code_of(error).name,
        "reason": pb.ErrorReason.Name(error.reason),
        "message": str(error),
        "metadata": metadata_of(error),
    }
    return json.dumps(body).encode()
