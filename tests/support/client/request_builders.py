"""Build requests as the clients do, without a client."""

from collections.abc import Iterable
from typing import Any

from headwaiter_client.calls.input_kinds import FeatureInput, InputKind, TextInput, TokenInput
from headwaiter_client.calls.options import encode_request
from headwaiter_proto import encoder_pb2 as pb


def texts_request(texts: Iterable[Any], **options: Any) -> pb.EncodeRequest:
    return _request(TextInput(), texts, **options)


def tokens_request(sequences: Iterable[Any], **options: Any) -> pb.EncodeRequest:
    return _request(TokenInput(), sequences, **options)


def features_request(sequences: Iterable[Any], **options: Any) -> pb.EncodeRequest:
    return _request(FeatureInput(), sequences, **options)


def _request(kind: InputKind, sequences: Iterable[Any], **options: Any) -> pb.EncodeRequest:
    request = encode_request(**options)
    kind.fill(request, [kind.convert(index, sequence) for index, sequence in enumerate(sequences)])
    return request
