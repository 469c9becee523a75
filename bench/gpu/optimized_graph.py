"""Count the operators of a graph after ONNX Runtime has optimised it."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx

from headwaiter_server.runtime.graph import Provider, open_session, session_options


def optimized_operators(path: Path, provider: Provider) -> Counter[str]:
    """Return how many nodes of each operator run on a provider.

    Operators MemcpyToHost and MemcpyFromHost copy between host and device; an exported graph should have no such node.

    Raises:
        ProviderUnavailable: this machine cannot use the provider.
    """
    with TemporaryDirectory() as folder:
        file = Path(folder) / "optimized.onnx"
        options = session_options(threads=1)
        options.optimized_model_filepath = str(file)
        # With large weights inside, the graph would exceed the size limit of a protobuf message.
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights.bin")
        open_session(path, provider, options)
        graph = onnx.load(file, load_external_data=False).graph
    return Counter(_operators(graph))


def _operators(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield the operator of each node of a graph and of the bodies of its loops."""
    for node in graph.node:
        yield node.op_type
        for attribute in node.attribute:
            yield from _operators(attribute.g)
