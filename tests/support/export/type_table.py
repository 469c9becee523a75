"""Export a tiny random checkpoint of each type of transformers that has a base model, and list what came of it.

`python -m tests.support.export.type_table` writes docs/reference/model-types.md. It takes about six seconds of
computing for each type. A run that was interrupted continues: the finished rows are in build/model-types.jsonl. With
types as arguments, it prints their rows, and writes nothing.

The results of a bundle are compared with those of `AutoModel` for each sequence or image alone. The examples of the
families are measured first, in eight minutes.
"""

import argparse
import inspect
import json
import logging
import multiprocessing
import re
import resource
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import asdict, dataclass
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import transformers
from transformers import CONFIG_MAPPING, MODEL_MAPPING
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

from headwaiter_export.checkpoints.library_images import has_texts
from headwaiter_export.cli import main as export
from headwaiter_proto.manifest_pb2 import Manifest
from headwaiter_proto.rules.images import patch_rows, prefix_rows
from headwaiter_server.runtime.bundle import Bundle
from headwaiter_server.runtime.graph import EncoderGraph
from headwaiter_server.runtime.isolation import batches_of
from headwaiter_server.runtime.packing import pack
from tests.support.checkpoints import randomize, save_tokenizer, write_json
from tests.support.documents import DOCS, ROOT
from tests.support.export.family_examples import EXAMPLES
from tests.support.export.tiny_types import VOCABULARY_SIZE, tiny_model
from tests.support.oracle import Array

PAGE = DOCS / "reference" / "model-types.md"
_FINISHED = ROOT / "build" / "model-types.jsonl"
BEGIN, END = "<!-- types -->\n", "<!-- /types -->\n"
BEGIN_TOTALS, END_TOTALS = "<!-- totals of types -->\n", "<!-- /totals of types -->\n"
# The results of a type, in the order of the totals, and what each means.
RESULTS = {
    "family": "packed, as a family of this export",
    "packed": "packed, with the module of transformers",
    "padded": "padded, with the module of transformers",
    "refused": "refused",
    "WRONG": "exported with other results than those of transformers",
    "not tried": "not tried, for the reason in the table",
}
_INPUTS = {"input_ids": "text", "pixel_values": "image", "input_values": "sound", "input_features": "sound"}
_ISOLATIONS = ("", "any", "one length", "one sequence")
_MOST_WEIGHTS = 70_000_000
# Largest difference of results that are right, divided by their scale.
_LARGEST_DIFFERENCE = 1e-4
_PROCESSES = 2
_MOST_CPU_S = 120
_MOST_BYTES = 12 << 30
_IMAGE = {"image_processor_type": "ViTImageProcessor", "size": {"height": 32, "width": 32}}
_TOKENIZER = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]"}
_MOST_CHARACTERS = 240


@dataclass(frozen=True)
class Row:
    """What came of a type.

    Attributes:
        kind: `model_type`.
        name: the class of the base model.
        takes: what the model takes: a text, an image, a sound, or the name of another input.
        result: one of `RESULTS`.
        difference: the largest difference to transformers, divided by the largest value; None without a bundle.
        why: why it is refused or padded, and which sequences share a batch.
    """

    kind: str
    name: str
    takes: str
    result: str
    difference: float | None = None
    why: str = ""

    @property
    def line(self) -> str:
        """The line of the table."""
        measured = "" if self.difference is None else f"{self.difference:.1e}"
        return f"| `{self.kind}` | {self.name} | {self.takes} | {self.result} | {measured} | {_cell(self.why)} |\n"


