"""The client for threads."""

import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import closing
from inspect import iscoroutinefunction
from types import TracebackType
from typing import Any, Self, SupportsIndex, TypeVar, Unpack

from numpy.typing import ArrayLike

from headwaiter_client.calls import attention_weights as _attention
from headwaiter_client.calls import splitting as _chunks
from headwaiter_client.calls import steps as _core
from headwaiter_client.calls.encode import Gathering, Job, Jobs, Progress, next_of
from headwaiter_client.calls.inputs import Features, Form, Texts, Tokens
from headwaiter_client.calls.options import RequestOptions
from headwaiter_client.calls.results import Encoding, ModelRef, SequenceEncoding
from headwaiter_client.calls.splitting import Chunk
from headwaiter_client.errors import HeadwaiterError
from headwaiter_client.transport.connection import Connection, TlsConfig
from headwaiter_client.transport.grpc_transport import Flight, GrpcTransport, Transport
from headwaiter_client.transport.retries import DEFAULT_RETRY, RetryPolicy
from headwaiter_proto import encoder_pb2 as pb

_Result = TypeVar("_Result")


class Client:
    """Calls a Headwaiter server, or the healthy ones of several replicas in turns; threads may share it.

    Every method raises a `HeadwaiterError` when its call fails: `InvalidInput` for what cannot be sent, `Cancelled`
    once the client is closed. An option that does not exist, and an argument but the sequences that is of another type,
    are a `TypeError`.

    Args:
        address: the server, as host:port; or a list of replicas, where one name may stand for several.
        token: bearer token to send with each call.
        tls: talk TLS, with these files; plain text when None.
        metadata: what else to send with each call.
        retry: whether a call that failed is sent again, and when.
        timeout_s: seconds until the deadline of calls that name none; of each request, where a list takes several.
        max_in_flight: most requests of one list or stream on their way at once.
        transport: carries the calls, in place of all that connects, such as a `FakeEncoder`.

    Raises:
        TypeError: an argument is of another type.
        ValueError: an address is none, the token or the metadata cannot be sent in a header, a TLS file holds something
            else, the deadline has always passed, or no request may be on its way.
        OSError: a TLS file cannot be read.
    """

    def __init__(
        self,
        address: str | Sequence[str] | None = None,
        *,
        token: str | None = None,
        tls: TlsConfig | None = None,
        metadata: Mapping[str, str] | None = None,
        retry: RetryPolicy = DEFAULT_RETRY,
        timeout_s: float = 30.0,
        max_in_flight: int = 8,
        transport: Transport | None = None,
    ) -> None:
        self._jobs = Jobs(timeout_s, max_in_flight)
        if transport is not None and iscoroutinefunction(transport.unary):
            raise TypeError(f"transport is of type {type(transport).__name__}, which only AsyncClient can await")
        self._transport = transport or GrpcTransport(
            Connection(() if address is None else address, token, tls, metadata), retry
        )

    def encode(
        self,
        texts: Iterable[str],
        *,
        timeout_s: float | None = None,
        progress: Progress | None = None,
        **options: Unpack[RequestOptions],
    ) -> Encoding:
        """Encodes texts, which the server tokenises with the model's own tokenizer.

        A list of any size takes as many requests as the server's limits make it. Unless it is `partial`, the first
        failure in the list's order is raised.

        Args:
            texts: the texts; not a single str.
            timeout_s: seconds until the deadline of the whole call; when None, each request has the client's.
            progress: called after each request, in the list's order, with how many texts are done and how many there
                are.
            **options: see `RequestOptions`.
        """
        return self._encode(Texts(), texts, timeout_s, progress, options)

    def encode_tokens(
        self,
        sequences: Iterable[ArrayLike],
        *,
        timeout_s: float | None = None,
        progress: Progress | None = None,
        **options: Unpack[RequestOptions],
    ) -> Encoding:
        """Encodes token ids, each sequence [n] integers with its special tokens; otherwise as `encode`."""
        return self._encode(Tokens(), sequences, timeout_s, progress, options)

    def encode_features(
        self,
        sequences: Iterable[ArrayLike],
        *,
        timeout_s: float | None = None,
        progress: Progress | None = None,
        **options: Unpack[RequestOptions],
    ) -> Encoding:
        """Encodes feature vectors, each sequence [n, width] real numbers; otherwise as `encode`."""
        return self._encode(Features(), sequences, timeout_s, progress, options)

    def encode_stream(
        self,
        sequences: Iterable[str | ArrayLike],
        *,
        ordered: bool = True,
        timeout_s: float | None = None,
        **options: Unpack[RequestOptions],
    ) -> Generator[SequenceEncoding, None, None]:
        """Encodes what an iterable yields, one result a sequence, in memory that does not grow with their number.

        Sequences are read ahead of the results, as many as `max_in_flight` requests hold; where that takes long, what
        there is goes, and results come between one sequence and the next. Closing the iterator before its end cancels
        the requests on their way.

        Args:
            sequences: all of them texts, or all token ids [n], or all features [n, width].
            ordered: yield the results in the order of the sequences, rather than as they come; each knows its index.
            timeout_s: seconds until the deadline of each request; the client's when None.
            **options: see `RequestOptions`.
        """
        return self._stream(self._jobs.of_stream(sequences, timeout_s, options), sequences, ordered)

    def attend(
        self,
        sequence: str | ArrayLike,
        *,
        layers: Iterable[SupportsIndex] | None = None,
        heads: Iterable[SupportsIndex] | None = None,
        query: SupportsIndex | None = None,
        model: str = "",
        request_id: str = "",
        timeout_s: float | None = None,
    ) -> _attention.Attention:
        """Shows what attention looked at in one sequence, where the model's description says `attends`.

        Args:
            sequence: a text, token ids [n] with their special tokens, or feature vectors [n, width].
            layers: which layers, in which order; all when None. The weights of a layer, heads · n² floats, count
                against the server's limit, so a long sequence takes several calls.
            heads: which heads of each layer; all when None.
            query: the position whose context vectors to return too; none when None.
            model: name of the model; may be left out where the server holds one.
            request_id: what the server's log calls the request; made up when left out.
            timeout_s: seconds until the deadline; the client's when None.
        """
        request = _attention.attend_request(
            sequence, layers=layers, heads=heads, query=query, model=model, request_id=request_id
        )
        return self._run(_core.attend(request, self._jobs.within_s(timeout_s)))

    def models(self, *, timeout_s: float | None = None) -> list[ModelRef]:
        """Lists the models the server holds."""
        return self._run(_core.models(self._jobs.within_s(timeout_s)))

    def model(self, name: str = "", *, timeout_s: float | None = None) -> pb.GetModelResponse:
        """Describes one model in the contract's own message: inputs, limits, how it runs, how far from PyTorch.

        Args:
            name: the model; may be left out where the server holds one.
            timeout_s: seconds until the deadline; the client's when None.
        """
        return self._run(_core.model(name, self._jobs.within_s(timeout_s)))

    def is_serving(self, *, timeout_s: float | None = None) -> bool:
        """Asks the server's health service whether it takes requests; one that cannot be reached takes none."""
        return self._run(_core.is_serving(self._jobs.within_s(timeout_s)))

    def wait_ready(self, *, timeout_s: float | None = None) -> None:
        """Returns once the server takes requests.

        Args:
            timeout_s: seconds to wait at most; the client's when None.

        Raises:
            DeadlineExceeded: it does not by then; the message says why.
        """
        self._run(_core.wait_ready(self._jobs.within_s(timeout_s)))

    def close(self) -> None:
        """Closes the connection; calls in flight, and later ones, end as `Cancelled`."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _encode(
        self,
        form: Form,
        sequences: Iterable[Any],
        timeout_s: float | None,
        progress: Progress | None,
        options: RequestOptions,
    ) -> Encoding:
        job = self._jobs.of_list(form, sequences, timeout_s, progress, options)
        chunks = self._run(job.plan(sequences))
        gathering = Gathering(chunks, progress)
        if len(chunks) == 1:  # No need of a thread.
            gathering.add(self._run(job.send(chunks[0])))
        else:
            with closing(self._each(chunks, job.send, ordered=True)) as parts:
                for part in parts:
                    gathering.add(part)
        return gathering.result()

    def _stream(self, job: Job, sequences: Iterable[Any], ordered: bool) -> Generator[SequenceEncoding, None, None]:
        chunks = _chunks.cut_as_read(job.cutter(self._run(job.limits())), sequences)
        with closing(self._each(chunks, job.send_apart, ordered=ordered)) as parts:
            for part in parts:
                yield from part

    def _each(
        self, chunks: Iterable[Chunk], send: Callable[[Chunk], _core.Exchange[_Result]], *, ordered: bool
    ) -> Generator[_Result, None, None]:
        """Sends chunks, some at once, and yields their results: late, to keep the server busy, but for slow sources."""
        threads = ThreadPoolExecutor(self._jobs.in_flight, "headwaiter")
        flight = Flight()
        pending: list[Future[_Result]] = []
        try:
            for chunk in chunks:
                pending.append(threads.submit(self._run, send(chunk), flight))
                while len(pending) == self._jobs.in_flight or (
                    chunk.hurried and any(call.done() for call in next_of(pending, ordered))
                ):
                    yield _next(pending, ordered)
            while pending:
                yield _next(pending, ordered)
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            flight.cancel()

    def _run(self, exchange: _core.Exchange[_Result], flight: Flight | None = None) -> _Result:
        """Takes the steps of an exchange until its result is there."""
        outcome: bytes | HeadwaiterError | None = None
        try:
            while True:
                step = exchange.throw(outcome) if isinstance(outcome, HeadwaiterError) else exchange.send(outcome)
                outcome = self._take(step, flight)
        except StopIteration as end:
            result: _Result = end.value
            return result

    def _take(self, step: _core.Call | _core.Pause, flight: Flight | None) -> bytes | HeadwaiterError:
        if isinstance(step, _core.Pause):
            time.sleep(step.pause_s)
            return b""
        try:
            return self._transport.unary(step.method, step.request, step.timeout_s, step.request_id, flight)
        except HeadwaiterError as error:
            return error


def _next(pending: list[Future[_Result]], ordered: bool) -> _Result:
    candidates = next_of(pending, ordered)
    wait(candidates, return_when=FIRST_COMPLETED)
    future = next(future for future in candidates if future.done())
    pending.remove(future)
    return future.result()
