"""Serve ONNX files of other exporters, and compare the results with those of ONNX Runtime alone.

    python -m bench.studies.onnx_files [--packed BUNDLE] FILE_OR_FOLDER…

Each file is exported with `headwaiter-export onnx` and served on one thread. The client sends some sequences together,
and then each one alone. ONNX Runtime runs the same sequences one by one, on the file as it is. A row of the table has
the largest difference of the sequences together, divided by the largest value, over all outputs that the file and the
server have in common, and whether a sequence alone gives the same bits of rows or logits. With `--packed`, the bundle
of the same checkpoint, it also has the tokens per CPU second of the server, those of a server with the bundle, and
their ratio; the two take turns.
"""

import argparse
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from tokenizers import Tokenizer

from bench.loads.traces import MEDIAN_30, in_groups, sentences
from bench.processes import cpu_s, in_turn
from bench.rounds import Rounds
from headwaiter_client import Client
from headwaiter_export.graphs.onnx_encoder import pixels
from headwaiter_proto.encoder_pb2 import Isolation, Precision
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_server.runtime.bundle import Bundle
from testbed.minilm import command_path
from testbed.server_process import RunningServer, running_server

# The server puts the short sequences into one batch, padded to 9 tokens.
_LENGTHS = (3, 40, 9, 100, 1, 77)
_FLAGS = ("--provider", "cpu", "--threads", "1")
_SEQUENCES, _TURNS = 200, 3
_COLUMNS = (
    *("file", "opset", "precision", "outputs", "difference", "same bits alone", "batches hold"),
    *("tokens/CPU s", "packed", "ratio"),
)
_ROWS = ("last_hidden_state", "token_embeddings")

Array = NDArray[Any]


class _Example(NamedTuple):
    """A sequence as the client sends it, and as inputs of a file: pairs of texts have token ids with types."""

    sent: Any
    rows: Array
    types: Array


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--packed", type=Path)
    parser.add_argument("files", type=Path, nargs="+")
    arguments = parser.parse_args()
    print(f"| {' | '.join(_COLUMNS)} |\n|{'---|' * len(_COLUMNS)}")
    for file in arguments.files:
        path = file / "model.onnx" if file.is_dir() else file
        with TemporaryDirectory() as folder:
            bundle = Path(folder, "bundle")
            export = [command_path("headwaiter-export"), "onnx", str(file), "-o", str(bundle), "--name", "file"]
            exported = subprocess.run(export, capture_output=True, text=True, check=False)
            if exported.returncode:
                print(f"| {_name(path)} | {exported.stderr.strip()} |", flush=True)
                continue
            row = _compare(path, bundle)
            rates = _rates(bundle, arguments.packed) if arguments.packed else ["", "", ""]
            print(f"| {' | '.join([_name(path), *row, *rates])} |", flush=True)


def _name(path: Path) -> str:
    return path.parent.name if path.name == "model.onnx" and path.parent.name != "onnx" else path.stem


def _compare(path: Path, bundle: Path) -> list[str]:
    """Return the cells on the results of a file."""
    manifest = Bundle.open(bundle).manifest
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    outputs = [output.name for output in session.get_outputs()]
    examples = _examples(manifest, bundle, pairs="logits" in outputs)
    with running_server(bundle, _FLAGS) as server, Client(server.address) as client:
        served = partial(_served, client, outputs)
        together = served([example.sent for example in examples])
        alone = [served([example.sent])[0] for example in examples]
    worst, same_bits = 0.0, True
    for example, mixed, single in zip(examples, together, alone, strict=True):
        expected = dict(zip(outputs, session.run(None, _feeds(session, example, manifest)), strict=True))
        for name, found in mixed.items():
            values = expected[name][0].astype(np.float32)
            worst = max(worst, float(np.abs(found - values).max() / np.abs(values).max()))
            if name != "sentence_embedding":
                same_bits &= np.array_equal(single[name], values)
    opset = next(each.version for each in onnx.load(path, load_external_data=False).opset_import if not each.domain)
    precision = Precision.Name(manifest.graphs[0].precision).removeprefix("PRECISION_").lower()
    isolation = Isolation.Name(manifest.padding.isolation).removeprefix("ISOLATION_").lower()
    names = ", ".join(together[0])
    return [str(opset), precision, names, f"{worst:.1e}", "yes" if same_bits else "no", isolation]


