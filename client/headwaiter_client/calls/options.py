"""The options of a request: everything except its sequences."""

import os
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from types import UnionType
from typing import (
    Any,
    Literal,
    SupportsIndex,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    get_args,
    get_type_hints,
)

import numpy as np
from numpy.typing import DTypeLike

from headwaiter_client.calls.arguments import check_type, check_unicode
from headwaiter_client.calls.input_kinds import Request, whole_number
from headwaiter_client.calls.progress import Progress
from headwaiter_proto import encoder_pb2 as pb
from headwaiter_proto.rules.errors import InvalidInput

Pooling: TypeAlias = Literal[
    "mean",
    "cls",
    "max",
    "last",
    "weighted_mean",
    "mean_sqrt_len",
    "attention",
    "concatenated",
    "prefix_mean",
    "patch_mean",
    "own",
]
_Truncation: TypeAlias = Literal["error", "left", "right"]
_PairTruncation: TypeAlias = Literal["longest_first", "only_second"]
Priority: TypeAlias = Literal["interactive", "bulk"]

_DTYPES: dict[np.dtype[Any], pb.DataType] = {
    np.dtype("<f4"): pb.DATA_TYPE_FLOAT32,
    np.dtype("<f2"): pb.DATA_TYPE_FLOAT16,
    np.dtype("i1"): pb.DATA_TYPE_INT8,
}


class _CommonOptions(TypedDict, total=False):
    """The options of all methods that take sequences, of which a client may have defaults."""

    model: str
    model_version: str
    priority: Priority


class _VectorOptions(TypedDict, total=False):
    """The options of the vectors that encode methods return, of which a client may have defaults."""

    dtype: DTypeLike
    pooling: Pooling | None
    normalize: bool | None
    dimensions: SupportsIndex | None


class DefaultOptions(_CommonOptions, _VectorOptions, total=False):
    """The options that a client may have as arguments, as the defaults of its calls. See `RequestOptions`.

    `classify` and `rerank` use `model`, `model_version` and `priority`; `attend` and `model` use `model` and
    `model_version`. A call that names a model does not use the client's `model_version`.
    """


class _CallOptions(TypedDict, total=False):
    """The options of all methods that a client has no defaults for."""

    request_id: str
    timeout_s: float | None


class _SharedOptions(_CommonOptions, _CallOptions, total=False):
    truncation: _Truncation
    prompt: str
    offsets: bool
    partial: bool


class RequestOptions(_SharedOptions, _VectorOptions, total=False):
    """The options of a request; all of them may be left out. A client may have defaults of its own for some.

    Attributes:
        pooled: return one vector per sequence (default: True). A model without pooling returns hidden vectors instead;
            a request with `hidden=True` to such a model also needs `pooled=False`.
        hidden: return one vector per token (default: False).
        dense: return the vectors of a model with sparse vectors as `pooled`, with all their numbers (default: False).
        sparse: return a sparse vector of each sequence too, from a model that weighs tokens, such as bge-m3 (default:
            False). `normalize` and `dimensions` change only the dense vectors.
        dtype: data type of the vectors: float32 (default), float16, or int8 with one scale per vector.
        hidden_dtype: data type of the hidden vectors; `dtype` when None (default).
        pooling: "mean", "cls", "max", "last", "weighted_mean" (row i has the weight i) or "mean_sqrt_len" (the sum
            divided by the square root of the length); "attention", "concatenated", "prefix_mean", "patch_mean" or
            "own" only for a model that has it; the model's own pooling when None (default). Another pooling than the
            model's own is computed from the hidden vectors, which costs more.
        normalize: whether to scale pooled vectors to unit length; the model's own choice when None (default).
        dimensions: number of leading dimensions of a pooled vector to return, for models trained to be shortened in
            this way; all dimensions when None (default).
        truncation: how to treat a text with more tokens than the model accepts: "error" refuses it (default), "left"
            and "right" drop tokens on that side. The tokens of a prompt count, and "left" drops them first.
        prompt: name of a prompt of the checkpoint, such as "query", to put before each text (default: the
            `default_prompt` of the model).
        offsets: return the position of each token in its text (default: False).
        partial: return the vectors of the valid sequences, and the errors of the others in `failures`; otherwise the
            first error is raised (default: False). If a request fails as a whole, its error is raised, and `finished`
            of this error holds the results that have arrived.
        model: name of the model; may be left out if the server holds only one, or has a default model.
        model_version: version of the model; if empty (default), the version that the server serves at present.
        request_id: the request's name in the server's log (default: a random one). If a list takes several requests,
            each request after the first has the index of its first sequence appended.
        timeout_s: seconds until the deadline, of the whole call for a list, of each request for a stream; when None
            (default), each request has the client's timeout.
        priority: "interactive" (default), or "bulk" for work without a waiting user: interactive
            requests go first, and delay a bulk request by at most about 20 s.
    """

    pooled: bool
    hidden: bool
    dense: bool
    sparse: bool
    hidden_dtype: DTypeLike | None