def main() -> None:
    """Examine all types, and write the pages; or print the rows of some types."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("types", nargs="*", metavar="TYPE")
    kinds = parser.parse_args().types
    if unknown := [kind for kind in kinds if kind not in MODEL_MAPPING_NAMES]:
        parser.error(f"transformers has no base model of {', '.join(unknown)}: give types such as bert")
    if kinds:
        for row in _examined(kinds):
            print(row.line, end="", flush=True)
        return
    _FINISHED.parent.mkdir(exist_ok=True)
    with _FINISHED.open("a+", encoding="utf-8") as file:
        file.seek(0)
        rows = {row.kind: row for row in (*_families(), *(Row(**json.loads(line)) for line in file))}
        for row in _examined([kind for kind in sorted(MODEL_MAPPING_NAMES) if kind not in rows]):
            rows[row.kind] = row
            file.write(json.dumps(asdict(row)) + "\n")
            file.flush()
            print(row.line, end="", flush=True)
    head = "| `model_type` | base model | takes | result | difference | why |\n|---|---|---|---|---|---|\n"
    _replace(PAGE, BEGIN, head + "".join(row.line for _, row in sorted(rows.items())), END)
    _replace(PAGE, BEGIN_TOTALS, totals([row.result for row in rows.values()]), END_TOTALS)
    _FINISHED.unlink()


def totals(results: Sequence[str]) -> str:
    """Return the table of totals."""
    lines = (f"| {results.count(each)} | {meaning} |\n" for each, meaning in RESULTS.items())
    return f"| {len(results)} | types with a base model in transformers {transformers.__version__} |\n|---|---|\n" + (
        "".join(lines)
    )


def table_rows() -> dict[str, str]:
    """Return the result of each type in the table of the page."""
    table = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    cells = (line.strip("| ").split(" | ") for line in table.splitlines()[2:])
    return {kind.strip("`"): result for kind, _, _, result, *_ in cells}


def _replace(page: Path, begin: str, table: str, end: str) -> None:
    before, _, rest = page.read_text(encoding="utf-8").partition(begin)
    _, _, after = rest.partition(end)
    page.write_text(f"{before}{begin}{table}{end}{after}", encoding="utf-8")


def _examined(kinds: Sequence[str]) -> Iterator[Row]:
    """Examine each type in a process of its own, with limits of time and memory."""
    fork = multiprocessing.get_context("fork")
    waiting, running = [*reversed(kinds)], dict[str, Any]()
    with TemporaryDirectory() as folder:
        while waiting or running:
            while waiting and len(running) < _PROCESSES:
                kind = waiting.pop()
                running[kind] = fork.Process(target=_write, args=(kind, Path(folder) / f"{kind}.json"))
                running[kind].start()
            time.sleep(0.05)
            for kind, process in list(running.items()):
                if not process.is_alive():
                    del running[kind]
                    with suppress(OSError, ValueError):
                        yield Row(**json.loads((Path(folder) / f"{kind}.json").read_text(encoding="utf-8")))
                        continue
                    ended = f"{_MOST_CPU_S} seconds of computing did not suffice"
                    if process.exitcode != -signal.SIGXCPU:
                        ended = f"the process ended with the status {process.exitcode}"
                    yield Row(kind, *_described(kind), "not tried", why=ended)


def _described(kind: str) -> tuple[str, str]:
    """Return the name of the base model of a type, and what it takes."""
    with suppress(ImportError, AttributeError, ValueError):
        found: Any = MODEL_MAPPING[CONFIG_MAPPING[kind]]
        model = found[0] if isinstance(found, tuple) else found
        takes = model.main_input_name if isinstance(model.main_input_name, str) else model.main_input_name[0]
        parameters = inspect.signature(model.forward).parameters
        takes = "input_ids" if takes not in parameters and "input_ids" in parameters else takes
        return model.__name__, "image" if has_texts(model) else _INPUTS.get(takes, takes)
    return str(MODEL_MAPPING_NAMES[kind]), ""


def _families() -> Iterator[Row]:
    """Measure the examples of the families, and return the rows of their types."""
    differences = dict[str, float]()
    for example in EXAMPLES:
        with TemporaryDirectory() as folder:
            difference = example.difference(Path(folder))
        for kind in example.model_types:
            differences[kind] = max(difference, differences.get(kind, 0))
    for kind in differences.keys() & MODEL_MAPPING_NAMES.keys():
        yield Row(kind, *_described(kind), "family", differences[kind])


def _write(kind: str, file: Path) -> None:
    """Examine a type, and write its row to a file."""
    resource.setrlimit(resource.RLIMIT_CPU, (_MOST_CPU_S, _MOST_CPU_S + 5))
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, _MOST_BYTES))
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    logging.disable()
    with TemporaryDirectory() as folder, redirect_stdout(StringIO()), redirect_stderr(StringIO()) as errors:
        row = _examine(kind, Path(folder), errors)
    file.write_text(json.dumps(asdict(row)), encoding="utf-8")


def _examine(kind: str, folder: Path, errors: StringIO) -> Row:
    described = (kind, *_described(kind))
    try:
        # To save and to load the model is part of the attempt: some models of transformers cannot.
        model = tiny_model(kind, _MOST_WEIGHTS)
        randomize(model)
        model.save_pretrained(folder)
        model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
        for part in model.modules():
            if hasattr(getattr(part, "config", None), "use_cache"):
                part.config.use_cache = False
        if described[2] == "text" and "input_ids" in inspect.signature(model.forward).parameters:
            # The sizes of the configuration may contradict each other.
            _encoder(model)(input_ids=torch.arange(5, 10)[None])
    except (Exception, SystemExit) as error:  # noqa: BLE001 - any fault of a model of transformers
        return Row(*described, "not tried", why=f"{type(error).__name__}: {error}")
    write_json(folder / "preprocessor_config.json", _IMAGE)
    write_json(folder / "tokenizer_config.json", _TOKENIZER)
    save_tokenizer(folder)
    bundle = folder / "bundle"
    graphs = ["--graphs", "packed-cpu", "padded", "--precision", "fp32"]
    try:
        status = export(["checkpoint", str(folder), "-o", str(bundle), *graphs])
    except Exception as error:  # noqa: BLE001 - an error that the command does not explain is a fault of it
        return Row(*described, "WRONG", why=f"the command fails: {type(error).__name__}: {error}")
    if status:
        return Row(*described, "refused", why=errors.getvalue().removeprefix("headwaiter-export: "))
    opened = Bundle.open(bundle)
    difference = _difference(model, opened)
    padding = opened.manifest.padding
    result = "packed" if not padding.reason else "padded"
    why = f"batches of {_ISOLATIONS[padding.isolation]}: {padding.reason}" if padding.reason else ""
    return Row(*described, result if difference <= _LARGEST_DIFFERENCE else "WRONG", difference, why)


@torch.inference_mode()
def _difference(model: Any, bundle: Bundle) -> float:
    """Return the largest difference of a bundle's results to those of transformers, divided by their scale."""
    manifest, rng = bundle.manifest, np.random.default_rng(0)
    if manifest.HasField("image"):
        sequences, expected = _images(model, manifest, rng)
    else:
        lengths = (5, 5, 1, 30, 2, min(manifest.max_tokens, 200))
        sequences = [rng.integers(5, VOCABULARY_SIZE - 20, n) for n in lengths]
        outputs = [_encoder(model)(input_ids=torch.from_numpy(each)[None]) for each in sequences]
        expected = [each[0].numpy() if manifest.without_rows else each[0][0].numpy() for each in outputs]
    graph = EncoderGraph.open(bundle.folder / manifest.graphs[0].file, "cpu", threads=1)
    batches = batches_of(sequences, [*map(len, sequences)], manifest.padding.isolation)
    results = [graph.run(pack(batch), hidden=True) for batch in batches]
    given = [each.pooled if manifest.without_rows else each.hidden for each in results]
    actual, wanted = np.concatenate([each for each in given if each is not None]), np.concatenate(expected)
    if actual.shape != wanted.shape or not np.isfinite(wanted).all():
        return np.inf
    return float(np.abs(actual - wanted).max() / np.abs(wanted).max())


