"""The error classes have the properties on which programs rely."""

import pickle

import pytest

import headwaiter_client
from headwaiter_client import HeadwaiterError, SequenceTooLong
from headwaiter_proto.rules import errors


@pytest.mark.parametrize("kind", [HeadwaiterError, *errors.ERROR_BY_REASON.values()])
def test_errors_survive_pickling(kind: type[HeadwaiterError]) -> None:
    error = kind("too long", sequence=0, field="texts", limit=5, actual=6, retry_after_s=0.5, request_id="r")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (str(copy), vars(copy)) == ("sequence 0 too long", vars(error))


def test_the_repr_of_an_error_shows_its_facts() -> None:
    assert (
        repr(SequenceTooLong("too long", sequence=0, limit=5))
        == "SequenceTooLong('sequence 0 too long', sequence=0, limit=5)"
    )


def test_tracebacks_name_the_module_that_users_import_from() -> None:
    exported = [getattr(headwaiter_client, name) for name in headwaiter_client.__all__]
    errors_of_users = [kind for kind in exported if isinstance(kind, type) and issubclass(kind, HeadwaiterError)]
    assert len(errors_of_users) == 17
    assert set(errors.ERROR_BY_REASON.values()) < set(errors_of_users)
    assert {kind.__module__ for kind in errors_of_users} == {"headwaiter_client"}
