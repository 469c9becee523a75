from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Model(_message.Message):
    __slots__ = ("graph", "training_info", "functions")
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    TRAINING_INFO_FIELD_NUMBER: _ClassVar[int]
    FUNCTIONS_FIELD_NUMBER: _ClassVar[int]
    graph: Graph
    training_info: _containers.RepeatedScalarFieldContainer[bytes]
    functions: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, graph: _Optional[_Union[Graph, _Mapping]] = ..., training_info: _Optional[_Iterable[bytes]] = ..., functions: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Graph(_message.Message):
    __slots__ = ("nodes", "initializers", "inputs", "outputs", "sparse_initializers")
    NODES_FIELD_NUMBER: _ClassVar[int]
    INITIALIZERS_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    SPARSE_INITIALIZERS_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[Node]
    initializers: _containers.RepeatedCompositeFieldContainer[Tensor]
    inputs: _containers.RepeatedCompositeFieldContainer[Value]
    outputs: _containers.RepeatedCompositeFieldContainer[Value]
    sparse_initializers: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, nodes: _Optional[_Iterable[_Union[Node, _Mapping]]] = ..., initializers: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ..., inputs: _Optional[_Iterable[_Union[Value, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[Value, _Mapping]]] = ..., sparse_initializers: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Node(_message.Message):
    __slots__ = ("inputs", "operator", "attributes")
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    inputs: _containers.RepeatedScalarFieldContainer[str]
    operator: str
    attributes: _containers.RepeatedCompositeFieldContainer[Attribute]
    def __init__(self, inputs: _Optional[_Iterable[str]] = ..., operator: _Optional[str] = ..., attributes: _Optional[_Iterable[_Union[Attribute, _Mapping]]] = ...) -> None: ...

class Attribute(_message.Message):
    __slots__ = ("name", "number", "tensor", "graph", "tensors", "graphs", "sparse_tensor", "sparse_tensors")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    GRAPHS_FIELD_NUMBER: _ClassVar[int]
    SPARSE_TENSOR_FIELD_NUMBER: _ClassVar[int]
    SPARSE_TENSORS_FIELD_NUMBER: _ClassVar[int]
    name: str
    number: int
    tensor: Tensor
    graph: Graph
    tensors: _containers.RepeatedCompositeFieldContainer[Tensor]
    graphs: _containers.RepeatedCompositeFieldContainer[Graph]
    sparse_tensor: bytes
    sparse_tensors: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, name: _Optional[str] = ..., number: _Optional[int] = ..., tensor: _Optional[_Union[Tensor, _Mapping]] = ..., graph: _Optional[_Union[Graph, _Mapping]] = ..., tensors: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ..., graphs: _Optional[_Iterable[_Union[Graph, _Mapping]]] = ..., sparse_tensor: _Optional[bytes] = ..., sparse_tensors: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("dims", "name", "external_data", "data_location")
    DIMS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    EXTERNAL_DATA_FIELD_NUMBER: _ClassVar[int]
    DATA_LOCATION_FIELD_NUMBER: _ClassVar[int]
    dims: _containers.RepeatedScalarFieldContainer[int]
    name: str
    external_data: _containers.RepeatedCompositeFieldContainer[Entry]
    data_location: int
    def __init__(self, dims: _Optional[_Iterable[int]] = ..., name: _Optional[str] = ..., external_data: _Optional[_Iterable[_Union[Entry, _Mapping]]] = ..., data_location: _Optional[int] = ...) -> None: ...

class Entry(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class Value(_message.Message):
    __slots__ = ("name", "type")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    name: str
    type: Type
    def __init__(self, name: _Optional[str] = ..., type: _Optional[_Union[Type, _Mapping]] = ...) -> None: ...

class Type(_message.Message):
    __slots__ = ("tensor",)
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    tensor: TensorType
    def __init__(self, tensor: _Optional[_Union[TensorType, _Mapping]] = ...) -> None: ...

class TensorType(_message.Message):
    __slots__ = ("shape",)
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    shape: Shape
    def __init__(self, shape: _Optional[_Union[Shape, _Mapping]] = ...) -> None: ...

class Shape(_message.Message):
    __slots__ = ("dims",)
    DIMS_FIELD_NUMBER: _ClassVar[int]
    dims: _containers.RepeatedCompositeFieldContainer[Dimension]
    def __init__(self, dims: _Optional[_Iterable[_Union[Dimension, _Mapping]]] = ...) -> None: ...

class Dimension(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: int
    def __init__(self, value: _Optional[int] = ...) -> None: ...
