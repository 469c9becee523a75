"""Shows what ONNX Runtime makes of a graph before it runs it."""

from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx

from headwaiter_server.runtime.graph import Provider, open_session, session_options


def optimized_operators(path: Path, provider: Provider) -> Counter[str]:
    """Count the operators of a graph as it runs on a provider, by their names.

    Copies between the host and the device, which no graph of ours should need, are MemcpyToHost and MemcpyFromHost.

    Raises:
        ProviderUnavailable: this machine cannot run the provider.
    """
    with TemporaryDirectory() as folder:
        file = Path(folder) / "optimized.onnx"
        options = session_options(threads=1)
        options.optimized_model_filepath = str(file)
        # Inside the file, the weights of a large model would be more than a protobuf message may have.
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights.bin")
        open_session(path, provider, options)
        graph = onnx.load(file, load_external_data=False).graph
    return Counter(node.op_type for node in graph.node)
