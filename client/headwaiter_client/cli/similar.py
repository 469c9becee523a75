"""The subcommand `similar`: find the texts of a file that are most similar to a query text."""

import argparse
import heapq

from headwaiter_client.calls.options import RequestOptions
from headwaiter_client.calls.results import SequenceEncoding
from headwaiter_client.cli.console import ProgressBar, console
from headwaiter_client.cli.encode_texts import encode_texts, text_model
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


def add_to(commands: Commands) -> None:
    """Add the subcommand."""
    flags = add_command(commands, "similar", run, "show the texts of a file that are most similar to a query text")
    flags.add_argument("query", metavar="TEXT", help="the query text")
    add_text_flags(flags)
    flags.add_argument(
        "--query-prompt", default="", metavar="NAME", help="name of the model's prompt to put before TEXT"
    )
    flags.add_argument("--top", type=positive_int, default=10, help="number of texts to show (default: 10)")


def run(arguments: argparse.Namespace) -> int:
    """Print the cosine similarity, the line and the text of each of the most similar texts."""
    screen = console()
    texts = read_texts(arguments)
    options: RequestOptions = {**text_options(arguments), "normalize": True, "dense": True}
    query_options: RequestOptions = {**options, "prompt": arguments.query_prompt}
    with Client(**client_arguments(arguments)) as client:
        model = text_model(client, arguments.model)
        query_text = Texts("the query", "text", [arguments.query])
        (query,) = encode_texts(client, model, query_text, ProgressBar(total=1), **query_options)
        with ProgressBar(len(texts.values)) as bar:
            cosines = [_cosine(encoding, query) for encoding in encode_texts(client, model, texts, bar, **options)]
    for index in heapq.nlargest(arguments.top, range(len(cosines)), key=cosines.__getitem__):
        screen.print(f"{cosines[index]:.4f}  {texts.unit} {index + 1}  {texts.values[index]}", soft_wrap=True)
    return 0


def _cosine(one: SequenceEncoding, other: SequenceEncoding) -> float:
    return float(one.pooled @ other.pooled)  # The vectors have unit length.
