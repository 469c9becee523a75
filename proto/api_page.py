"""Print docs/reference/grpc.md, which shows the comments of encoder.proto in Markdown.

`make proto` runs `python proto/api_page.py > docs/reference/grpc.md`.
"""

import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent
CONTRACT = "headwaiter_proto/encoder.proto"

INTRODUCTION = """\
This page lists every method, message and field of Headwaiter's gRPC API. It is for readers who call the server without
the Python client, for example from another language. With the Python client, read [client.md](client.md) instead.
Generate a client from `proto/headwaiter_proto/encoder.proto`, or by gRPC's reflection. In Go, with the plugins
`protoc-gen-go` and `protoc-gen-go-grpc`, name the package of the code, here `headwaiter` in your module
`example.com/search`:

```sh
GO=Mheadwaiter_proto/encoder.proto=example.com/search/headwaiter,module=example.com/search
protoc -I proto --go_out=. --go_opt=$GO --go-grpc_out=. --go-grpc_opt=$GO headwaiter_proto/encoder.proto
```

gRPC's clients need these settings; examples/node has the first:

- By default, clients refuse replies above 4 MiB, which 2,800 vectors of 384 numbers exceed. Node.js and Python: the
  option `grpc.max_receive_message_length` at -1; Go: `grpc.MaxCallRecvMsgSize(math.MaxInt32)`; Java:
  `maxInboundMessageSize(Integer.MAX_VALUE)`.
- By default, clients send all calls to one of several replicas. Call `dns:///NAME:50051` with `{"loadBalancingConfig":
  [{"round_robin": {}}]}` in the option `grpc.service_config` (Node.js, Python) or `grpc.WithDefaultServiceConfig` (Go),
  or with `defaultLoadBalancingPolicy("round_robin")` (Java).
- By default, clients do not send a call again. A server that stops answers new calls with UNAVAILABLE: add to the
  service config `"methodConfig": [{"name": [{}], "retryPolicy": {"maxAttempts": 4, "initialBackoff": "0.1s",
  "maxBackoff": "2s", "backoffMultiplier": 2, "retryableStatusCodes": ["UNAVAILABLE"]}}]`.
  These retries do not count [DEVICE_FAILED](#errorreason): a sequence that kills devices can then kill four.
- A server with front ends gives each connection to one of its processes, so open several channels. In Node.js, Python
  and C++, channels share a connection, unless each has `grpc.use_local_subchannel_pool` at 1.
- For a server with tokens, send the metadata `authorization: Bearer TOKEN`; with TLS, use a secure channel.

To rank documents, call Classify with pairs of the query and each document, and sort by the score.
"""

# Path of an element in the file: field numbers of descriptor.proto and indices, from the root down.
ElementPath = tuple[int, ...]
Comments = defaultdict[ElementPath, str]


def main() -> None:
    """Print the page to standard output."""
    print("\n".join(page(compile_contract())))


def compile_contract() -> FileDescriptorProto:
    """Return the descriptor that protoc makes of the .proto file, including the comments."""
    with TemporaryDirectory() as folder:
        output = Path(folder) / "contract"
        flags = ["-I", str(ROOT), "--include_source_info", f"--descriptor_set_out={output}"]
        if protoc.main(["protoc", *flags, CONTRACT]):
            sys.exit(f"protoc cannot compile {CONTRACT}: correct the errors above")
        (contract,) = FileDescriptorSet.FromString(output.read_bytes()).file
    return contract


