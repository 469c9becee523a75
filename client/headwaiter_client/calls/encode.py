"""A call of encode, without any I/O: which requests it takes, and what their replies amount to."""

import time
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import replace
from typing import Any, SupportsFloat, SupportsIndex, TypeAlias, TypeVar

from headwaiter_client.calls import options as _options
from headwaiter_client.calls import results as _results
from headwaiter_client.calls import splitting as _chunks
from headwaiter_client.calls import steps as _core
from headwaiter_client.calls.arguments import check_progress, check_type
from headwaiter_client.calls.inputs import Form, Texts
from headwaiter_client.calls.splitting import Chunk, is_too_much
from headwaiter_client.errors import HeadwaiterError, InvalidInput, ModelChanged, renumbered
from headwaiter_proto import encoder_pb2 as pb

_Pending = TypeVar("_Pending")
Progress: TypeAlias = Callable[[int, int], None]


class Job:
    """One call of encode, of a list or of a stream.

    Args:
        form: what the sequences are; as the first one looks when None.
        options: see `RequestOptions`.
        request_timeout_s: seconds until the deadline of each request.
        timeout_s: seconds from the first request until the deadline of them all; None where there is none.
        descriptions: what servers said of their models, by name; what this job has to ask is added.
        in_flight: requests that are on their way at once.

    Raises:
        TypeError: an option is of another type, or does not exist.
        InvalidInput: an option has a value that cannot be sent.
    """

    def __init__(
        self,
        form: Form | None,
        options: _options.RequestOptions,
        *,
        request_timeout_s: float,
        timeout_s: float | None,
        descriptions: dict[str, pb.GetModelResponse],
        in_flight: int,
    ) -> None:
        self._form = form
        self._envelope = _options.envelope(**options)
        self._request_timeout_s = request_timeout_s
        self._timeout_s = timeout_s
        self._deadline_s: float | None = None
        self._descriptions = descriptions
        self._in_flight = in_flight
        self._models: set[_results.ModelRef] = set()

    def plan(self, sequences: Iterable[Any]) -> _core.Exchange[list[Chunk]]:
        """Cuts a list into requests, and asks for the server's limits first where it is long.

        Raises:
            InvalidInput: a sequence cannot be sent.
        """
        sequences = list(sequences)
        if not sequences:  # Which is for the server to judge.
            return [Chunk(self._form or Texts(), 0, [])]
        few = next(_chunks.cut(self.cutter(_chunks.UNASKED), sequences))
        if len(few.sequences) == len(sequences):
            return [few]
        limits = yield from self.limits()
        return list(_chunks.cut(self.cutter(limits), sequences))

    def limits(self) -> _core.Exchange[_chunks.Limits]:
        """Asks how large requests may be, unless that is known."""
        name = self._envelope.model
        if name not in self._descriptions:
            self._descriptions[name] = yield from _core.model(name, self._left_s())
        return _chunks.limits_of(
            self._descriptions[name],
            hidden=self._envelope.output.hidden,
            timeout_s=self._request_timeout_s,
            in_flight=self._in_flight,
        )

    def cutter(self, limits: _chunks.Limits) -> _chunks.Cutter:
        """Returns what cuts sequences into requests."""
        return _chunks.Cutter(limits, self._form, partial=self._envelope.partial)

    def send(self, chunk: Chunk) -> _core.Exchange[_results.Encoding]:
        """Makes a request; what is refused for all that it holds together goes in halves.

        Raises:
            HeadwaiterError: it failed; `sequence` is an index of the caller's list.
        """
        request = self._request(chunk)
        timeout_s = self._left_s()
        started_s = time.perf_counter()
        try:
            response = yield from _core.unary("Encode", request, pb.EncodeResponse, timeout_s, request.request_id)
        except HeadwaiterError as error:
            parts = []
            for smaller in (yield from self._smaller(chunk, error, request.ByteSize())):
                part = yield from self.send(smaller)
                parts.append(part)
            return _results.join(parts)
        round_trip_s = time.perf_counter() - started_s
        part = _results.encoding(response, chunk.first, len(chunk.sequences), round_trip_s)
        self._check_model(part.model)
        return replace(part, failures=part.failures | chunk.failures)

    def send_apart(self, chunk: Chunk) -> _core.Exchange[list[_results.SequenceEncoding]]:
        """Makes a request of a stream; otherwise as `send`."""
        part = yield from self.send(chunk)
        return list(_results.each_sequence(part, chunk.first))

    def _request(self, chunk: Chunk) -> pb.EncodeRequest:
        request = pb.EncodeRequest()
        request.CopyFrom(self._envelope)
        if request.texts.prompt and not isinstance(chunk.form, Texts):
            raise InvalidInput("prompt is for texts; these are " + chunk.form.name, field="texts.prompt")
        if chunk.first:
            request.request_id += f".{chunk.first}"
        chunk.form.fill(request, chunk.sequences)
        return request

    def _smaller(self, chunk: Chunk, error: HeadwaiterError, size_bytes: int) -> _core.Exchange[list[Chunk]]:
        """Returns what to send in place of a refused request, or raises the refusal as the caller should see it."""
        if not is_too_much(error) or not chunk.sequences:
            raise renumbered(error, chunk.first) from error.__cause__
        if len(chunk.sequences) > 1:
            return _chunks.halves(chunk)
        failure = yield from self._alone(chunk.first, error, size_bytes)
        empty = chunk.form.empty()
        if self._envelope.partial and empty is not None and not chunk.failures:
            return [Chunk(chunk.form, chunk.first, [empty], {chunk.first: failure})]
        raise failure from error.__cause__

    def _alone(self, index: int, error: HeadwaiterError, size_bytes: int) -> _core.Exchange[HeadwaiterError]:
        """Says of a request's refusal that its one sequence is to blame, and of which limit, where gRPC did not."""
        failure = copy(error)
        failure.sequence = index
        what = str(error).removesuffix(": split it")
        failure.args = (f"sequence {index} is too much for a request by itself: {what}; shorten it or split it",)
        if failure.limit is None:
            with suppress(HeadwaiterError):  # It is the refusal that has to be told.
                limit_bytes = (yield from self.limits()).size_bytes
                if size_bytes > limit_bytes:
                    failure.limit, failure.actual = limit_bytes, size_bytes
        return failure

    def _check_model(self, model: _results.ModelRef) -> None:
        # Of two threads that add at the same time, at least one then sees both.
        self._models.add(model)
        if len(self._models) > 1:
            raise ModelChanged(
                f"two requests of this call were answered by {' and by '.join(sorted(map(str, self._models)))}, whose "
                "vectors do not mix: call again, and let all replicas serve one model in one precision",
                request_id=self._envelope.request_id,
            )

    def _left_s(self) -> float:
        if self._timeout_s is None:
            return self._request_timeout_s
        now_s = time.monotonic()
        if self._deadline_s is None:
            self._deadline_s = now_s + self._timeout_s
            return self._timeout_s
        return self._deadline_s - now_s


