from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DataType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DATA_TYPE_UNSPECIFIED: _ClassVar[DataType]
    DATA_TYPE_FLOAT32: _ClassVar[DataType]
    DATA_TYPE_FLOAT16: _ClassVar[DataType]
    DATA_TYPE_INT8: _ClassVar[DataType]
    DATA_TYPE_INT32: _ClassVar[DataType]
    DATA_TYPE_INT64: _ClassVar[DataType]

class Pooling(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    POOLING_UNSPECIFIED: _ClassVar[Pooling]
    POOLING_NONE: _ClassVar[Pooling]
    POOLING_MEAN: _ClassVar[Pooling]
    POOLING_CLS: _ClassVar[Pooling]
    POOLING_MAX: _ClassVar[Pooling]
    POOLING_LAST: _ClassVar[Pooling]
    POOLING_WEIGHTED_MEAN: _ClassVar[Pooling]
    POOLING_MEAN_SQRT_LEN: _ClassVar[Pooling]
    POOLING_ATTENTION: _ClassVar[Pooling]
    POOLING_CONCATENATED: _ClassVar[Pooling]
    POOLING_PREFIX_MEAN: _ClassVar[Pooling]
    POOLING_PATCH_MEAN: _ClassVar[Pooling]
    POOLING_OWN: _ClassVar[Pooling]

class Isolation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ISOLATION_UNSPECIFIED: _ClassVar[Isolation]
    ISOLATION_MIXED: _ClassVar[Isolation]
    ISOLATION_ONE_LENGTH: _ClassVar[Isolation]
    ISOLATION_ONE_SEQUENCE: _ClassVar[Isolation]

class Precision(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRECISION_UNSPECIFIED: _ClassVar[Precision]
    PRECISION_FP32: _ClassVar[Precision]
    PRECISION_FP16: _ClassVar[Precision]
    PRECISION_BF16: _ClassVar[Precision]
    PRECISION_INT8: _ClassVar[Precision]

class ScoreFunction(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SCORE_FUNCTION_UNSPECIFIED: _ClassVar[ScoreFunction]
    SCORE_FUNCTION_IDENTITY: _ClassVar[ScoreFunction]
    SCORE_FUNCTION_SIGMOID: _ClassVar[ScoreFunction]
    SCORE_FUNCTION_SOFTMAX: _ClassVar[ScoreFunction]
    SCORE_FUNCTION_RELU: _ClassVar[ScoreFunction]

class Task(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TASK_UNSPECIFIED: _ClassVar[Task]
    TASK_ENCODE: _ClassVar[Task]
    TASK_CLASSIFY: _ClassVar[Task]
    TASK_CLASSIFY_TOKENS: _ClassVar[Task]
    TASK_RERANK: _ClassVar[Task]
    TASK_ATTEND: _ClassVar[Task]

class Truncation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TRUNCATION_UNSPECIFIED: _ClassVar[Truncation]
    TRUNCATION_ERROR: _ClassVar[Truncation]
    TRUNCATION_LEFT: _ClassVar[Truncation]
    TRUNCATION_RIGHT: _ClassVar[Truncation]

class Priority(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PRIORITY_UNSPECIFIED: _ClassVar[Priority]
    PRIORITY_INTERACTIVE: _ClassVar[Priority]
    PRIORITY_BULK: _ClassVar[Priority]

class ErrorReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ERROR_REASON_UNSPECIFIED: _ClassVar[ErrorReason]
    INVALID_INPUT: _ClassVar[ErrorReason]
    SEQUENCE_TOO_LONG: _ClassVar[ErrorReason]
    MODEL_NOT_FOUND: _ClassVar[ErrorReason]
    OVERLOADED: _ClassVar[ErrorReason]
    MESSAGE_TOO_LARGE: _ClassVar[ErrorReason]
    DEADLINE_EXCEEDED: _ClassVar[ErrorReason]
    CANCELLED: _ClassVar[ErrorReason]
    UNAVAILABLE: _ClassVar[ErrorReason]
    INFERENCE_FAILED: _ClassVar[ErrorReason]
    UNAUTHENTICATED: _ClassVar[ErrorReason]
    UNIMPLEMENTED: _ClassVar[ErrorReason]
    DEVICE_FAILED: _ClassVar[ErrorReason]
    STARTING: _ClassVar[ErrorReason]

class PairTruncation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PAIR_TRUNCATION_UNSPECIFIED: _ClassVar[PairTruncation]
    PAIR_TRUNCATION_LONGEST_FIRST: _ClassVar[PairTruncation]
    PAIR_TRUNCATION_ONLY_SECOND: _ClassVar[PairTruncation]

class ModelState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MODEL_STATE_UNSPECIFIED: _ClassVar[ModelState]
    MODEL_STATE_LOADING: _ClassVar[ModelState]
    MODEL_STATE_READY: _ClassVar[ModelState]
    MODEL_STATE_DRAINING: _ClassVar[ModelState]
    MODEL_STATE_FAILED: _ClassVar[ModelState]
    MODEL_STATE_ON_DISK: _ClassVar[ModelState]

class ReferenceSource(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    REFERENCE_SOURCE_UNSPECIFIED: _ClassVar[ReferenceSource]
    REFERENCE_SOURCE_ONNX_FILE: _ClassVar[ReferenceSource]
    REFERENCE_SOURCE_ONNX_FILE_AND_PYTORCH: _ClassVar[ReferenceSource]
DATA_TYPE_UNSPECIFIED: DataType
DATA_TYPE_FLOAT32: DataType
DATA_TYPE_FLOAT16: DataType
DATA_TYPE_INT8: DataType
DATA_TYPE_INT32: DataType
DATA_TYPE_INT64: DataType
POOLING_UNSPECIFIED: Pooling
POOLING_NONE: Pooling
POOLING_MEAN: Pooling
POOLING_CLS: Pooling
POOLING_MAX: Pooling
POOLING_LAST: Pooling
POOLING_WEIGHTED_MEAN: Pooling
POOLING_MEAN_SQRT_LEN: Pooling
POOLING_ATTENTION: Pooling
POOLING_CONCATENATED: Pooling
POOLING_PREFIX_MEAN: Pooling
POOLING_PATCH_MEAN: Pooling
POOLING_OWN: Pooling
ISOLATION_UNSPECIFIED: Isolation
ISOLATION_MIXED: Isolation
ISOLATION_ONE_LENGTH: Isolation
ISOLATION_ONE_SEQUENCE: Isolation
PRECISION_UNSPECIFIED: Precision
PRECISION_FP32: Precision
PRECISION_FP16: Precision
PRECISION_BF16: Precision
PRECISION_INT8: Precision
SCORE_FUNCTION_UNSPECIFIED: ScoreFunction
SCORE_FUNCTION_IDENTITY: ScoreFunction
SCORE_FUNCTION_SIGMOID: ScoreFunction
SCORE_FUNCTION_SOFTMAX: ScoreFunction
SCORE_FUNCTION_RELU: ScoreFunction
TASK_UNSPECIFIED: Task
TASK_ENCODE: Task
TASK_CLASSIFY: Task
TASK_CLASSIFY_TOKENS: Task
TASK_RERANK: Task
TASK_ATTEND: Task
TRUNCATION_UNSPECIFIED: Truncation
TRUNCATION_ERROR: Truncation
TRUNCATION_LEFT: Truncation
TRUNCATION_RIGHT: Truncation
PRIORITY_UNSPECIFIED: Priority
PRIORITY_INTERACTIVE: Priority
PRIORITY_BULK: Priority
ERROR_REASON_UNSPECIFIED: ErrorReason
INVALID_INPUT: ErrorReason
SEQUENCE_TOO_LONG: ErrorReason
MODEL_NOT_FOUND: ErrorReason
OVERLOADED: ErrorReason
MESSAGE_TOO_LARGE: ErrorReason
DEADLINE_EXCEEDED: ErrorReason
CANCELLED: ErrorReason
UNAVAILABLE: ErrorReason
INFERENCE_FAILED: ErrorReason
UNAUTHENTICATED: ErrorReason
UNIMPLEMENTED: ErrorReason
DEVICE_FAILED: ErrorReason
STARTING: ErrorReason
PAIR_TRUNCATION_UNSPECIFIED: PairTruncation
PAIR_TRUNCATION_LONGEST_FIRST: PairTruncation
PAIR_TRUNCATION_ONLY_SECOND: PairTruncation
MODEL_STATE_UNSPECIFIED: ModelState
MODEL_STATE_LOADING: ModelState
MODEL_STATE_READY: ModelState
MODEL_STATE_DRAINING: ModelState
MODEL_STATE_FAILED: ModelState
MODEL_STATE_ON_DISK: ModelState
REFERENCE_SOURCE_UNSPECIFIED: ReferenceSource
REFERENCE_SOURCE_ONNX_FILE: ReferenceSource
REFERENCE_SOURCE_ONNX_FILE_AND_PYTORCH: ReferenceSource

class Head(_message.Message):
    __slots__ = ("labels", "function", "per_token")
    LABELS_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    PER_TOKEN_FIELD_NUMBER: _ClassVar[int]
    labels: _containers.RepeatedScalarFieldContainer[str]
    function: ScoreFunction
    per_token: bool
    def __init__(self, labels: _Optional[_Iterable[str]] = ..., function: _Optional[_Union[ScoreFunction, str]] = ..., per_token: bool = ...) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("dtype", "shape", "data", "row_scales")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    ROW_SCALES_FIELD_NUMBER: _ClassVar[int]
    dtype: DataType
    shape: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    row_scales: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, dtype: _Optional[_Union[DataType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ..., row_scales: _Optional[_Iterable[float]] = ...) -> None: ...

class TokenSequences(_message.Message):
    __slots__ = ("dtype", "data", "lengths", "types")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    TYPES_FIELD_NUMBER: _ClassVar[int]
    dtype: DataType
    data: bytes
    lengths: _containers.RepeatedScalarFieldContainer[int]
    types: bytes
    def __init__(self, dtype: _Optional[_Union[DataType, str]] = ..., data: _Optional[bytes] = ..., lengths: _Optional[_Iterable[int]] = ..., types: _Optional[bytes] = ...) -> None: ...

class FeatureSequences(_message.Message):
    __slots__ = ("dtype", "width", "data", "lengths")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    dtype: DataType
    width: int
    data: bytes
    lengths: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, dtype: _Optional[_Union[DataType, str]] = ..., width: _Optional[int] = ..., data: _Optional[bytes] = ..., lengths: _Optional[_Iterable[int]] = ...) -> None: ...

class Texts(_message.Message):
    __slots__ = ("values", "prompt")
    VALUES_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[str]
    prompt: str
    def __init__(self, values: _Optional[_Iterable[str]] = ..., prompt: _Optional[str] = ...) -> None: ...

class Images(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, values: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Pairs(_message.Message):
    __slots__ = ("first", "second", "pair_truncation")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    SECOND_FIELD_NUMBER: _ClassVar[int]
    PAIR_TRUNCATION_FIELD_NUMBER: _ClassVar[int]
    first: _containers.RepeatedScalarFieldContainer[str]
    second: _containers.RepeatedScalarFieldContainer[str]
    pair_truncation: PairTruncation
    def __init__(self, first: _Optional[_Iterable[str]] = ..., second: _Optional[_Iterable[str]] = ..., pair_truncation: _Optional[_Union[PairTruncation, str]] = ...) -> None: ...

class OutputOptions(_message.Message):
    __slots__ = ("pooled", "hidden", "dtype", "pooling", "normalize", "dimensions", "offsets", "hidden_dtype", "scores", "raw_scores", "dense", "sparse", "logits")
    POOLED_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    NORMALIZE_FIELD_NUMBER: _ClassVar[int]
    DIMENSIONS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_DTYPE_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    RAW_SCORES_FIELD_NUMBER: _ClassVar[int]
    DENSE_FIELD_NUMBER: _ClassVar[int]
    SPARSE_FIELD_NUMBER: _ClassVar[int]
    LOGITS_FIELD_NUMBER: _ClassVar[int]
    pooled: bool
    hidden: bool
    dtype: DataType
    pooling: Pooling
    normalize: bool
    dimensions: int
    offsets: bool
    hidden_dtype: DataType
    scores: bool
    raw_scores: bool
    dense: bool
    sparse: bool
    logits: bool
    def __init__(self, pooled: bool = ..., hidden: bool = ..., dtype: _Optional[_Union[DataType, str]] = ..., pooling: _Optional[_Union[Pooling, str]] = ..., normalize: bool = ..., dimensions: _Optional[int] = ..., offsets: bool = ..., hidden_dtype: _Optional[_Union[DataType, str]] = ..., scores: bool = ..., raw_scores: bool = ..., dense: bool = ..., sparse: bool = ..., logits: bool = ...) -> None: ...

class EncodeRequest(_message.Message):
    __slots__ = ("model", "request_id", "tokens", "features", "texts", "pairs", "images", "output", "truncation", "priority", "partial", "timeout_s", "model_version", "calls")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    TRUNCATION_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    model: str
    request_id: str
    tokens: TokenSequences
    features: FeatureSequences
    texts: Texts
    pairs: Pairs
    images: Images
    output: OutputOptions
    truncation: Truncation
    priority: Priority
    partial: bool
    timeout_s: float
    model_version: str
    calls: int
    def __init__(self, model: _Optional[str] = ..., request_id: _Optional[str] = ..., tokens: _Optional[_Union[TokenSequences, _Mapping]] = ..., features: _Optional[_Union[FeatureSequences, _Mapping]] = ..., texts: _Optional[_Union[Texts, _Mapping]] = ..., pairs: _Optional[_Union[Pairs, _Mapping]] = ..., images: _Optional[_Union[Images, _Mapping]] = ..., output: _Optional[_Union[OutputOptions, _Mapping]] = ..., truncation: _Optional[_Union[Truncation, str]] = ..., priority: _Optional[_Union[Priority, str]] = ..., partial: bool = ..., timeout_s: _Optional[float] = ..., model_version: _Optional[str] = ..., calls: _Optional[int] = ...) -> None: ...

class ModelRef(_message.Message):
    __slots__ = ("name", "digest", "precision", "version", "results_digest")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    RESULTS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    name: str
    digest: str
    precision: Precision
    version: str
    results_digest: str
    def __init__(self, name: _Optional[str] = ..., digest: _Optional[str] = ..., precision: _Optional[_Union[Precision, str]] = ..., version: _Optional[str] = ..., results_digest: _Optional[str] = ...) -> None: ...

class Timings(_message.Message):
    __slots__ = ("tokenize_s", "queue_s", "assemble_s", "compute_s", "respond_s", "total_s", "batches")
    TOKENIZE_S_FIELD_NUMBER: _ClassVar[int]
    QUEUE_S_FIELD_NUMBER: _ClassVar[int]
    ASSEMBLE_S_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_S_FIELD_NUMBER: _ClassVar[int]
    RESPOND_S_FIELD_NUMBER: _ClassVar[int]
    TOTAL_S_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    tokenize_s: float
    queue_s: float
    assemble_s: float
    compute_s: float
    respond_s: float
    total_s: float
    batches: int
    def __init__(self, tokenize_s: _Optional[float] = ..., queue_s: _Optional[float] = ..., assemble_s: _Optional[float] = ..., compute_s: _Optional[float] = ..., respond_s: _Optional[float] = ..., total_s: _Optional[float] = ..., batches: _Optional[int] = ...) -> None: ...

class Truncated(_message.Message):
    __slots__ = ("sequence", "original_tokens")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ORIGINAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    original_tokens: int
    def __init__(self, sequence: _Optional[int] = ..., original_tokens: _Optional[int] = ...) -> None: ...

class Offsets(_message.Message):
    __slots__ = ("begin", "end")
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    begin: _containers.RepeatedScalarFieldContainer[int]
    end: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, begin: _Optional[_Iterable[int]] = ..., end: _Optional[_Iterable[int]] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("sequence", "reason", "message", "metadata")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    reason: ErrorReason
    message: str
    metadata: _containers.ScalarMap[str, str]
    def __init__(self, sequence: _Optional[int] = ..., reason: _Optional[_Union[ErrorReason, str]] = ..., message: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ...) -> None: ...

class SparseVectors(_message.Message):
    __slots__ = ("dtype", "counts", "indices", "values")
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    INDICES_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    dtype: DataType
    counts: _containers.RepeatedScalarFieldContainer[int]
    indices: bytes
    values: bytes
    def __init__(self, dtype: _Optional[_Union[DataType, str]] = ..., counts: _Optional[_Iterable[int]] = ..., indices: _Optional[bytes] = ..., values: _Optional[bytes] = ...) -> None: ...

class EncodeResponse(_message.Message):
    __slots__ = ("request_id", "model", "pooled", "hidden", "lengths", "timings", "truncated", "offsets", "failures", "scores", "sparse", "rows", "logits")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    POOLED_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    SPARSE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    LOGITS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: ModelRef
    pooled: Tensor
    hidden: Tensor
    lengths: _containers.RepeatedScalarFieldContainer[int]
    timings: Timings
    truncated: _containers.RepeatedCompositeFieldContainer[Truncated]
    offsets: _containers.RepeatedCompositeFieldContainer[Offsets]
    failures: _containers.RepeatedCompositeFieldContainer[Failure]
    scores: Tensor
    sparse: SparseVectors
    rows: _containers.RepeatedScalarFieldContainer[int]
    logits: Tensor
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[_Union[ModelRef, _Mapping]] = ..., pooled: _Optional[_Union[Tensor, _Mapping]] = ..., hidden: _Optional[_Union[Tensor, _Mapping]] = ..., lengths: _Optional[_Iterable[int]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ..., truncated: _Optional[_Iterable[_Union[Truncated, _Mapping]]] = ..., offsets: _Optional[_Iterable[_Union[Offsets, _Mapping]]] = ..., failures: _Optional[_Iterable[_Union[Failure, _Mapping]]] = ..., scores: _Optional[_Union[Tensor, _Mapping]] = ..., sparse: _Optional[_Union[SparseVectors, _Mapping]] = ..., rows: _Optional[_Iterable[int]] = ..., logits: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...

class StreamError(_message.Message):
    __slots__ = ("code", "reason", "message", "metadata", "retry_after_s")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_S_FIELD_NUMBER: _ClassVar[int]
    code: int
    reason: ErrorReason
    message: str
    metadata: _containers.ScalarMap[str, str]
    retry_after_s: float
    def __init__(self, code: _Optional[int] = ..., reason: _Optional[_Union[ErrorReason, str]] = ..., message: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ..., retry_after_s: _Optional[float] = ...) -> None: ...

class EncodeStreamResponse(_message.Message):
    __slots__ = ("request_id", "response", "error")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    response: EncodeResponse
    error: StreamError
    def __init__(self, request_id: _Optional[str] = ..., response: _Optional[_Union[EncodeResponse, _Mapping]] = ..., error: _Optional[_Union[StreamError, _Mapping]] = ...) -> None: ...

class ClassifyOptions(_message.Message):
    __slots__ = ("raw_scores", "offsets", "logits")
    RAW_SCORES_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    LOGITS_FIELD_NUMBER: _ClassVar[int]
    raw_scores: bool
    offsets: bool
    logits: bool
    def __init__(self, raw_scores: bool = ..., offsets: bool = ..., logits: bool = ...) -> None: ...

class ClassifyRequest(_message.Message):
    __slots__ = ("model", "request_id", "tokens", "features", "texts", "pairs", "images", "output", "truncation", "priority", "partial", "timeout_s", "model_version", "calls")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    TRUNCATION_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    model: str
    request_id: str
    tokens: TokenSequences
    features: FeatureSequences
    texts: Texts
    pairs: Pairs
    images: Images
    output: ClassifyOptions
    truncation: Truncation
    priority: Priority
    partial: bool
    timeout_s: float
    model_version: str
    calls: int
    def __init__(self, model: _Optional[str] = ..., request_id: _Optional[str] = ..., tokens: _Optional[_Union[TokenSequences, _Mapping]] = ..., features: _Optional[_Union[FeatureSequences, _Mapping]] = ..., texts: _Optional[_Union[Texts, _Mapping]] = ..., pairs: _Optional[_Union[Pairs, _Mapping]] = ..., images: _Optional[_Union[Images, _Mapping]] = ..., output: _Optional[_Union[ClassifyOptions, _Mapping]] = ..., truncation: _Optional[_Union[Truncation, str]] = ..., priority: _Optional[_Union[Priority, str]] = ..., partial: bool = ..., timeout_s: _Optional[float] = ..., model_version: _Optional[str] = ..., calls: _Optional[int] = ...) -> None: ...

class ClassifyResponse(_message.Message):
    __slots__ = ("request_id", "model", "head", "scores", "lengths", "timings", "truncated", "offsets", "failures", "logits")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    SCORES_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    LOGITS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: ModelRef
    head: Head
    scores: Tensor
    lengths: _containers.RepeatedScalarFieldContainer[int]
    timings: Timings
    truncated: _containers.RepeatedCompositeFieldContainer[Truncated]
    offsets: _containers.RepeatedCompositeFieldContainer[Offsets]
    failures: _containers.RepeatedCompositeFieldContainer[Failure]
    logits: Tensor
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[_Union[ModelRef, _Mapping]] = ..., head: _Optional[_Union[Head, _Mapping]] = ..., scores: _Optional[_Union[Tensor, _Mapping]] = ..., lengths: _Optional[_Iterable[int]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ..., truncated: _Optional[_Iterable[_Union[Truncated, _Mapping]]] = ..., offsets: _Optional[_Iterable[_Union[Offsets, _Mapping]]] = ..., failures: _Optional[_Iterable[_Union[Failure, _Mapping]]] = ..., logits: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...

class TokenizeRequest(_message.Message):
    __slots__ = ("model", "request_id", "texts", "pairs", "truncation", "offsets", "strings", "model_version")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATION_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    STRINGS_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    model: str
    request_id: str
    texts: Texts
    pairs: Pairs
    truncation: Truncation
    offsets: bool
    strings: bool
    model_version: str
    def __init__(self, model: _Optional[str] = ..., request_id: _Optional[str] = ..., texts: _Optional[_Union[Texts, _Mapping]] = ..., pairs: _Optional[_Union[Pairs, _Mapping]] = ..., truncation: _Optional[_Union[Truncation, str]] = ..., offsets: bool = ..., strings: bool = ..., model_version: _Optional[str] = ...) -> None: ...

class TokenizeResponse(_message.Message):
    __slots__ = ("request_id", "model", "tokens", "offsets", "special", "strings", "truncated", "max_tokens")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    SPECIAL_FIELD_NUMBER: _ClassVar[int]
    STRINGS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: ModelRef
    tokens: TokenSequences
    offsets: _containers.RepeatedCompositeFieldContainer[Offsets]
    special: bytes
    strings: _containers.RepeatedScalarFieldContainer[str]
    truncated: _containers.RepeatedCompositeFieldContainer[Truncated]
    max_tokens: int
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[_Union[ModelRef, _Mapping]] = ..., tokens: _Optional[_Union[TokenSequences, _Mapping]] = ..., offsets: _Optional[_Iterable[_Union[Offsets, _Mapping]]] = ..., special: _Optional[bytes] = ..., strings: _Optional[_Iterable[str]] = ..., truncated: _Optional[_Iterable[_Union[Truncated, _Mapping]]] = ..., max_tokens: _Optional[int] = ...) -> None: ...

class AttendRequest(_message.Message):
    __slots__ = ("model", "request_id", "tokens", "features", "texts", "pairs", "images", "layers", "heads", "query", "model_version", "vectors")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    TEXTS_FIELD_NUMBER: _ClassVar[int]
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    VECTORS_FIELD_NUMBER: _ClassVar[int]
    model: str
    request_id: str
    tokens: TokenSequences
    features: FeatureSequences
    texts: Texts
    pairs: Pairs
    images: Images
    layers: _containers.RepeatedScalarFieldContainer[int]
    heads: _containers.RepeatedScalarFieldContainer[int]
    query: int
    model_version: str
    vectors: bool
    def __init__(self, model: _Optional[str] = ..., request_id: _Optional[str] = ..., tokens: _Optional[_Union[TokenSequences, _Mapping]] = ..., features: _Optional[_Union[FeatureSequences, _Mapping]] = ..., texts: _Optional[_Union[Texts, _Mapping]] = ..., pairs: _Optional[_Union[Pairs, _Mapping]] = ..., images: _Optional[_Union[Images, _Mapping]] = ..., layers: _Optional[_Iterable[int]] = ..., heads: _Optional[_Iterable[int]] = ..., query: _Optional[int] = ..., model_version: _Optional[str] = ..., vectors: bool = ...) -> None: ...

class AttendResponse(_message.Message):
    __slots__ = ("request_id", "model", "weights", "context", "tokens", "timings", "query_vector", "keys", "values")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TIMINGS_FIELD_NUMBER: _ClassVar[int]
    QUERY_VECTOR_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: ModelRef
    weights: Tensor
    context: Tensor
    tokens: _containers.RepeatedScalarFieldContainer[str]
    timings: Timings
    query_vector: Tensor
    keys: Tensor
    values: Tensor
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[_Union[ModelRef, _Mapping]] = ..., weights: _Optional[_Union[Tensor, _Mapping]] = ..., context: _Optional[_Union[Tensor, _Mapping]] = ..., tokens: _Optional[_Iterable[str]] = ..., timings: _Optional[_Union[Timings, _Mapping]] = ..., query_vector: _Optional[_Union[Tensor, _Mapping]] = ..., keys: _Optional[_Union[Tensor, _Mapping]] = ..., values: _Optional[_Union[Tensor, _Mapping]] = ...) -> None: ...

class ListModelsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ModelStatus(_message.Message):
    __slots__ = ("name", "version", "state", "reason", "loads", "evictions", "loading_s")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    LOADS_FIELD_NUMBER: _ClassVar[int]
    EVICTIONS_FIELD_NUMBER: _ClassVar[int]
    LOADING_S_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    state: ModelState
    reason: str
    loads: int
    evictions: int
    loading_s: float
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., state: _Optional[_Union[ModelState, str]] = ..., reason: _Optional[str] = ..., loads: _Optional[int] = ..., evictions: _Optional[int] = ..., loading_s: _Optional[float] = ...) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models", "versions")
    MODELS_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[ModelRef]
    versions: _containers.RepeatedCompositeFieldContainer[ModelStatus]
    def __init__(self, models: _Optional[_Iterable[_Union[ModelRef, _Mapping]]] = ..., versions: _Optional[_Iterable[_Union[ModelStatus, _Mapping]]] = ...) -> None: ...

class LoadModelRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class LoadModelResponse(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: ModelRef
    def __init__(self, model: _Optional[_Union[ModelRef, _Mapping]] = ...) -> None: ...

class UnloadModelRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class UnloadModelResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListBatchesRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    def __init__(self, model: _Optional[str] = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("model", "version", "lengths", "requests", "ended_s_ago", "predicted_s", "measured_s")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    ENDED_S_AGO_FIELD_NUMBER: _ClassVar[int]
    PREDICTED_S_FIELD_NUMBER: _ClassVar[int]
    MEASURED_S_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    lengths: _containers.RepeatedScalarFieldContainer[int]
    requests: _containers.RepeatedScalarFieldContainer[int]
    ended_s_ago: float
    predicted_s: float
    measured_s: float
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., lengths: _Optional[_Iterable[int]] = ..., requests: _Optional[_Iterable[int]] = ..., ended_s_ago: _Optional[float] = ..., predicted_s: _Optional[float] = ..., measured_s: _Optional[float] = ...) -> None: ...

class ListBatchesResponse(_message.Message):
    __slots__ = ("batches",)
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    batches: _containers.RepeatedCompositeFieldContainer[Batch]
    def __init__(self, batches: _Optional[_Iterable[_Union[Batch, _Mapping]]] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ("name", "version")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class RequestLimits(_message.Message):
    __slots__ = ("max_sequences", "max_tokens", "max_message_bytes", "max_attend_bytes", "max_text_bytes")
    MAX_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEND_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_TEXT_BYTES_FIELD_NUMBER: _ClassVar[int]
    max_sequences: int
    max_tokens: int
    max_message_bytes: int
    max_attend_bytes: int
    max_text_bytes: int
    def __init__(self, max_sequences: _Optional[int] = ..., max_tokens: _Optional[int] = ..., max_message_bytes: _Optional[int] = ..., max_attend_bytes: _Optional[int] = ..., max_text_bytes: _Optional[int] = ...) -> None: ...

class SelfCheck(_message.Message):
    __slots__ = ("sequences", "pooled_max_abs", "hidden_max_abs", "min_cosine", "mean_cosine", "pooled_max_relative", "hidden_max_relative", "logits_max_abs", "logits_max_relative")
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    POOLED_MAX_ABS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_MAX_ABS_FIELD_NUMBER: _ClassVar[int]
    MIN_COSINE_FIELD_NUMBER: _ClassVar[int]
    MEAN_COSINE_FIELD_NUMBER: _ClassVar[int]
    POOLED_MAX_RELATIVE_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_MAX_RELATIVE_FIELD_NUMBER: _ClassVar[int]
    LOGITS_MAX_ABS_FIELD_NUMBER: _ClassVar[int]
    LOGITS_MAX_RELATIVE_FIELD_NUMBER: _ClassVar[int]
    sequences: int
    pooled_max_abs: float
    hidden_max_abs: float
    min_cosine: float
    mean_cosine: float
    pooled_max_relative: float
    hidden_max_relative: float
    logits_max_abs: float
    logits_max_relative: float
    def __init__(self, sequences: _Optional[int] = ..., pooled_max_abs: _Optional[float] = ..., hidden_max_abs: _Optional[float] = ..., min_cosine: _Optional[float] = ..., mean_cosine: _Optional[float] = ..., pooled_max_relative: _Optional[float] = ..., hidden_max_relative: _Optional[float] = ..., logits_max_abs: _Optional[float] = ..., logits_max_relative: _Optional[float] = ...) -> None: ...

class GraphParity(_message.Message):
    __slots__ = ("graph", "provider", "precision", "sequences", "pooled_max_abs", "hidden_max_abs", "min_cosine", "mean_cosine", "pooled_max_relative", "hidden_max_relative", "same_nearest_neighbour", "logits_max_abs", "logits_max_relative", "same_order")
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    POOLED_MAX_ABS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_MAX_ABS_FIELD_NUMBER: _ClassVar[int]
    MIN_COSINE_FIELD_NUMBER: _ClassVar[int]
    MEAN_COSINE_FIELD_NUMBER: _ClassVar[int]
    POOLED_MAX_RELATIVE_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_MAX_RELATIVE_FIELD_NUMBER: _ClassVar[int]
    SAME_NEAREST_NEIGHBOUR_FIELD_NUMBER: _ClassVar[int]
    LOGITS_MAX_ABS_FIELD_NUMBER: _ClassVar[int]
    LOGITS_MAX_RELATIVE_FIELD_NUMBER: _ClassVar[int]
    SAME_ORDER_FIELD_NUMBER: _ClassVar[int]
    graph: str
    provider: str
    precision: Precision
    sequences: int
    pooled_max_abs: float
    hidden_max_abs: float
    min_cosine: float
    mean_cosine: float
    pooled_max_relative: float
    hidden_max_relative: float
    same_nearest_neighbour: float
    logits_max_abs: float
    logits_max_relative: float
    same_order: float
    def __init__(self, graph: _Optional[str] = ..., provider: _Optional[str] = ..., precision: _Optional[_Union[Precision, str]] = ..., sequences: _Optional[int] = ..., pooled_max_abs: _Optional[float] = ..., hidden_max_abs: _Optional[float] = ..., min_cosine: _Optional[float] = ..., mean_cosine: _Optional[float] = ..., pooled_max_relative: _Optional[float] = ..., hidden_max_relative: _Optional[float] = ..., same_nearest_neighbour: _Optional[float] = ..., logits_max_abs: _Optional[float] = ..., logits_max_relative: _Optional[float] = ..., same_order: _Optional[float] = ...) -> None: ...

class BatchCost(_message.Message):
    __slots__ = ("launch_s", "token_s", "padded_row_s", "cell_s", "variable_length", "error_ratio", "service_tokens_per_s", "remembered", "hidden_row_s")
    LAUNCH_S_FIELD_NUMBER: _ClassVar[int]
    TOKEN_S_FIELD_NUMBER: _ClassVar[int]
    PADDED_ROW_S_FIELD_NUMBER: _ClassVar[int]
    CELL_S_FIELD_NUMBER: _ClassVar[int]
    VARIABLE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    ERROR_RATIO_FIELD_NUMBER: _ClassVar[int]
    SERVICE_TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    REMEMBERED_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_ROW_S_FIELD_NUMBER: _ClassVar[int]
    launch_s: float
    token_s: float
    padded_row_s: float
    cell_s: float
    variable_length: bool
    error_ratio: float
    service_tokens_per_s: float
    remembered: bool
    hidden_row_s: float
    def __init__(self, launch_s: _Optional[float] = ..., token_s: _Optional[float] = ..., padded_row_s: _Optional[float] = ..., cell_s: _Optional[float] = ..., variable_length: bool = ..., error_ratio: _Optional[float] = ..., service_tokens_per_s: _Optional[float] = ..., remembered: bool = ..., hidden_row_s: _Optional[float] = ...) -> None: ...

class Execution(_message.Message):
    __slots__ = ("provider", "requested_provider", "fallback_reason", "precision", "graph", "token_budget", "cell_budget", "self_check", "cost", "longest_sequence_bytes", "isolation", "padding_reason", "reference_source")
    PROVIDER_FIELD_NUMBER: _ClassVar[int]
    REQUESTED_PROVIDER_FIELD_NUMBER: _ClassVar[int]
    FALLBACK_REASON_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    TOKEN_BUDGET_FIELD_NUMBER: _ClassVar[int]
    CELL_BUDGET_FIELD_NUMBER: _ClassVar[int]
    SELF_CHECK_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    LONGEST_SEQUENCE_BYTES_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    PADDING_REASON_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_SOURCE_FIELD_NUMBER: _ClassVar[int]
    provider: str
    requested_provider: str
    fallback_reason: str
    precision: Precision
    graph: str
    token_budget: int
    cell_budget: int
    self_check: SelfCheck
    cost: BatchCost
    longest_sequence_bytes: int
    isolation: Isolation
    padding_reason: str
    reference_source: ReferenceSource
    def __init__(self, provider: _Optional[str] = ..., requested_provider: _Optional[str] = ..., fallback_reason: _Optional[str] = ..., precision: _Optional[_Union[Precision, str]] = ..., graph: _Optional[str] = ..., token_budget: _Optional[int] = ..., cell_budget: _Optional[int] = ..., self_check: _Optional[_Union[SelfCheck, _Mapping]] = ..., cost: _Optional[_Union[BatchCost, _Mapping]] = ..., longest_sequence_bytes: _Optional[int] = ..., isolation: _Optional[_Union[Isolation, str]] = ..., padding_reason: _Optional[str] = ..., reference_source: _Optional[_Union[ReferenceSource, str]] = ...) -> None: ...

class Prompt(_message.Message):
    __slots__ = ("name", "text", "tokens", "max_tokens", "expanded_tokens", "expansion_id", "skiplist_ids")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EXPANDED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EXPANSION_ID_FIELD_NUMBER: _ClassVar[int]
    SKIPLIST_IDS_FIELD_NUMBER: _ClassVar[int]
    name: str
    text: str
    tokens: int
    max_tokens: int
    expanded_tokens: int
    expansion_id: int
    skiplist_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., text: _Optional[str] = ..., tokens: _Optional[int] = ..., max_tokens: _Optional[int] = ..., expanded_tokens: _Optional[int] = ..., expansion_id: _Optional[int] = ..., skiplist_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class ImagePreparation(_message.Message):
    __slots__ = ("resize_shortest_edge", "resize_height", "resize_width", "resample", "crop_height", "crop_width", "rescale_factor", "image_mean", "image_std")
    RESIZE_SHORTEST_EDGE_FIELD_NUMBER: _ClassVar[int]
    RESIZE_HEIGHT_FIELD_NUMBER: _ClassVar[int]
    RESIZE_WIDTH_FIELD_NUMBER: _ClassVar[int]
    RESAMPLE_FIELD_NUMBER: _ClassVar[int]
    CROP_HEIGHT_FIELD_NUMBER: _ClassVar[int]
    CROP_WIDTH_FIELD_NUMBER: _ClassVar[int]
    RESCALE_FACTOR_FIELD_NUMBER: _ClassVar[int]
    IMAGE_MEAN_FIELD_NUMBER: _ClassVar[int]
    IMAGE_STD_FIELD_NUMBER: _ClassVar[int]
    resize_shortest_edge: int
    resize_height: int
    resize_width: int
    resample: str
    crop_height: int
    crop_width: int
    rescale_factor: float
    image_mean: _containers.RepeatedScalarFieldContainer[float]
    image_std: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, resize_shortest_edge: _Optional[int] = ..., resize_height: _Optional[int] = ..., resize_width: _Optional[int] = ..., resample: _Optional[str] = ..., crop_height: _Optional[int] = ..., crop_width: _Optional[int] = ..., rescale_factor: _Optional[float] = ..., image_mean: _Optional[_Iterable[float]] = ..., image_std: _Optional[_Iterable[float]] = ...) -> None: ...

class ImageFormat(_message.Message):
    __slots__ = ("channels", "height", "width", "patch_size", "preparation")
    CHANNELS_FIELD_NUMBER: _ClassVar[int]
    HEIGHT_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    PATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    PREPARATION_FIELD_NUMBER: _ClassVar[int]
    channels: int
    height: int
    width: int
    patch_size: int
    preparation: ImagePreparation
    def __init__(self, channels: _Optional[int] = ..., height: _Optional[int] = ..., width: _Optional[int] = ..., patch_size: _Optional[int] = ..., preparation: _Optional[_Union[ImagePreparation, _Mapping]] = ...) -> None: ...

class SoundFormat(_message.Message):
    __slots__ = ("sampling_rate_hz", "hop", "normalized")
    SAMPLING_RATE_HZ_FIELD_NUMBER: _ClassVar[int]
    HOP_FIELD_NUMBER: _ClassVar[int]
    NORMALIZED_FIELD_NUMBER: _ClassVar[int]
    sampling_rate_hz: int
    hop: int
    normalized: bool
    def __init__(self, sampling_rate_hz: _Optional[int] = ..., hop: _Optional[int] = ..., normalized: bool = ...) -> None: ...

class TargetFormat(_message.Message):
    __slots__ = ("start_id",)
    START_ID_FIELD_NUMBER: _ClassVar[int]
    start_id: int
    def __init__(self, start_id: _Optional[int] = ...) -> None: ...

class GetModelResponse(_message.Message):
    __slots__ = ("model", "takes_tokens", "takes_features", "takes_texts", "vocabulary_size", "feature_width", "max_tokens", "max_text_tokens", "width", "layers", "heads", "pooling", "normalized", "limits", "execution", "parity", "min_tokens", "attends", "prompts", "default_prompt", "poolings", "hidden_width", "prefix_rows", "image", "tasks", "head", "takes_pairs", "token_types", "sparse", "weighs_tokens", "takes_images", "sound", "target", "without_rows")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    TAKES_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TAKES_FEATURES_FIELD_NUMBER: _ClassVar[int]
    TAKES_TEXTS_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_SIZE_FIELD_NUMBER: _ClassVar[int]
    FEATURE_WIDTH_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    NORMALIZED_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    EXECUTION_FIELD_NUMBER: _ClassVar[int]
    PARITY_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ATTENDS_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_PROMPT_FIELD_NUMBER: _ClassVar[int]
    POOLINGS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_WIDTH_FIELD_NUMBER: _ClassVar[int]
    PREFIX_ROWS_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    TAKES_PAIRS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_TYPES_FIELD_NUMBER: _ClassVar[int]
    SPARSE_FIELD_NUMBER: _ClassVar[int]
    WEIGHS_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TAKES_IMAGES_FIELD_NUMBER: _ClassVar[int]
    SOUND_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_ROWS_FIELD_NUMBER: _ClassVar[int]
    model: ModelRef
    takes_tokens: bool
    takes_features: bool
    takes_texts: bool
    vocabulary_size: int
    feature_width: int
    max_tokens: int
    max_text_tokens: int
    width: int
    layers: int
    heads: int
    pooling: Pooling
    normalized: bool
    limits: RequestLimits
    execution: Execution
    parity: _containers.RepeatedCompositeFieldContainer[GraphParity]
    min_tokens: int
    attends: bool
    prompts: _containers.RepeatedCompositeFieldContainer[Prompt]
    default_prompt: str
    poolings: _containers.RepeatedScalarFieldContainer[Pooling]
    hidden_width: int
    prefix_rows: int
    image: ImageFormat
    tasks: _containers.RepeatedScalarFieldContainer[Task]
    head: Head
    takes_pairs: bool
    token_types: int
    sparse: bool
    weighs_tokens: bool
    takes_images: bool
    sound: SoundFormat
    target: TargetFormat
    without_rows: bool
    def __init__(self, model: _Optional[_Union[ModelRef, _Mapping]] = ..., takes_tokens: bool = ..., takes_features: bool = ..., takes_texts: bool = ..., vocabulary_size: _Optional[int] = ..., feature_width: _Optional[int] = ..., max_tokens: _Optional[int] = ..., max_text_tokens: _Optional[int] = ..., width: _Optional[int] = ..., layers: _Optional[int] = ..., heads: _Optional[int] = ..., pooling: _Optional[_Union[Pooling, str]] = ..., normalized: bool = ..., limits: _Optional[_Union[RequestLimits, _Mapping]] = ..., execution: _Optional[_Union[Execution, _Mapping]] = ..., parity: _Optional[_Iterable[_Union[GraphParity, _Mapping]]] = ..., min_tokens: _Optional[int] = ..., attends: bool = ..., prompts: _Optional[_Iterable[_Union[Prompt, _Mapping]]] = ..., default_prompt: _Optional[str] = ..., poolings: _Optional[_Iterable[_Union[Pooling, str]]] = ..., hidden_width: _Optional[int] = ..., prefix_rows: _Optional[int] = ..., image: _Optional[_Union[ImageFormat, _Mapping]] = ..., tasks: _Optional[_Iterable[_Union[Task, str]]] = ..., head: _Optional[_Union[Head, _Mapping]] = ..., takes_pairs: bool = ..., token_types: _Optional[int] = ..., sparse: bool = ..., weighs_tokens: bool = ..., takes_images: bool = ..., sound: _Optional[_Union[SoundFormat, _Mapping]] = ..., target: _Optional[_Union[TargetFormat, _Mapping]] = ..., without_rows: bool = ...) -> None: ...