def page(contract: FileDescriptorProto) -> Iterator[str]:
    """Yield the lines of the page."""
    comments: Comments = defaultdict(str)
    for location in contract.source_code_info.location:
        comments[tuple(location.path)] = location.leading_comments
    yield "# gRPC API"
    yield ""
    yield f"<!-- `make proto` writes this page from the comments of {CONTRACT}. Edit the comments, not this page. -->"
    yield ""
    yield INTRODUCTION
    # The comment of the file stands before the file's first statement, `syntax`.
    yield from paragraphs(comments[(FileDescriptorProto.SYNTAX_FIELD_NUMBER,)])
    for index, service in enumerate(contract.service):
        yield from service_lines(service, contract.package, (FileDescriptorProto.SERVICE_FIELD_NUMBER, index), comments)
    yield from ["", "## Messages"]
    for index, message in enumerate(contract.message_type):
        yield from message_lines(message, (FileDescriptorProto.MESSAGE_TYPE_FIELD_NUMBER, index), comments)
    yield from ["", "## Enumerations"]
    for index, enum in enumerate(contract.enum_type):
        yield from enum_lines(enum, (FileDescriptorProto.ENUM_TYPE_FIELD_NUMBER, index), comments)


def service_lines(
    service: ServiceDescriptorProto, package: str, path: ElementPath, comments: Comments
) -> Iterator[str]:
    """Yield the section of a service and its methods."""
    yield from ["", f"## The service {package}.{service.name}", ""]
    yield from paragraphs(comments[path])
    for index, method in enumerate(service.method):
        request, response = link(method.input_type), link(method.output_type)
        if method.client_streaming:
            request = f"a stream of {request}"
        if method.server_streaming:
            response = f"a stream of {response}"
        yield from ["", f"### {method.name}", "", f"{request} → {response}", ""]
        yield from paragraphs(comments[*path, ServiceDescriptorProto.METHOD_FIELD_NUMBER, index])


def message_lines(message: DescriptorProto, path: ElementPath, comments: Comments) -> Iterator[str]:
    """Yield the section of a message, with a table of its fields."""
    yield from ["", f"### {message.name}", ""]
    yield from paragraphs(comments[path])
    if not message.field:
        yield "This message has no fields."
        return
    if comments[path]:
        yield ""
    yield from ["| field | number | type | meaning |", "|---|---|---|---|"]
    for index, field in enumerate(message.field):
        comment = comments[*path, DescriptorProto.FIELD_FIELD_NUMBER, index]
        yield row(f"`{field.name}`", str(field.number), type_of(field, message), comment)


def enum_lines(enum: EnumDescriptorProto, path: ElementPath, comments: Comments) -> Iterator[str]:
    """Yield the section of an enumeration, with a table of its values."""
    yield from ["", f"### {enum.name}", ""]
    yield from paragraphs(comments[path])
    if comments[path]:
        yield ""
    yield from ["| value | number | meaning |", "|---|---|---|"]
    for index, value in enumerate(enum.value):
        comment = comments[*path, EnumDescriptorProto.VALUE_FIELD_NUMBER, index]
        yield row(f"`{value.name}`", str(value.number), comment)


def type_of(field: FieldDescriptorProto, message: DescriptorProto) -> str:
    """Return the type of a field as it is written in the .proto file."""
    for nested in message.nested_type:
        if field.type_name.endswith(f".{message.name}.{nested.name}"):  # The field is a map.
            key, value = (type_of(part, nested) for part in nested.field)
            return f"map of {key} to {value}"
    scalar = FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    plain = link(field.type_name) if field.type_name else scalar
    if field.proto3_optional:
        return f"optional {plain}"
    if field.HasField("oneof_index"):
        return f"{plain}, one of `{message.oneof_decl[field.oneof_index].name}`"
    return f"repeated {plain}" if field.label == FieldDescriptorProto.LABEL_REPEATED else plain


def link(full_name: str) -> str:
    """Return a link to the section of a type."""
    name = full_name.rpartition(".")[2]
    return f"[{name}](#{name.lower()})"


def row(*cells: str) -> str:
    """Return a row of a Markdown table."""
    return "| " + " | ".join(" ".join(cell.split()).replace("|", r"\|") for cell in cells) + " |"


def paragraphs(comment: str) -> list[str]:
    """Return the lines of a comment without leading and trailing spaces."""
    return [line.strip() for line in comment.strip().splitlines()]


if __name__ == "__main__":
    main()
