"""Requests as the clients build them, without a client."""

from collections.abc import Iterable
from typing import Any

from headwaiter_client.calls.inputs import Features, Form, Texts, Tokens
from headwaiter_client.calls.options import envelope
from headwaiter_proto import encoder_pb2 as pb


def texts_request(texts: Iterable[Any], **options: Any) -> pb.EncodeRequest:
    return _request(Texts(), texts, **options)


def tokens_request(sequences: Iterable[Any], **options: Any) -> pb.EncodeRequest:
    return _request(Tokens(), sequences, **options)


def features_request(sequences: Iterable[Any], **options: Any) -> pb.EncodeRequest:
    return _request(Features(), sequences, **options)


def _request(form: Form, sequences: Iterable[Any], **options: Any) -> pb.EncodeRequest:
    request = envelope(**options)
    form.fill(request, [form.read(index, sequence) for index, sequence in enumerate(sequences)])
    return request
