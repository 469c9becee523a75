"""The blocking client, which threads may share."""

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from inspect import iscoroutinefunction
from itertools import islice
from os import PathLike
from typing import Any, NoReturn, Self, TypeVar, Unpack, overload

from numpy.typing import ArrayLike

from headwaiter_client.calls import steps
from headwaiter_client.calls.attend import Attention, attend_request
from headwaiter_client.calls.batches import Batch
from headwaiter_client.calls.classify import Classification, ClassifyCall, Ranking, RerankCall
from headwaiter_client.calls.encode import EncodeCall, OneTextCall, StreamCall
from headwaiter_client.calls.input_kinds import FeatureInput, ImageInput, TextInput, TokenInput
from headwaiter_client.calls.list_call import CallSettings, ListCall
from headwaiter_client.calls.models import ModelDescription, ModelRef, ModelVersion, describe
from headwaiter_client.calls.options import (
    AttendOptions,
    ClassifyOptions,
    DefaultOptions,
    ListOptions,
    RerankOptions,
    StreamOptions,
    TokenizeOptions,
)
from headwaiter_client.calls.results import Encoding, ListResult, SequenceEncoding
from headwaiter_client.calls.shared_requests import server_count
from headwaiter_client.calls.splitting import Chunk
from headwaiter_client.calls.steps import Steps, run_steps
from headwaiter_client.calls.tokenize import Tokenization, TokenizeCall
from headwaiter_client.request_sharing import ThreadSharing
from headwaiter_client.streams import ThreadStream
from headwaiter_client.transport.connection import NOT_PICKLED, Connection, TlsConfig, described
from headwaiter_client.transport.grpc_transports import GrpcTransport
from headwaiter_client.transport.interface import Cancellable, CancelScope, Transport
from headwaiter_client.transport.retries import DEFAULT_RETRY, RetryPolicy
from headwaiter_client.transport.trace_context import has_span
from headwaiter_client.waiting import wait_for_result
from headwaiter_client.worker_threads import MIN_THREADS, Work, WorkerThreads
from headwaiter_proto.rules.errors import HeadwaiterError

_Result = TypeVar("_Result")
_ListResult = TypeVar("_ListResult", bound=ListResult)
_ToCancel = TypeVar("_ToCancel", bound=Cancellable)


