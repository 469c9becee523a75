"""The client for threads."""

import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self, SupportsIndex, TypeVar, Unpack

from google.protobuf.message import Message
from numpy.typing import ArrayLike

from headwaiter_client import _attention, _connection, _core
from headwaiter_client._retry import DEFAULT_RETRY, RetryPolicy
from headwaiter_client._transport import GrpcTransport, Transport
from headwaiter_proto import encoder_pb2 as pb

_Reply = TypeVar("_Reply", bound=Message)


class Client:
    """Calls a Headwaiter server, or the healthy ones of several replicas in turns; threads may share it.

    Every method raises a `HeadwaiterError` when its call fails: `InvalidInput` for what cannot be sent, `Cancelled`
    once the client is closed. Arguments that do not fit the signature, such as an option that does not exist, are a
    `TypeError`.

    Args:
        address: the server, as host:port; or a list of replicas, where one name may stand for several.
        token: bearer token to send with each call.
        tls: talk TLS, with these files; plain text when None.
        metadata: what else to send with each call.
        retry: whether a call that failed is sent again, and when.
        timeout_s: seconds until the deadline of calls that name none.

    Raises:
        ValueError: there is no address, or the token or the metadata cannot be sent in a header.
        OSError: a TLS file cannot be read.
    """

    def __init__(
        self,
        address: str | Sequence[str],
        *,
        token: str | None = None,
        tls: _connection.TlsConfig | None = None,
        metadata: Mapping[str, str] | None = None,
        retry: RetryPolicy = DEFAULT_RETRY,
        timeout_s: float = 30.0,
    ) -> None:
        self._timeout_s = timeout_s
        connection = _connection.Connection(address, token, tls, metadata)
        self._transport: Transport = GrpcTransport(connection, retry)

    def encode(
        self, texts: Iterable[str], *, timeout_s: float | None = None, **options: Unpack[_core.RequestOptions]
    ) -> _core.Encoding:
        """Encodes texts, which the server tokenises with the model's own tokenizer.

        Args:
            texts: the texts; not a single str.
            timeout_s: seconds until the deadline; the client's when None.
            **options: see `RequestOptions`.
        """
        return self._encode(_core.texts_request(texts, **options), timeout_s)

    def encode_tokens(
        self, sequences: Iterable[ArrayLike], *, timeout_s: float | None = None, **options: Unpack[_core.RequestOptions]
    ) -> _core.Encoding:
        """Encodes token ids, each sequence [n] integers with its special tokens; otherwise as `encode`."""
        return self._encode(_core.tokens_request(sequences, **options), timeout_s)

    def encode_features(
        self, sequences: Iterable[ArrayLike], *, timeout_s: float | None = None, **options: Unpack[_core.RequestOptions]
    ) -> _core.Encoding:
        """Encodes feature vectors, each sequence [n, width] real numbers; otherwise as `encode`."""
        return self._encode(_core.features_request(sequences, **options), timeout_s)

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
        started_s = time.perf_counter()
        response = self._call("Attend", pb.AttendResponse, request, timeout_s, request.request_id)
        return _attention.attention(response, round_trip_s=time.perf_counter() - started_s)

    def models(self, *, timeout_s: float | None = None) -> list[_core.ModelRef]:
        """Lists the models the server holds."""
        response = self._call("ListModels", pb.ListModelsResponse, pb.ListModelsRequest(), timeout_s)
        return [_core.model_ref(model) for model in response.models]

    def model(self, name: str = "", *, timeout_s: float | None = None) -> pb.GetModelResponse:
        """Describes one model in the contract's own message: inputs, limits, how it runs, how far from PyTorch.

        Args:
            name: the model; may be left out where the server holds one.
            timeout_s: seconds until the deadline; the client's when None.
        """
        return self._call("GetModel", pb.GetModelResponse, _core.model_request(name), timeout_s)

    def is_serving(self, *, timeout_s: float | None = None) -> bool:
        """Asks the server's health service whether it takes requests."""
        raw = self._transport.unary(_core.HEALTH_METHOD, _core.HEALTH_REQUEST, self._within_s(timeout_s))
        return raw == _core.HEALTH_SERVING

    def close(self) -> None:
        """Closes the connection; calls in flight, and later ones, end as `Cancelled`."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _encode(self, request: pb.EncodeRequest, timeout_s: float | None) -> _core.Encoding:
        started_s = time.perf_counter()
        response = self._call("Encode", pb.EncodeResponse, request, timeout_s, request.request_id)
        return _core.encoding(response, round_trip_s=time.perf_counter() - started_s)

    def _call(
        self,
        method: str,
        kind: type[_Reply],
        request: Message,
        timeout_s: float | None,
        request_id: str | None = None,
    ) -> _Reply:
        raw = self._transport.unary(
            _core.METHODS[method], request.SerializeToString(), self._within_s(timeout_s), request_id
        )
        return _core.parse(raw, kind, request_id)

    def _within_s(self, timeout_s: float | None) -> float:
        return self._timeout_s if timeout_s is None else timeout_s
