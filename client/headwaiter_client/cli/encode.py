"""The subcommand `encode`: save the pooled vectors of a file of texts."""

import argparse
import time
from functools import partial
from pathlib import Path
from typing import Any, get_args

import numpy as np

from headwaiter_client.calls.options import Priority, RequestOptions
from headwaiter_client.calls.results import SequenceEncoding
from headwaiter_client.calls.tensors import Int8Array
from headwaiter_client.cli.console import ProgressBar, console
from headwaiter_client.cli.encode_texts import Patience
from headwaiter_client.cli.parquet_column import ParquetColumn
from headwaiter_client.cli.resumable_file import Convert, ResumableFile
from headwaiter_client.cli.shared_flags import (
    Commands,
    add_command,
    add_text_flags,
    client_arguments,
    positive_int,
    text_options,
)
from headwaiter_client.cli.text_files import Texts, read_texts
from headwaiter_client.client import Client

_NUMPY_TYPES = {"float32": "<f4", "float16": "<f2", "int8": "i1"}


def add_to(commands: Commands) -> None:
    """Add the subcommand."""
    summary = (
        "encode a file of texts and save the pooled vectors; the command waits for a server that is away, and the same "
        "command resumes an interrupted run"
    )
    flags = add_command(commands, "encode", run, summary)
    add_text_flags(flags)
    flags.add_argument(
        "-o",
        "--output",
        type=Path,
        required=True,
        metavar="OUT.npy",
        help="file for the vectors, one row per text; OUT.parquet is a copy of a parquet FILE with a column of vectors",
    )
    flags.add_argument(
        "--vector-column",
        default="vector",
        metavar="NAME",
        help="name of the column of vectors in OUT.parquet (default: vector)",
    )
    flags.add_argument(
        "--dtype",
        choices=_NUMPY_TYPES,
        default="float32",
        help="data type of the vectors (default: float32); int8 saves rows with the fields `values` and `scale`",
    )
    flags.add_argument(
        "--dimensions", type=positive_int, help="keep only this number of leading dimensions (default: all)"
    )
    flags.add_argument(
        "--normalize",
        action=argparse.BooleanOptionalAction,
        help="scale the vectors to unit length, or not (default: as the model does)",
    )
    flags.add_argument(
        "--priority",
        choices=sorted(get_args(Priority)),
        default="bulk",
        help="bulk (default) lets interactive requests go first; interactive shares the server equally with them",
    )
    flags.add_argument("--restart", action="store_true", help="discard the vectors of an interrupted run")
    flags.add_argument("--overwrite", action="store_true", help="replace the output if the file exists")


def run(arguments: argparse.Namespace) -> int:
    """Encode the file, and print the number of texts, the number of tokens and the seconds."""
    screen = console()
    with ResumableFile(arguments.output, overwrite=arguments.overwrite) as file:
        for line in _encode(arguments, file):
            screen.print(line)
    return 0


def _encode(arguments: argparse.Namespace, file: ResumableFile) -> list[str]:
    """Write the vectors into the file, and return the lines to print."""
    if arguments.output.exists() and Path(arguments.file).exists() and arguments.output.samefile(arguments.file):
        raise ValueError(f"{arguments.output} is also the file of texts: name another file with --output")
    texts = read_texts(arguments)
    convert = _convert(arguments, texts)
    options: RequestOptions = {
        **text_options(arguments),
        "dtype": arguments.dtype,
        "dimensions": arguments.dimensions,
        "normalize": arguments.normalize,
    }
    started_s = time.perf_counter()
    tokens = truncated = 0
    with Client(**client_arguments(arguments)) as client, ProgressBar(len(texts.values)) as bar:
        patience = Patience(bar)
        model = patience.text_model(client, arguments.model)
        row_type = _row_type(arguments.dtype, arguments.dimensions or model.width)
        # A digest identifies the model better than its name, which a resumed run may leave out. An old server sends no
        # digest of the results.
        digest = model.model.results_digest or model.model.digest
        settings = {**options, "model": digest, "precision": model.model.precision}
        # The priority does not change the vectors, so a resumed run may have another priority.
        options["priority"] = arguments.priority
        try:
            file.begin(settings, texts.values, row_type, restart=arguments.restart)
            bar.resume(file.resumed_rows)
            for encoding in patience.encode_texts(client, model, texts, **options):
                file.append(_row_bytes(encoding))
                tokens += encoding.length
                truncated += encoding.original_tokens is not None
            file.finish(convert)
        except (KeyboardInterrupt, OSError) as error:
            if file.resumable:
                error.add_note(f"run the same command{' without --restart' if arguments.restart else ''} to resume")
            raise
    resumed = f" ({file.resumed_rows:,} from the interrupted run)" if file.resumed_rows else ""
    seconds, count = time.perf_counter() - started_s, len(texts.values)
    lines = [f"{count:,} sentence{'' if count == 1 else 's'}{resumed}, {tokens:,} tokens, {seconds:.3f} s"]
    if truncated:
        lines.append(f"{truncated:,} sentence{'' if truncated == 1 else 's'} cut to {model.max_text_tokens:,} tokens")
    return lines


def _convert(arguments: argparse.Namespace, texts: Texts) -> Convert | None:
    """Return how to turn the vectors into the output, or None if the output is a .npy file.

    Raises:
        ValueError: the output is parquet and the input is not, or the input has a column of the new column's name.
    """
    if arguments.output.suffix != ".parquet":
        return None
    if not isinstance(texts.values, ParquetColumn):
        raise ValueError(
            f"{arguments.output} would be a copy of a parquet file, but {texts.source} is not parquet: read one with "
            "--column, or name a .npy file with --output"
        )
    texts.values.check_new_column(arguments.vector_column)
    return partial(texts.values.write_with_vectors, arguments.vector_column)


def _row_type(dtype: str, width: int) -> np.dtype[Any]:
    """Return the NumPy data type of one row of the file."""
    values = np.dtype((_NUMPY_TYPES[dtype], (width,)))
    return np.dtype([("values", values), ("scale", "<f4")]) if dtype == "int8" else values


def _row_bytes(encoding: SequenceEncoding) -> bytes:
    if isinstance(encoding.received_pooled, Int8Array):
        return encoding.pooled_int8.values.tobytes() + encoding.pooled_int8.scales.tobytes()
    return encoding.pooled.tobytes()