class Client:
    """Calls a Headwaiter server, or several replicas. Threads may share a client.

    A client that is dropped without `close()` is freed with its connections. If no call is in flight when the process
    forks, both parent and child can use the client afterwards. A client cannot be pickled. All calls of a client share
    at most 32 threads, or `max_in_flight` if that is more; each stream has one more thread. The threads do not keep the
    program from ending: when the main thread ends, the calls in flight end too.

    Every method raises a `HeadwaiterError` if its call fails: `InvalidInput` for input that cannot be sent, `Cancelled`
    if the client is closed. An unknown option, or a wrong type of any argument except the sequences and `timeout_s`,
    raises a `TypeError`.

    Args:
        address: the server as host:port, with brackets around an IPv6 address, or as a gRPC target with a scheme, such
            as unix:path; or a list of replicas. If a host name in a list has several IP addresses, gRPC takes turns
            among them; the client chooses among whole entries of the list.
        token: bearer token to send with each call.
        tls: the files of a TLS connection; plain text when None.
        metadata: gRPC metadata to send with each call, besides the token.
        interceptors: gRPC's client interceptors, such as OpenTelemetry's; the first is called first.
        channel_options: options of gRPC's channels, which replace the client's own.
        retry: whether a failed call is sent again, and when.
        timeout_s: seconds until the deadline of calls that set no timeout. If a list takes several requests, the
            timeout applies to each request.
        max_in_flight: maximum number of requests of one list or stream in flight at once.
        share_requests: whether calls of short lists that are made at about the same time share requests.
        transport: object that carries the calls instead of gRPC, such as a `FakeEncoder`; `address`, `token`, `tls`,
            `metadata`, `interceptors`, `channel_options` and `retry` are then unused.
        **options: defaults of the options of calls, such as `model`, `dtype` and `priority`; see `DefaultOptions`.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an address has the wrong form, the token or the metadata cannot be sent in a header, a TLS file has
            the wrong content, `timeout_s` is not a finite number above 0, `max_in_flight` is below 1, or an option
            has a value that cannot be sent.
        OSError: a TLS file cannot be read.
    """

    def __init__(
        self,
        address: str | Sequence[str] | None = None,
        *,
        token: str | None = None,
        tls: TlsConfig | None = None,
        metadata: Mapping[str, str] | None = None,
        interceptors: Sequence[Any] = (),
        channel_options: Sequence[tuple[str, Any]] = (),
        retry: RetryPolicy = DEFAULT_RETRY,
        timeout_s: float = 30.0,
        max_in_flight: int = 8,
        share_requests: bool = True,
        transport: Transport | None = None,
        **options: Unpack[DefaultOptions],
    ) -> None:
        self._settings = CallSettings(timeout_s, max_in_flight, options)
        if transport is not None and iscoroutinefunction(transport.unary):
            raise TypeError(f"transport {type(transport).__name__} is for asyncio: pass it to AsyncClient")
        self._transport = transport or GrpcTransport(
            Connection(() if address is None else address, token, tls, metadata, interceptors, channel_options), retry
        )
        self._address = address
        # One call runs in the caller's thread; several calls at once run in threads that all callers share.
        self._workers = WorkerThreads(max(MIN_THREADS, self._settings.max_in_flight))
        self._open: set[Cancellable] = set()
        self._open_lock = threading.Lock()
        self._closed = False
        # An interceptor expects a request for each call.
        servers = server_count(None if transport else address)
        self._sharing = ThreadSharing(servers) if share_requests and not interceptors else None

    @overload
    def encode(  # type: ignore[overload-overlap]
        self, texts: str, **options: Unpack[ListOptions]
    ) -> SequenceEncoding: ...

    @overload
    def encode(self, texts: Iterable[str], **options: Unpack[ListOptions]) -> Encoding: ...

    def encode(self, texts: str | Iterable[str], **options: Unpack[ListOptions]) -> Encoding | SequenceEncoding:
        """Encode texts; the server tokenizes them with the model's own tokenizer.

        The client splits a list of any length into requests within the server's limits. An empty text has the vector of
        the tokenizer's special tokens. If several sequences fail, the error of the first one in the list is raised,
        unless the call is `partial`.

        Args:
            texts: a list of texts, whose result is an `Encoding`; or one text, whose result has one vector.
            **options: see `RequestOptions` and `ListOptions`.
        """
        if isinstance(texts, str):
            call = OneTextCall(self._settings, TextInput(), [texts], options)
            encoding: SequenceEncoding = self._send_one(call, call.chunk())
            return encoding
        return self._list(EncodeCall(self._settings, TextInput(), texts, options))

    def encode_tokens(self, sequences: Iterable[ArrayLike], **options: Unpack[ListOptions]) -> Encoding:
        """Encode token ids, each sequence [n] integers with its special tokens; otherwise see `encode`."""
        return self._list(EncodeCall(self._settings, TokenInput(), sequences, options))

    def encode_features(self, sequences: Iterable[ArrayLike], **options: Unpack[ListOptions]) -> Encoding:
        """Encode feature vectors, each sequence [n, width] real numbers; otherwise see `encode`."""
        return self._list(EncodeCall(self._settings, FeatureInput(), sequences, options))

    def encode_images(self, images: Iterable[bytes | PathLike[str]], **options: Unpack[ListOptions]) -> Encoding:
        """Encode images, each the bytes or the path of a JPEG or PNG file; otherwise see `encode`.

        The server decodes the images and prepares them as the model's checkpoint does. `takes_images` of the model's
        description says whether it can.
        """
        return self._list(EncodeCall(self._settings, ImageInput(), images, options))

    def classify(
        self, sequences: Iterable[str | tuple[str, str] | PathLike[str] | ArrayLike], **options: Unpack[ClassifyOptions]
    ) -> Classification:
        """Return the scores of each sequence for the labels of the model, or of each token.

        The model's description must have a `head`. A list of any length is split as `encode` does.

        Args:
            sequences: all texts, all pairs of texts, all images (bytes or paths of files), all token ids [n], or all
                features [n, width].
            **options: see `ClassifyOptions`.
        """
        return self._list(ClassifyCall(self._settings, None, sequences, options))

    def tokenize(self, texts: Iterable[str], **options: Unpack[TokenizeOptions]) -> Tokenization:
        """Return the token ids of texts, as `encode` would encode them; nothing is encoded.

        A text may have more tokens than the model accepts: compare its length with `max_tokens` of the result, and cut
        the text. A list of any length is split as `encode` does.

        Args:
            texts: the texts.
            **options: see `TokenizeOptions`.
        """
        return self._list(TokenizeCall(self._settings, TextInput(), texts, options))

    def count_tokens(self, texts: Iterable[str], **options: Unpack[TokenizeOptions]) -> list[int]:
        """Return the number of tokens of each text, special tokens and prompt included; see `tokenize`."""
        return [*map(int, self.tokenize(texts, **options).lengths)]

    def rerank(self, query: str, documents: Iterable[str], **options: Unpack[RerankOptions]) -> Ranking:
        """Return documents by their scores for a query, the best first; `model().tasks` must contain "rerank".

        Args:
            query: the first text of each pair.
            documents: the second texts.
            **options: see `ClassifyOptions` and `RerankOptions`.
        """
        call = RerankCall(self._settings, query, documents, options)
        return call.rank(self._list(call))

    def encode_stream(
        self,
        sequences: Iterable[str | PathLike[str] | ArrayLike],
        **options: Unpack[StreamOptions],
    ) -> Generator[SequenceEncoding, None, None]:
        """Encode the sequences of an iterable of any length, and yield one result per sequence.

        The client reads ahead at most as many sequences as `max_in_flight` requests hold, so memory does not grow with
        the length of the stream. The iterable is read in a thread of its own: while it waits, the sequences that it has
        given are sent after at most 0.1 s, and results are yielded, if your program waits for the next result. Closing
        the generator early cancels the requests in flight.

        Args:
            sequences: all texts, all images (bytes or paths of files), all token ids [n], or all features [n, width].
            **options: see `RequestOptions` and `StreamOptions`.
        """
        return self._stream(StreamCall(self._settings, None, sequences, options))

    def attend(
        self, sequence: str | tuple[str, str] | bytes | PathLike[str] | ArrayLike, **options: Unpack[AttendOptions]
    ) -> Attention:
        """Return the attention weights of one sequence; `model().attends` must be true.

        Args:
            sequence: a text, a pair of texts as a tuple, an image as the bytes or the path of a JPEG or PNG file, token
                ids [n] with their special tokens, or feature vectors [n, width].
            **options: see `AttendOptions`.
        """
        request = attend_request(sequence, **self._settings.defaults.merged(options, AttendOptions))
        return self.run(steps.attend(request, self._settings.timeout_s(options.get("timeout_s"))))

    def models(self, *, timeout_s: float | None = None) -> list[ModelVersion]:
        """Return the versions that the server holds, loads or failed to load, sorted by model name and version."""
        return self.run(steps.models(self._settings.timeout_s(timeout_s)))

    def batches(self, model: str = "", *, timeout_s: float | None = None) -> list[Batch]:
        """Return the latest batches that the server has run, at most 64, the newest last; of all models by default."""
        return self.run(steps.batches(model, self._settings.timeout_s(timeout_s)))

    def load(self, name: str, *, timeout_s: float = steps.LOAD_TIMEOUT_S) -> ModelRef:
        """Have the server load the highest version of a model, and return the version once it answers requests.

        Raises `Unimplemented` unless the operator lets callers load models.

        Args:
            name: the model.
            timeout_s: seconds until the deadline; loading may take minutes. The server goes on with the load after the
                deadline.
        """
        return self.run(steps.load(name, self._settings.timeout_s(timeout_s)))

    def unload(self, name: str, *, timeout_s: float | None = None) -> None:
        """Stop a model from taking requests until it is loaded again; the server frees the model once its requests end.

        Raises `Unimplemented` unless the operator lets callers unload models.
        """
        self.run(steps.unload(name, self._settings.timeout_s(timeout_s)))

    def model(self, name: str = "", *, version: str = "", timeout_s: float | None = None) -> ModelDescription:
        """Return the description of one model: its inputs, its limits, how it runs and its measured differences.

        Args:
            name: the model; may be left out if the server holds only one.
            version: the model's version; if empty, the version that the server serves at present.
            timeout_s: seconds until the deadline; the client's when None.
        """
        name, version = self._settings.defaults.model(name, version)
        return describe(self.run(steps.model(name, version, self._settings.timeout_s(timeout_s))))

    def is_serving(self, *, timeout_s: float | None = None) -> bool:
        """Return whether the server's health check answers SERVING; False if no answer comes."""
        return self.run(steps.is_serving(self._settings.timeout_s(timeout_s)))

    def wait_ready(self, *, timeout_s: float | None = None) -> None:
        """Wait until the server accepts requests.

        Args:
            timeout_s: maximum seconds to wait; the client's timeout when None.

        Raises:
            DeadlineExceeded: the server does not accept requests in time; the message says why.
        """
        self.run(steps.wait_ready(self._settings.timeout_s(timeout_s)))

    def close(self) -> None:
        """Close the connection; calls in flight, and all later calls, raise `Cancelled`."""
        self._transport.close()
        with self._open_lock:
            self._closed = True
            to_cancel = list(self._open)
        for each in to_cancel:
            each.cancel()

    def __repr__(self) -> str:
        return described(self, self._address, self._transport)

    def __reduce__(self) -> NoReturn:
        raise TypeError(NOT_PICKLED.format(name="Client"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _list(self, call: ListCall[_ListResult]) -> _ListResult:
        chunks = self.run(call.split())
        if len(chunks) == 1:
            result: _ListResult = self._send_one(call, chunks[0])
            return result
        try:
            with closing(self._send_all(chunks, call.send_part)) as parts:
                for part in parts:
                    call.note_progress(part)
        except HeadwaiterError as error:
            call.add_finished(error)
            raise
        return call.joined()

    def _send_one(self, call: ListCall[Any], chunk: Chunk) -> Any:
        """Send a call that one request holds; share the request with other calls if possible."""
        if self._sharing and not has_span():
            return self._sharing.send(call, chunk, self.run)
        return self.run(call.send_all(chunk))

    def _send_all(
        self, chunks: Iterable[Chunk], send: Callable[[Chunk], Steps[_Result]]
    ) -> Generator[_Result, None, None]:
        """Send chunks, up to `max_in_flight` at once, and yield their results in order.

        While fewer than `max_in_flight` chunks are in flight, the next chunk is sent before any result is yielded, so
        that the server always has work.
        """
        pending: deque[Work[_Result]] = deque()
        to_send = iter(chunks)
        with self._cancelled_at_end(CancelScope()) as scope:

            def start(chunk: Chunk) -> Work[_Result]:
                return self._workers.submit(lambda: self.run(send(chunk), scope))

            try:
                while True:
                    pending.extend(map(start, islice(to_send, self._settings.max_in_flight - len(pending))))
                    if not pending:
                        return
                    if self._workers.take(pending[0]):
                        # The threads are busy with other calls. This thread works too, so that the deadline holds.
                        pending[0].run()
                    result = wait_for_result(pending[0])
                    pending.popleft()
                    yield result
            finally:
                for work in pending:
                    work.cancel()

    def _stream(self, call: StreamCall) -> Generator[SequenceEncoding, None, None]:
        limits = self.run(call.limits())
        with self._cancelled_at_end(CancelScope()) as scope:

            def send(chunk: Chunk) -> list[SequenceEncoding]:
                return self.run(call.send_chunk(chunk), scope)

            with self._cancelled_at_end(ThreadStream(call, limits, send, self._workers)) as stream:
                while (part := stream.next_part()) is not None:
                    yield from part

    @contextmanager
    def _cancelled_at_end(self, cancellable: _ToCancel) -> Iterator[_ToCancel]:
        """Cancel at the end of the block, or when the client is closed."""
        with self._open_lock:
            self._open.add(cancellable)
            closed = self._closed
        try:
            if closed:
                cancellable.cancel()
            yield cancellable
        finally:
            with self._open_lock:
                self._open.remove(cancellable)
            cancellable.cancel()

    def run(self, call: Steps[_Result], cancel_scope: CancelScope | None = None) -> _Result:
        """Take all steps of a call, and return the result of the call."""
        return run_steps(call, lambda step: self._take(step, cancel_scope))

    def _take(self, step: steps.Call | steps.Pause, cancel_scope: CancelScope | None) -> steps.Outcome:
        """Take one step, and return the outcome of the step."""
        if isinstance(step, steps.Pause):
            time.sleep(step.pause_s)
            return None
        return step.read(
            self._transport.unary(step.method, step.request, step.timeout_s, step.request_id, cancel_scope)
        )
