"""The names of the Open Inference Protocol on the wire, for the reflection service."""

from collections.abc import Iterable
from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool

from headwaiter_proto import open_inference_pb2 as oip

_WIRE_PACKAGE, _WIRE_FILE = "inference", "inference.proto"


def reflection_pool(files: Iterable[Any]) -> DescriptorPool:
    """Return a new pool with these file descriptors, and with the Open Inference Protocol under its name on the wire.

    The default pool cannot hold that name, see open_inference.proto.
    """
    pool = DescriptorPool()
    known: set[str] = set()
    for file in files:
        _add(pool, file, known)
    pool.AddSerializedFile(_renamed(oip.DESCRIPTOR).SerializeToString())
    return pool


def _add(pool: DescriptorPool, file: Any, known: set[str]) -> None:
    """Add a file after the files that it imports."""
    if file.name in known:
        return
    known.add(file.name)
    for imported in file.dependencies:
        _add(pool, imported, known)
    pool.AddSerializedFile(file.serialized_pb)


def _renamed(file: Any) -> FileDescriptorProto:
    """Return a file with the package and the file name of the wire."""
    renamed = FileDescriptorProto.FromString(file.serialized_pb)
    ours, renamed.name, renamed.package = f".{renamed.package}.", _WIRE_FILE, _WIRE_PACKAGE
    theirs = f".{_WIRE_PACKAGE}."
    for message in renamed.message_type:
        _rename_types(message, ours, theirs)
    for service in renamed.service:
        for method in service.method:
            method.input_type = method.input_type.replace(ours, theirs)
            method.output_type = method.output_type.replace(ours, theirs)
    return renamed


def _rename_types(message: DescriptorProto, ours: str, theirs: str) -> None:
    for field in message.field:
        if field.type_name:
            field.type_name = field.type_name.replace(ours, theirs)
    for nested in message.nested_type:
        _rename_types(nested, ours, theirs)
