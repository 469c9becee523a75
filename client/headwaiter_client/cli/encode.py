"""The command `encode`: the pooled vectors of a file of texts."""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

from headwaiter_client.calls.options import RequestOptions
from headwaiter_client.calls.results import SequenceEncoding, precision_name
from headwaiter_client.cli.console import console
from headwaiter_client.cli.encode_texts import describe, encode_texts
from headwaiter_client.cli.resumable_file import Partial
from headwaiter_client.cli.shared_flags import Commands, add_command, add_text_flags, connection, count, text_options
from headwaiter_client.cli.text_files import read_texts
from headwaiter_client.client import Client

_DTYPES = {"float32": "<f4", "float16": "<f2", "int8": "i1"}


def add_to(commands: Commands) -> None:
    """Adds the command."""
    summary = (
        "encode a file of texts and save the pooled vectors; the same call again goes on where one was interrupted"
    )
    flags = add_command(commands, "encode", run, summary)
    add_text_flags(flags)
    flags.add_argument(
        "-o", "--output", type=Path, required=True, metavar="OUT.npy", help="where to save the vectors, a row a text"
    )
    flags.add_argument(
        "--dtype",
        choices=_DTYPES,
        default="float32",
        help="of the vectors (default: float32); int8: rows of `values` and a `scale`",
    )
    flags.add_argument("--dimensions", type=count, help="keep so many of the first (default: all)")
    flags.add_argument(
        "--normalize",
        action=argparse.BooleanOptionalAction,
        help="scale vectors to unit length or not (default: as the model does)",
    )
    flags.add_argument(
        "--priority",
        choices=("bulk", "interactive"),
        default="bulk",
        help="bulk (default) lets the work of others pass first, interactive takes turns with it",
    )
    flags.add_argument("--restart", action="store_true", help="drop what an interrupted call has encoded")


def run(arguments: argparse.Namespace) -> int:
    """Encodes the file and prints what that took."""
    screen = console()
    texts = read_texts(arguments)
    options: RequestOptions = {
        **text_options(arguments),
        "dtype": arguments.dtype,
        "dimensions": arguments.dimensions,
        "normalize": arguments.normalize,
    }
    started_s = time.perf_counter()
    tokens = cut = 0
    with Client(**connection(arguments)) as client:
        model = describe(client)
        row = _row(arguments.dtype, arguments.dimensions or model.width)
        terms = {"model": model.model.digest, "precision": precision_name(model.model.precision), **options}
        options["priority"] = arguments.priority  # Which makes no other vectors.
        with Partial(arguments.output, terms, texts.values, row, restart=arguments.restart) as partial:
            try:
                for one in encode_texts(client, model, texts, first=partial.kept, **options):
                    partial.append(_bytes(one))
                    tokens += one.length
                    cut += one.original_tokens is not None
            except KeyboardInterrupt:
                raise KeyboardInterrupt(*_advice(partial, restart=arguments.restart)) from None
    kept = f" ({partial.kept:,} of them before)" if partial.kept else ""
    seconds = time.perf_counter() - started_s
    texts_count = len(texts.values)
    screen.print(f"{texts_count:,} sentence{'' if texts_count == 1 else 's'}{kept}, {tokens:,} tokens, {seconds:.3f} s")
    if cut:
        screen.print(f"{cut:,} {'was' if cut == 1 else 'were'} cut to {model.max_text_tokens:,} tokens")
    return 0


def _advice(partial: Partial, *, restart: bool) -> list[str]:
    """Says how to go on with what was begun."""
    command = "the same command without --restart" if restart else "the same command"
    return [f"{command} goes on where it stopped"] if partial.begun else []


def _row(dtype: str, width: int) -> np.dtype[Any]:
    """Returns the data type of a row of the file."""
    values = np.dtype((_DTYPES[dtype], (width,)))
    return np.dtype([("values", values), ("scale", "<f4")]) if dtype == "int8" else values


def _bytes(one: SequenceEncoding) -> bytes:
    if one.pooled_int8 is not None:
        return one.pooled_int8.values.tobytes() + one.pooled_int8.scales.tobytes()
    assert one.pooled is not None
    return one.pooled.tobytes()