class ListOptions(RequestOptions, total=False):
    """The options of a list, whose length is known.

    Attributes:
        progress: True to show a line of progress on standard error; or a function called after each request, in the
            list's order, with the number of finished sequences and the number of all sequences.
    """

    progress: Progress | None


class StreamOptions(RequestOptions, total=False):
    """The options of a stream.

    Attributes:
        ordered: yield the results in the order of the sequences (default: True); otherwise results are yielded as they
            arrive, and `index` names the sequence.
    """

    ordered: bool


class ClassifyOptions(_SharedOptions, total=False):
    """The options of `classify` and `rerank`; all of them may be left out. See `RequestOptions` for most.

    Attributes:
        raw_scores: return logits, without the model's own sigmoid or softmax (default: False). Scores of a sigmoid near
            1 differ little; their logits still differ.
        truncation: how to treat a text or a pair with more tokens than the model accepts.
        pair_truncation: which text of a pair loses tokens: "longest_first" shortens the longer text until both are
            equally long (default), "only_second" shortens the second one, and refuses a pair whose second text would
            lose all tokens.
        prompt: only for texts.
        offsets: return the position of each token in its text, or in the second text of its pair (default: False); not
            in `rerank`.
        partial: return the scores of the valid sequences.
        model: name of the model.
        model_version: version of the model.
        request_id: the request's name in the server's log.
        timeout_s: seconds until the deadline of the whole call.
        priority: "interactive" or "bulk".
        progress: as in `ListOptions`.
    """

    raw_scores: bool
    pair_truncation: _PairTruncation
    progress: Progress | None


class RerankOptions(ClassifyOptions, total=False):
    """The options of `rerank`.

    Attributes:
        top_n: most documents to return; all when None (default).
    """

    top_n: SupportsIndex | None


class TokenizeOptions(_CallOptions, total=False):
    """The options of `tokenize`; all of them may be left out.

    Attributes:
        truncation: how to treat a text with more tokens than the model accepts: "error" refuses it, "left" and "right"
            drop tokens on that side; without truncation, a text keeps all its tokens.
        prompt: as in `RequestOptions`.
        offsets: return the position of each token in its text (default: False).
        strings: return each token as the tokenizer's vocabulary spells it (default: False).
        model: name of the model.
        model_version: version of the model.
        request_id: the request's name in the server's log.
        timeout_s: seconds until the deadline of the whole call.
    """

    truncation: _Truncation
    prompt: str
    offsets: bool
    strings: bool
    model: str
    model_version: str


class AttendOptions(_CallOptions, total=False):
    """The options of `attend`; all of them may be left out.

    Attributes:
        layers: layers to return, in this order; all when None (default). The server limits the bytes of the weights,
            which are 4 · heads · n² per layer: a long sequence takes several calls.
        heads: heads of each layer to return, in this order; all when None (default).
        query: position whose context vectors are returned too; no context vectors when None (default).
        vectors: return q, k and v of the head too, for one layer, one head and a query (default: False).
        model: name of the model.
        model_version: version of the model.
        request_id: the request's name in the server's log.
        timeout_s: seconds until the deadline.
    """

    layers: Iterable[SupportsIndex] | None
    heads: Iterable[SupportsIndex] | None
    query: SupportsIndex | None
    vectors: bool
    model: str
    model_version: str


# Most programs pass the same options in every call; checking them takes longer than copying a checked request.
_MAX_TEMPLATES = 64
_Template = TypeVar("_Template", bound=Request)

