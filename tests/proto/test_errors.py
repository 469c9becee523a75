"""Errors carry the facts that programs need, and each has its own reason."""

import pytest

from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules import errors


def test_transient_errors_are_those_of_overloaded_and_unavailable_servers() -> None:
    transient = {kind for kind in errors.ERROR_BY_REASON.values() if issubclass(kind, errors.Transient)}
    assert transient == {errors.Overloaded, errors.Unavailable, errors.Starting, errors.DeviceFailed}


def test_each_reason_of_the_contract_has_a_class_of_its_own() -> None:
    assert {kind.reason for kind in errors.ERROR_BY_REASON.values()} == set(pb.ErrorReason.values()) - {0}
    assert len(set(errors.ERROR_BY_REASON.values())) == len(errors.ERROR_BY_REASON)
    assert all(name == pb.ErrorReason.Name(kind.reason) for name, kind in errors.ERROR_BY_REASON.items())


def test_failures_raise_the_first_error_or_keep_the_first_of_each_sequence() -> None:
    first, second = errors.InvalidInput("first", sequence=2), errors.SequenceTooLong("second", sequence=2)
    with pytest.raises(errors.InvalidInput, match="first"):
        errors.Failures().add(first)
    failures = errors.Failures(keep=True)
    failures.add(first)
    failures.add(second)
    assert failures.by_sequence == {2: first}
    assert 2 in failures
    assert 1 not in failures
