"""Each error has its gRPC code, and details that a program can read and turn into the same error."""

import base64
from collections.abc import Iterator
from typing import TypeVar
from urllib.parse import quote

import pytest
from google.protobuf.message import Message
from google.rpc import error_details_pb2 as details
from google.rpc.status_pb2 import Status
from grpc import StatusCode

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules import errors
from headwaiter_proto.rules.status import code_of, error_from_metadata, failure, status_of, stream_error

CODES = {
    errors.HeadwaiterError: StatusCode.INTERNAL,
    errors.InvalidInput: StatusCode.INVALID_ARGUMENT,
    errors.SequenceTooLong: StatusCode.INVALID_ARGUMENT,
    errors.ModelNotFound: StatusCode.NOT_FOUND,
    errors.Overloaded: StatusCode.RESOURCE_EXHAUSTED,
    errors.MessageTooLarge: StatusCode.RESOURCE_EXHAUSTED,
    errors.DeadlineExceeded: StatusCode.DEADLINE_EXCEEDED,
    errors.Cancelled: StatusCode.CANCELLED,
    errors.Unavailable: StatusCode.UNAVAILABLE,
    errors.Starting: StatusCode.UNAVAILABLE,
    errors.DeviceFailed: StatusCode.UNAVAILABLE,
    errors.InferenceFailed: StatusCode.INTERNAL,
    errors.Unauthenticated: StatusCode.UNAUTHENTICATED,
    errors.Unimplemented: StatusCode.UNIMPLEMENTED,
}
KIND = TypeVar("KIND", bound=Message)


def _make(kind: type[errors.HeadwaiterError]) -> errors.HeadwaiterError:
    return errors.Overloaded("wait", retry_after_s=1.5) if kind is errors.Overloaded else kind("no")


def _details(status: Status, kind: type[KIND]) -> Iterator[KIND]:
    for packed in status.details:
        detail = kind()
        if packed.Unpack(detail):
            yield detail


def test_every_error_with_a_reason_has_a_code() -> None:
    assert set(CODES) == {errors.HeadwaiterError, *errors.ERROR_BY_REASON.values()}


@pytest.mark.parametrize(("kind", "code"), CODES.items())
def test_the_status_of_an_error_has_its_code_its_reason_and_the_request_id(
    kind: type[errors.HeadwaiterError], code: StatusCode
) -> None:
    error = _make(kind)
    status = status_of(error, "r-1")
    (info,) = _details(status, details.ErrorInfo)
    (request,) = _details(status, details.RequestInfo)
    assert code_of(error) == code
    assert (status.code, status.message) == (code.value[0], str(error))
    assert (info.domain, info.reason) == ("headwaiter", pb.ErrorReason.Name(kind.reason))
    assert request.request_id == "r-1"


def test_invalid_input_names_the_field_in_a_bad_request() -> None:
    (found,) = _details(status_of(errors.InvalidInput("no", field="output.dtype"), "r"), details.BadRequest)
    (violation,) = found.field_violations
    assert (violation.field, violation.description) == ("output.dtype", "no")
    assert not list(_details(status_of(errors.InvalidInput("no field"), "r"), details.BadRequest))


@pytest.mark.parametrize(("retry_after_s", "delay_ms"), [(1.5, 1500), (0.25, 250), (0.0, 1)])
def test_the_status_has_the_retry_delay_of_the_error(retry_after_s: float, delay_ms: int) -> None:
    for kind in (errors.Overloaded, errors.Starting):
        (retry,) = _details(status_of(kind("wait", retry_after_s=retry_after_s), "r"), details.RetryInfo)
        assert retry.retry_delay.ToMilliseconds() == delay_ms
        assert not list(_details(status_of(kind("wait"), "r"), details.RetryInfo))


def test_the_facts_of_an_error_survive_each_way_over_the_wire() -> None:
    error = errors.SequenceTooLong("too long", sequence=0, field="tokens.lengths", limit=4, actual=5)
    (info,) = _details(status_of(error, "r"), details.ErrorInfo)
    for metadata in (info.metadata, stream_error(error).metadata, failure(0, error).metadata):
        read = error_from_metadata(errors.ERROR_BY_REASON[info.reason], str(error), metadata)
        assert (type(read), str(read), vars(read)) == (errors.SequenceTooLong, "sequence 0 too long", vars(error))


@pytest.mark.parametrize("character", ["a", "é", "😀", "\n"])
def test_a_long_message_fits_into_the_trailers_of_a_call(character: str) -> None:
    error = errors.InvalidInput(character * 20_000, field="f" * 100, sequence=1)
    status = status_of(error, "r" * 128)
    trailers_bytes = len(quote(status.message)) + len(base64.b64encode(status.SerializeToString()))
    assert trailers_bytes < 7 << 10
    assert status.message.startswith(f"sequence 1 {character * 200}")
