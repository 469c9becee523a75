from headwaiter_proto import encoder_pb2 as _encoder_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Lowering(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LOWERING_UNSPECIFIED: _ClassVar[Lowering]
    LOWERING_PACKED_CPU: _ClassVar[Lowering]
    LOWERING_PACKED_CUDA: _ClassVar[Lowering]
    LOWERING_PORTABLE: _ClassVar[Lowering]
    LOWERING_ATTEND: _ClassVar[Lowering]
    LOWERING_PADDED: _ClassVar[Lowering]
LOWERING_UNSPECIFIED: Lowering
LOWERING_PACKED_CPU: Lowering
LOWERING_PACKED_CUDA: Lowering
LOWERING_PORTABLE: Lowering
LOWERING_ATTEND: Lowering
LOWERING_PADDED: Lowering

class Graph(_message.Message):
    __slots__ = ("file", "lowering", "precision", "weights_file", "float32_layers", "separate_norms")
    FILE_FIELD_NUMBER: _ClassVar[int]
    LOWERING_FIELD_NUMBER: _ClassVar[int]
    PRECISION_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FILE_FIELD_NUMBER: _ClassVar[int]
    FLOAT32_LAYERS_FIELD_NUMBER: _ClassVar[int]
    SEPARATE_NORMS_FIELD_NUMBER: _ClassVar[int]
    file: str
    lowering: Lowering
    precision: _encoder_pb2.Precision
    weights_file: str
    float32_layers: _containers.RepeatedScalarFieldContainer[str]
    separate_norms: bool
    def __init__(self, file: _Optional[str] = ..., lowering: _Optional[_Union[Lowering, str]] = ..., precision: _Optional[_Union[_encoder_pb2.Precision, str]] = ..., weights_file: _Optional[str] = ..., float32_layers: _Optional[_Iterable[str]] = ..., separate_norms: bool = ...) -> None: ...

class Magnitude(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: float
    def __init__(self, name: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...

class File(_message.Message):
    __slots__ = ("name", "size_bytes", "sha256")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    name: str
    size_bytes: int
    sha256: str
    def __init__(self, name: _Optional[str] = ..., size_bytes: _Optional[int] = ..., sha256: _Optional[str] = ...) -> None: ...

class PairTemplate(_message.Message):
    __slots__ = ("before", "between", "after")
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    BETWEEN_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    before: str
    between: str
    after: str
    def __init__(self, before: _Optional[str] = ..., between: _Optional[str] = ..., after: _Optional[str] = ...) -> None: ...

class HubSource(_message.Message):
    __slots__ = ("name", "revision")
    NAME_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    name: str
    revision: str
    def __init__(self, name: _Optional[str] = ..., revision: _Optional[str] = ...) -> None: ...

class Padding(_message.Message):
    __slots__ = ("isolation", "reason", "token_values", "cell_values")
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TOKEN_VALUES_FIELD_NUMBER: _ClassVar[int]
    CELL_VALUES_FIELD_NUMBER: _ClassVar[int]
    isolation: _encoder_pb2.Isolation
    reason: str
    token_values: int
    cell_values: int
    def __init__(self, isolation: _Optional[_Union[_encoder_pb2.Isolation, str]] = ..., reason: _Optional[str] = ..., token_values: _Optional[int] = ..., cell_values: _Optional[int] = ...) -> None: ...

class Manifest(_message.Message):
    __slots__ = ("schema_version", "name", "vocabulary_size", "feature_width", "max_tokens", "max_text_tokens", "width", "layers", "heads", "pooling", "normalized", "graphs", "files", "versions", "min_tokens", "attend", "prompts", "default_prompt", "pooling_skips_prompt", "fixed_length", "class_row", "head_dim", "value_dim", "largest_magnitude", "residual_norm_ratio", "hidden_width", "fixed_pooling", "prefix_rows", "image", "head", "token_types", "takes_pairs", "gated_width", "distance_products", "bias_heads", "pair_template", "first_row_layers", "sparse", "sparse_entries", "unweighted_ids", "row_width", "convolution_values", "sound", "target", "first_text_keeps_more", "reference_module", "source", "padding", "without_rows", "reference_source")
    class VersionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_SIZE_FIELD_NUMBER: _ClassVar[int]
    FEATURE_WIDTH_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    LAYERS_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    POOLING_FIELD_NUMBER: _ClassVar[int]
    NORMALIZED_FIELD_NUMBER: _ClassVar[int]
    GRAPHS_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ATTEND_FIELD_NUMBER: _ClassVar[int]
    PROMPTS_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_PROMPT_FIELD_NUMBER: _ClassVar[int]
    POOLING_SKIPS_PROMPT_FIELD_NUMBER: _ClassVar[int]
    FIXED_LENGTH_FIELD_NUMBER: _ClassVar[int]
    CLASS_ROW_FIELD_NUMBER: _ClassVar[int]
    HEAD_DIM_FIELD_NUMBER: _ClassVar[int]
    VALUE_DIM_FIELD_NUMBER: _ClassVar[int]
    LARGEST_MAGNITUDE_FIELD_NUMBER: _ClassVar[int]
    RESIDUAL_NORM_RATIO_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_WIDTH_FIELD_NUMBER: _ClassVar[int]
    FIXED_POOLING_FIELD_NUMBER: _ClassVar[int]
    PREFIX_ROWS_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    TOKEN_TYPES_FIELD_NUMBER: _ClassVar[int]
    TAKES_PAIRS_FIELD_NUMBER: _ClassVar[int]
    GATED_WIDTH_FIELD_NUMBER: _ClassVar[int]
    DISTANCE_PRODUCTS_FIELD_NUMBER: _ClassVar[int]
    BIAS_HEADS_FIELD_NUMBER: _ClassVar[int]
    PAIR_TEMPLATE_FIELD_NUMBER: _ClassVar[int]
    FIRST_ROW_LAYERS_FIELD_NUMBER: _ClassVar[int]
    SPARSE_FIELD_NUMBER: _ClassVar[int]
    SPARSE_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    UNWEIGHTED_IDS_FIELD_NUMBER: _ClassVar[int]
    ROW_WIDTH_FIELD_NUMBER: _ClassVar[int]
    CONVOLUTION_VALUES_FIELD_NUMBER: _ClassVar[int]
    SOUND_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    FIRST_TEXT_KEEPS_MORE_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_MODULE_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_ROWS_FIELD_NUMBER: _ClassVar[int]
    REFERENCE_SOURCE_FIELD_NUMBER: _ClassVar[int]
    schema_version: int
    name: str
    vocabulary_size: int
    feature_width: int
    max_tokens: int
    max_text_tokens: int
    width: int
    layers: int
    heads: int
    pooling: _encoder_pb2.Pooling
    normalized: bool
    graphs: _containers.RepeatedCompositeFieldContainer[Graph]
    files: _containers.RepeatedCompositeFieldContainer[File]
    versions: _containers.ScalarMap[str, str]
    min_tokens: int
    attend: Graph
    prompts: _containers.RepeatedCompositeFieldContainer[_encoder_pb2.Prompt]
    default_prompt: str
    pooling_skips_prompt: bool
    fixed_length: bool
    class_row: bool
    head_dim: int
    value_dim: int
    largest_magnitude: Magnitude
    residual_norm_ratio: float
    hidden_width: int
    fixed_pooling: bool
    prefix_rows: int
    image: _encoder_pb2.ImageFormat
    head: _encoder_pb2.Head
    token_types: int
    takes_pairs: bool
    gated_width: int
    distance_products: bool
    bias_heads: int
    pair_template: PairTemplate
    first_row_layers: int
    sparse: bool
    sparse_entries: int
    unweighted_ids: _containers.RepeatedScalarFieldContainer[int]
    row_width: int
    convolution_values: int
    sound: _encoder_pb2.SoundFormat
    target: _encoder_pb2.TargetFormat
    first_text_keeps_more: bool
    reference_module: str
    source: HubSource
    padding: Padding
    without_rows: bool
    reference_source: _encoder_pb2.ReferenceSource
    def __init__(self, schema_version: _Optional[int] = ..., name: _Optional[str] = ..., vocabulary_size: _Optional[int] = ..., feature_width: _Optional[int] = ..., max_tokens: _Optional[int] = ..., max_text_tokens: _Optional[int] = ..., width: _Optional[int] = ..., layers: _Optional[int] = ..., heads: _Optional[int] = ..., pooling: _Optional[_Union[_encoder_pb2.Pooling, str]] = ..., normalized: bool = ..., graphs: _Optional[_Iterable[_Union[Graph, _Mapping]]] = ..., files: _Optional[_Iterable[_Union[File, _Mapping]]] = ..., versions: _Optional[_Mapping[str, str]] = ..., min_tokens: _Optional[int] = ..., attend: _Optional[_Union[Graph, _Mapping]] = ..., prompts: _Optional[_Iterable[_Union[_encoder_pb2.Prompt, _Mapping]]] = ..., default_prompt: _Optional[str] = ..., pooling_skips_prompt: bool = ..., fixed_length: bool = ..., class_row: bool = ..., head_dim: _Optional[int] = ..., value_dim: _Optional[int] = ..., largest_magnitude: _Optional[_Union[Magnitude, _Mapping]] = ..., residual_norm_ratio: _Optional[float] = ..., hidden_width: _Optional[int] = ..., fixed_pooling: bool = ..., prefix_rows: _Optional[int] = ..., image: _Optional[_Union[_encoder_pb2.ImageFormat, _Mapping]] = ..., head: _Optional[_Union[_encoder_pb2.Head, _Mapping]] = ..., token_types: _Optional[int] = ..., takes_pairs: bool = ..., gated_width: _Optional[int] = ..., distance_products: bool = ..., bias_heads: _Optional[int] = ..., pair_template: _Optional[_Union[PairTemplate, _Mapping]] = ..., first_row_layers: _Optional[int] = ..., sparse: bool = ..., sparse_entries: _Optional[int] = ..., unweighted_ids: _Optional[_Iterable[int]] = ..., row_width: _Optional[int] = ..., convolution_values: _Optional[int] = ..., sound: _Optional[_Union[_encoder_pb2.SoundFormat, _Mapping]] = ..., target: _Optional[_Union[_encoder_pb2.TargetFormat, _Mapping]] = ..., first_text_keeps_more: bool = ..., reference_module: _Optional[str] = ..., source: _Optional[_Union[HubSource, _Mapping]] = ..., padding: _Optional[_Union[Padding, _Mapping]] = ..., without_rows: bool = ..., reference_source: _Optional[_Union[_encoder_pb2.ReferenceSource, str]] = ...) -> None: ...

class Parity(_message.Message):
    __slots__ = ("graphs", "checks", "sentences")
    GRAPHS_FIELD_NUMBER: _ClassVar[int]
    CHECKS_FIELD_NUMBER: _ClassVar[int]
    SENTENCES_FIELD_NUMBER: _ClassVar[int]
    graphs: _containers.RepeatedCompositeFieldContainer[_encoder_pb2.GraphParity]
    checks: _containers.RepeatedCompositeFieldContainer[GraphCheck]
    sentences: str
    def __init__(self, graphs: _Optional[_Iterable[_Union[_encoder_pb2.GraphParity, _Mapping]]] = ..., checks: _Optional[_Iterable[_Union[GraphCheck, _Mapping]]] = ..., sentences: _Optional[str] = ...) -> None: ...

class GraphCheck(_message.Message):
    __slots__ = ("graph", "lengths", "hidden_min_cosine")
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_MIN_COSINE_FIELD_NUMBER: _ClassVar[int]
    graph: str
    lengths: _containers.RepeatedScalarFieldContainer[int]
    hidden_min_cosine: float
    def __init__(self, graph: _Optional[str] = ..., lengths: _Optional[_Iterable[int]] = ..., hidden_min_cosine: _Optional[float] = ...) -> None: ...