class Jobs:
    """What the jobs of one client have in common.

    Args:
        timeout_s: seconds until the deadline of calls that name none.
        in_flight: most requests of one job on their way at once.

    Raises:
        TypeError: one of them is no number.
        ValueError: the deadline has always passed, or there may be no request on its way.
    """

    def __init__(self, timeout_s: float, in_flight: int) -> None:
        check_type("timeout_s", timeout_s, SupportsFloat, "a number of seconds")
        check_type("max_in_flight", in_flight, SupportsIndex, "a whole number")
        self._timeout_s = float(timeout_s)
        if not self._timeout_s > 0:
            raise ValueError(f"timeout_s is {self._timeout_s:g}; it must be above 0")
        if in_flight < 1:
            raise ValueError(f"max_in_flight is {in_flight}; it must be 1 at least")
        self.in_flight = in_flight
        self._descriptions: dict[str, pb.GetModelResponse] = {}

    def within_s(self, timeout_s: float | None) -> float:
        """Returns the seconds until the deadline of a call.

        Raises:
            TypeError: the call's own are no number.
        """
        check_type("timeout_s", timeout_s, SupportsFloat | None, "a number of seconds or None")
        return self._timeout_s if timeout_s is None else float(timeout_s)

    def of_list(
        self,
        form: Form,
        sequences: object,
        timeout_s: float | None,
        progress: Progress | None,
        options: _options.RequestOptions,
    ) -> Job:
        """Makes the job of a list, with a deadline for all of it where the call names one.

        Raises:
            TypeError: an argument is of another type, or an option does not exist.
            InvalidInput: a text in place of a list, or an option has a value that cannot be sent.
        """
        _check_many(sequences)
        check_progress(progress)
        within_s = self.within_s(timeout_s)
        return self._job(form, options, within_s, None if timeout_s is None else within_s)

    def of_stream(self, sequences: object, timeout_s: float | None, options: _options.RequestOptions) -> Job:
        """Makes the job of a stream, with a deadline for each request alone; otherwise as `of_list`."""
        _check_many(sequences)
        return self._job(None, options, self.within_s(timeout_s), None)

    def _job(
        self, form: Form | None, options: _options.RequestOptions, request_timeout_s: float, timeout_s: float | None
    ) -> Job:
        return Job(
            form,
            options,
            request_timeout_s=request_timeout_s,
            timeout_s=timeout_s,
            descriptions=self._descriptions,
            in_flight=self.in_flight,
        )


class Gathering:
    """Gathers the results of a list's requests, in order.

    Args:
        chunks: the requests.
        progress: called with how many sequences are done and how many there are.
    """

    def __init__(self, chunks: Sequence[Chunk], progress: Progress | None) -> None:
        self._total = sum(len(chunk.sequences) for chunk in chunks)
        self._progress = progress
        self._done = 0
        self._parts: list[_results.Encoding] = []

    def add(self, part: _results.Encoding) -> None:
        """Takes the next result."""
        self._parts.append(part)
        self._done += len(part.lengths)
        if self._progress:
            self._progress(self._done, self._total)

    def result(self) -> _results.Encoding:
        """Joins the results."""
        return _results.join(self._parts)


def next_of(pending: list[_Pending], ordered: bool) -> list[_Pending]:
    """Returns those of the requests on their way whose result may be the next."""
    return pending[:1] if ordered else pending


def _check_many(sequences: object) -> None:
    if isinstance(sequences, str):
        raise InvalidInput("texts is one str; pass a list of texts, such as [text]", field="texts")
    # A dict and a set are iterable too, but nobody means their keys, or an order by chance.
    if isinstance(sequences, bytes | Mapping | set | frozenset) or not isinstance(sequences, Iterable | AsyncIterable):
        raise InvalidInput(f"the sequences are of type {type(sequences).__name__}; pass a list of them")