# For each type hint of an option: the Python types that are accepted, and their name in error messages.
_STR: tuple[type | UnionType, str] = (str, "a str")
_ANY: tuple[type | UnionType, str] = (object, "a data type")  # NumPy checks it in `_dtype`.
_ACCEPTED: dict[Any, tuple[type | UnionType, str]] = {
    bool: (bool | np.bool_, "a bool"),
    bool | None: (bool | np.bool_ | None, "a bool or None"),
    str: _STR,
    _Truncation: _STR,
    _PairTruncation: _STR,
    Priority: _STR,
    Pooling | None: (str | None, "a str or None"),
    SupportsIndex | None: (SupportsIndex | None, "a whole number or None"),
    DTypeLike: _ANY,
    DTypeLike | None: _ANY,
}
# Of the options that a template holds.
_TYPES = {
    option: _ACCEPTED[hint]
    for options in (RequestOptions, ClassifyOptions)
    for option, hint in get_type_hints(options).items()
    if option not in ("request_id", "timeout_s", "progress")
}


class Defaults:
    """The options that a client has for its calls.

    Raises:
        TypeError: an option has the wrong type, or a client does not have it.
        ValueError: an option has a value that cannot be sent.
    """

    def __init__(self, options: DefaultOptions) -> None:
        known = DefaultOptions.__annotations__
        for option in options:
            if option not in known:
                raise TypeError(
                    f"the client has no argument {option}: pass an argument that it has, such as timeout_s or one of "
                    f"{', '.join(known)}"
                )
        try:
            encode_request(**options)
        except InvalidInput as error:
            raise ValueError(str(error)) from error
        self._options = options

    def merged(self, options: Mapping[str, Any], kind: type) -> dict[str, Any]:
        """Return the options of a call, with the defaults of those that the call leaves out.

        Args:
            options: the options that the call sets.
            kind: the `TypedDict` of all options that the call has.

        Raises:
            TypeError: the call does not have an option.
        """
        known = kind.__annotations__
        for option in options:
            if option not in known:
                raise TypeError(f"the option {option} does not exist: the options are {', '.join(known)}")
        if not self._options:
            return dict(options)
        merged = {option: value for option, value in self._options.items() if option in known} | dict(options)
        for option in ("model", "model_version"):
            # An empty name is the same as no name. The client's version is that of the client's model only.
            if option in options and not options[option]:
                merged[option] = self._options.get(option, "")
        if options.get("model") and not options.get("model_version"):
            merged["model_version"] = ""
        return merged

    def model(self, name: str, version: str) -> tuple[str, str]:
        """Return the model and the version of a call: its own, or the client's where they are empty."""
        merged = self.merged({"model": name, "model_version": version}, AttendOptions)
        return merged["model"], merged["model_version"]


def encode_request(**options: Unpack[RequestOptions]) -> pb.EncodeRequest:
    """Return a request with the options and without sequences.

    Raises:
        TypeError: an option has the wrong type.
        InvalidInput: an option has a value that cannot be sent.
    """
    request = copied(encode_template(options))
    request.request_id = own_id(options) or random_id()
    return request


def encode_template(options: Mapping[str, Any]) -> pb.EncodeRequest:
    """Return `encode_request` without an id: one object for equal options, which nobody may change."""
    return _kept(_encode_template, options)


@lru_cache(_MAX_TEMPLATES, typed=True)
def _encode_template(**options: Any) -> pb.EncodeRequest:
    _check_types(options)
    pooled, hidden, sparse = options.get("pooled", True), options.get("hidden", False), options.get("sparse", False)
    if not (pooled or hidden or sparse):
        raise InvalidInput("pooled, hidden and sparse are False: ask for at least one of them", field="output")
    hidden_dtype, pooling, dimensions = options.get("hidden_dtype"), options.get("pooling"), options.get("dimensions")
    output = pb.OutputOptions(
        # A request for pooled vectors alone leaves both fields unset: a model without pooling then answers with hidden
        # vectors, instead of refusing the request.
        pooled=pooled and (hidden or sparse),
        hidden=hidden,
        dtype=_dtype("dtype", options.get("dtype", np.float32)),
        hidden_dtype=pb.DATA_TYPE_UNSPECIFIED if hidden_dtype is None else _dtype("hidden_dtype", hidden_dtype),
        pooling=pb.POOLING_UNSPECIFIED if pooling is None else _enum_value("output.pooling", pooling, Pooling),
        dimensions=0 if dimensions is None else whole_number("output.dimensions", dimensions, minimum=1),
        offsets=options.get("offsets", False),
        dense=options.get("dense", False),
        sparse=sparse,
    )
    if (normalize := options.get("normalize")) is not None:
        output.normalize = normalize
    request = pb.EncodeRequest(output=output)
    _fill_common(request, options)
    return request