def _examples(manifest: Manifest, bundle: Path, *, pairs: bool) -> list[_Example]:
    """Return sequences of several lengths; images of the model's size, or pairs of texts, if the model takes them."""
    rng = np.random.default_rng(5)
    if manifest.image.channels:
        shape = (manifest.max_tokens, manifest.feature_width)
        images = [rng.standard_normal(shape, np.float32) for _ in _LENGTHS]
        for image in images:
            # The places of learned rows, such as that of the class, hold no patch.
            image[: manifest.prefix_rows or manifest.class_row] = 0
        return [_Example(image, image, np.empty(0)) for image in images]
    if pairs and manifest.token_types and (bundle / "tokenizer.json").exists():
        tokenizer = Tokenizer.from_file(str(bundle / "tokenizer.json"))
        found = []
        for first, second in in_groups(sentences()[: 2 * len(_LENGTHS)], 2):
            encoding = tokenizer.encode(first, second)
            found.append(_Example((first, second), np.array(encoding.ids), np.array(encoding.type_ids)))
        return found
    lengths = [min(length, manifest.max_tokens) for length in _LENGTHS]
    ids = [rng.integers(0, manifest.vocabulary_size, length) for length in lengths]
    return [_Example(each, each, np.zeros_like(each)) for each in ids]


def _served(client: Client, outputs: list[str], sequences: list[Any]) -> list[dict[str, Array]]:
    """Return the served outputs of each sequence under the names that they have in the file."""
    if "logits" in outputs:
        reply = client.classify(sequences, raw_scores=True)
        logits = reply.token_scores if reply.received_scores is None else reply.scores
        return [{"logits": each} for each in logits]
    features = sequences[0].ndim == 2
    encode = client.encode_features if features else client.encode_tokens
    pooled = "sentence_embedding" in outputs
    encoding = encode(sequences, hidden=True, pooled=pooled)
    rows = next(name for name in _ROWS if name in outputs)
    return [
        {rows: hidden, **({"sentence_embedding": encoding.pooled[number]} if pooled else {})}
        for number, hidden in enumerate(encoding.hidden)
    ]


def _feeds(session: ort.InferenceSession, example: _Example, manifest: Manifest) -> dict[str, Array]:
    """Return the inputs of a file for one sequence without padding."""
    inputs: dict[str, Callable[[], Array]] = {
        "input_ids": lambda: example.rows,
        "attention_mask": lambda: np.ones(len(example.rows), np.int64),
        "token_type_ids": lambda: example.types,
        "position_ids": lambda: np.arange(len(example.rows)),
        "pixel_values": lambda: pixels(example.rows, manifest.image),
    }
    return {each.name: inputs[each.name]()[None] for each in session.get_inputs()}


def _rates(bundle: Path, packed: Path) -> list[str]:
    """Return the tokens per CPU second with a file, with the packed bundle, and their ratio."""
    with running_server(bundle, _FLAGS) as ours, running_server(packed, _FLAGS) as other:
        file, whole = map(Rounds, in_turn(partial(_tokens_per_cpu_s, ours), partial(_tokens_per_cpu_s, other), _TURNS))
    return [f"{file:,.0f}", f"{whole:,.0f}", f"{file / whole:.2f}"]


def _tokens_per_cpu_s(server: RunningServer) -> float:
    with Client(server.address) as client:
        trace = MEDIAN_30.trace(_SEQUENCES, client.model().vocabulary_size)
        before_s = cpu_s(server.process.pid)
        client.encode_tokens(trace.sequences)
        return trace.tokens / (cpu_s(server.process.pid) - before_s)


if __name__ == "__main__":
    main()
