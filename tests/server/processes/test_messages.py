"""What one process writes, the other reads: requests, outcomes, errors and calls, also in pieces."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from headwaiter_proto.rules.errors import DeviceFailed, HeadwaiterError, InferenceFailed, Overloaded
from headwaiter_server.processes.messages import (
    HEADER,
    Kind,
    read_error,
    read_objects,
    read_request,
    read_vectors,
    split_messages,
    write_error,
    write_outcome,
    write_request,
)
from headwaiter_server.scheduling.fair_start import Priority
from headwaiter_server.scheduling.job import BatchTimes, Interval, Job, Outcome
from headwaiter_server.settings.tenants import UNNAMED, Tenant

LENGTHS = st.lists(st.integers(1, 5), min_size=1, max_size=6)
TIMES = BatchTimes(Interval(1.5, 2.25), Interval(2.5, 4.0))


def joined(parts: Sequence[Any]) -> bytes:
    return b"".join(parts)


def equal(left: Sequence[NDArray[Any]] | None, right: Sequence[NDArray[Any]] | None) -> bool:
    if left is None or right is None:
        return left is right
    pairs = zip(left, right, strict=True)
    return all(a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all()) for a, b in pairs)


@given(
    LENGTHS,
    st.sampled_from([np.int32, np.int64, np.float32, np.float16, np.float64]),
    st.integers(0, 3),
    st.booleans(),
    st.sampled_from(Priority),
    st.integers(0, 99),
    st.integers(1, 2**32 - 1),
    st.data(),
)
def test_a_request_is_read_as_it_was_written(
    lengths: list[int],
    dtype: type[np.generic],
    width: int,
    hidden: bool,
    priority: Priority,
    device_failures: int,
    calls: int,
    data: st.DataObject,
) -> None:
    values: list[NDArray[Any]] = [
        np.arange(n * (width or 1)).astype(dtype).reshape((n, width) if width else (n,)) for n in lengths
    ]
    failed = data.draw(st.none() | st.sets(st.integers(0, len(lengths) - 1), max_size=len(lengths) - 1))
    trace = data.draw(st.sampled_from([b"", bytes(range(24))]))
    failures = None if failed is None else {index: InferenceFailed("no", sequence=index) for index in failed}
    tenant = data.draw(st.sampled_from([UNNAMED, Tenant("a" * 64, share=0.5), Tenant("team@b", 3, 2.5, 1e6)]))
    job = Job(values, hidden, 12.5, priority, failures, device_failures, calls, trace, tenant)
    model, read = read_request(joined(write_request(7, job)))
    assert (model, read.hidden, read.priority) == (7, hidden, priority)
    assert (read.deadline_s, read.device_failures, read.calls) == (12.5, device_failures, calls)
    assert (read.trace, read.tenant) == (trace, tenant)
    assert (None if read.failures is None else set(read.failures)) == failed
    # A failed sequence needs no values.
    assert equal(read.values, [each[:0] if index in (failed or ()) else each for index, each in enumerate(values)])


@given(st.integers(1, 5), st.integers(1, 8), st.integers(0, 3))
def test_vectors_are_read_as_they_were_written(count: int, width: int, batches: int) -> None:
    vectors = [np.linspace(0, each, width, dtype=np.float32) for each in range(count)]
    # Another request of the batch may be sampled.
    times = dataclasses.replace(TIMES, span=bytes(range(24)))
    kind, parts = write_outcome(Outcome(vectors, None, [times] * batches), sampled=False)
    read = read_vectors(joined(parts))
    assert kind is Kind.VECTORS
    assert equal(read.pooled, vectors)
    assert [dataclasses.astuple(each) for each in read.batches] == [dataclasses.astuple(TIMES)] * batches
    assert (read.hidden, read.logits, read.failures) == (None, None, {})


@pytest.mark.parametrize("pooled", [None, [np.ones(3, np.float32)]])
@pytest.mark.parametrize("hidden", [None, [np.ones((2, 3), np.float16)], []])
@pytest.mark.parametrize("logits", [None, [np.ones((2, 4), np.float32)]])
@pytest.mark.parametrize("failures", [{}, {3: InferenceFailed("no", sequence=3)}])
@pytest.mark.parametrize("span", [b"", bytes(range(24))])
def test_every_other_outcome_is_read_as_it_was_written(
    pooled: Any, hidden: Any, logits: Any, failures: dict[int, HeadwaiterError], span: bytes
) -> None:
    times = dataclasses.replace(TIMES, span=span)
    kind, parts = write_outcome(Outcome(pooled, hidden, {times}, failures, logits), sampled=bool(times.span))
    if kind is Kind.VECTORS:
        assert (hidden, logits, failures, span) == (None, None, {}, b"")
        return
    (read,) = read_objects(joined(parts))
    assert equal(read.pooled, pooled)
    assert equal(read.hidden, hidden)
    assert equal(read.logits, logits)
    assert repr(read.failures) == repr(failures)
    assert [dataclasses.astuple(each) for each in read.batches] == [dataclasses.astuple(times)]


def test_an_error_keeps_its_class_its_fields_and_the_text_of_its_cause() -> None:
    error = Overloaded("full", retry_after_s=0.5, limit=8, actual=9)
    error.__cause__ = ValueError("why")
    read = read_error(joined(write_error(error)))
    assert repr(read) == repr(error)
    assert str(read.__cause__) == "why"
    assert read_error(joined(write_error(DeviceFailed("dead")))).__cause__ is None


@given(
    st.lists(st.tuples(st.sampled_from(Kind), st.integers(0, 1 << 40), st.binary(max_size=20)), max_size=6), st.data()
)
def test_messages_are_split_wherever_the_socket_cuts_them(
    messages: list[tuple[Kind, int, bytes]], data: st.DataObject
) -> None:
    sent = joined([HEADER.pack(len(payload), kind, number) + payload for kind, number, payload in messages])
    received: list[tuple[Kind, int, bytes]] = []
    left = b""
    while sent:
        cut = data.draw(st.integers(1, len(sent)))
        split, left = split_messages(left + sent[:cut])
        received += split
        sent = sent[cut:]
    assert (received, left) == (messages, b"")