def classify_template(options: Mapping[str, Any], *, logits: bool) -> pb.ClassifyRequest:
    """Return a request with the options, as `encode_template` does; `logits` asks for them."""
    return _kept(_classify_template, options, logits=logits)


@lru_cache(_MAX_TEMPLATES, typed=True)
def _classify_template(*, logits: bool, **options: Any) -> pb.ClassifyRequest:
    _check_types(options)
    output = pb.ClassifyOptions(
        raw_scores=options.get("raw_scores", False), offsets=options.get("offsets", False), logits=logits
    )
    request = pb.ClassifyRequest(output=output)
    _fill_common(request, options)
    if "pair_truncation" in options:
        if request.HasField("texts"):
            raise InvalidInput(
                "prompt and pair_truncation are set: use prompt only with texts, and pair_truncation only with pairs",
                field="texts.prompt",
            )
        request.pairs.pair_truncation = _enum_value("pair_truncation", options["pair_truncation"], _PairTruncation)
    return request


def tokenize_template(options: Mapping[str, Any]) -> pb.EncodeRequest:
    """Return a request with the options except `strings`, as `encode_template` does."""
    check_type("strings", options.get("strings", False), *_ACCEPTED[bool])
    template = copied(encode_template(options))
    if "truncation" not in options:
        template.truncation = pb.TRUNCATION_UNSPECIFIED
    return template


def own_id(options: Mapping[str, Any]) -> str:
    """Return the id that the caller gave a call; an empty text if the caller gave no id.

    Raises:
        TypeError: the id is not a str.
        InvalidInput: the id is not Unicode text.
    """
    return checked_text("request_id", options["request_id"]) if "request_id" in options else ""


def random_id() -> str:
    """Return an id for a request."""
    return os.urandom(16).hex()


def _kept(template: Callable[..., _Template], options: Mapping[str, Any], **more: bool) -> _Template:
    """Return the request for options, if possible the one that equal options had before."""
    others = {option: value for option, value in options.items() if option in _TYPES} | more
    try:
        known: _Template | None = template(**others)
    except TypeError:  # The value of an option cannot be hashed, or has the wrong type.
        known = None
    if known is None:
        known = template.__wrapped__(**others)  # type: ignore[attr-defined]
    return known


def copied(request: _Template) -> _Template:
    """Return a copy of a request; much faster than `deepcopy`."""
    copy = type(request)()
    copy.CopyFrom(request)  # type: ignore[arg-type]  # Both have one type.
    return copy


def _check_types(options: Mapping[str, Any]) -> None:
    """Raise a `TypeError` for an option that has the wrong type."""
    for option, value in options.items():
        check_type(option, value, *_TYPES[option])


def _fill_common(request: Request, options: Mapping[str, Any]) -> None:
    """Write the options that all requests have into a request."""
    request.model = checked_text("model", options.get("model", ""))
    request.model_version = checked_text("model_version", options.get("model_version", ""))
    request.truncation = _enum_value("truncation", options.get("truncation", "error"), _Truncation)
    request.priority = _enum_value("priority", options.get("priority", "interactive"), Priority)
    request.partial = options.get("partial", False)
    if prompt := options.get("prompt", ""):
        request.texts.prompt = checked_text("prompt", prompt)


def checked_text(field: str, value: str) -> str:
    """Return a text that the wire can hold.

    Raises:
        TypeError: the value is not a str.
        InvalidInput: the value is not Unicode text.
    """
    check_type(field, value, *_STR)
    check_unicode(field, value, field=field)
    return value


def _dtype(option: str, dtype: DTypeLike) -> pb.DataType:
    try:
        return _DTYPES[np.dtype(dtype)]
    except (KeyError, TypeError, ValueError, SyntaxError) as error:  # NumPy refuses a data type with any of these.
        raise InvalidInput(f"{option} is {dtype!r}: pass float32, float16 or int8", field=f"output.{option}") from error


def _enum_value(field: str, name: str, literal: Any) -> Any:
    """Return the proto enum value for one of the names of a Literal, such as POOLING_MEAN for "mean"."""
    *others, last = map(repr, get_args(literal))
    option = field.rpartition(".")[2]
    if name not in get_args(literal):
        raise InvalidInput(f"{option} is {name!r}: pass {', '.join(others)} or {last}", field=field)
    return getattr(pb, f"{option}_{name}".upper())