def _encoder(model: Any) -> Any:
    return model.get_encoder() if model.config.is_encoder_decoder else model


def _images(model: Any, manifest: Manifest, rng: np.random.Generator) -> tuple[list[Array], list[Array]]:
    """Return two random images as rows of patches, and the rows or the vectors of transformers."""
    size, sequences, expected = manifest.image.patch_size, list[Array](), list[Array]()
    for _ in range(2):
        pixels = rng.standard_normal((manifest.image.channels, manifest.image.height, manifest.image.width), np.float32)
        sequences.append(patch_rows(pixels, size, prefix_rows(manifest), (size, size), np.float32))
        frames = getattr(model.config, "num_frames", None)
        shaped = pixels.reshape(frames, -1, *pixels.shape[1:]) if frames else pixels
        inputs = {"pixel_values": torch.from_numpy(shaped)[None]}
        if has_texts(model):
            expected.append(model.get_image_features(**inputs).pooler_output.numpy())
            continue
        rows = model(**inputs).last_hidden_state
        rows = rows.flatten(2).mT if rows.ndim == 4 else rows
        expected.append(rows.mean(1).numpy() if manifest.without_rows else rows[0].numpy())
    return sequences, expected


def _cell(text: str) -> str:
    """Return a text as a cell of a table: one line, without paths of this machine."""
    text = re.sub(r"\S*/site-packages/", "", re.sub(r"/tmp/tmp\w*/?", "", text))
    line = " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
    return line if len(line) <= _MOST_CHARACTERS else f"{line[:_MOST_CHARACTERS]} …"


if __name__ == "__main__":
    main()
