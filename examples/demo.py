"""Exports a real model, serves it, encodes sentences over gRPC, and finds the nearest neighbour of each sentence.

`make demo` runs this program. The exit status is 0 if at least 90 % of the neighbours are on the same topic as their
sentence. The program prints the neighbours, the time of each stage of the request, and the share of correct neighbours.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headwaiter_client import Client, Encoding
from testbed.minilm import BUNDLE, bundle
from testbed.server_process import running_server

SENTENCES = Path(__file__).with_name("sentences.txt")
REQUIRED_SHARE = 0.9


def main() -> int:
    """Run the demo and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--provider", default="auto", help="auto, cuda or cpu")
    parser.add_argument("--precision", default="auto", help="auto, fp32, fp16 or int8")
    arguments = parser.parse_args()
    topics, sentences = read_sentences(SENTENCES)
    flags = ["--provider", arguments.provider, "--precision", arguments.precision]
    if not BUNDLE.is_dir():
        print("Exporting all-MiniLM-L6-v2: downloads 83 MB, then takes about a minute on two cores.", flush=True)
    print(f"Serving {bundle()}, and encoding {len(sentences)} sentences.\n", flush=True)
    with running_server(bundle(), flags) as server, Client(server.address) as client:
        model = client.model()
        client.encode(sentences[:1])  # Opens the connection, so that the measured call does not include it.
        encoding = client.encode(sentences)
    share = print_neighbours(topics, sentences, encoding)
    print_stages(encoding)
    print(f"\nmodel {encoding.model.name} {encoding.model.digest[:12]} on {model.execution.provider}")
    print(f"{share:.0%} of the nearest neighbours are on the same topic; {REQUIRED_SHARE:.0%} are required")
    return 0 if share >= REQUIRED_SHARE else 1


def read_sentences(path: Path) -> tuple[list[str], list[str]]:
    """Return the topics and the sentences of a file with lines of the form `label, tab, sentence`."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    labels, sentences = zip(*(line.split("\t") for line in lines), strict=True)
    return list(labels), list(sentences)


def print_neighbours(topics: list[str], sentences: list[str], encoding: Encoding) -> float:
    """Print the nearest neighbour of each sentence with its cosine; return the share of neighbours on the same topic.

    A line begins with × if the neighbour is on another topic.
    """
    cosines: NDArray[np.float32] = encoding.pooled @ encoding.pooled.T
    np.fill_diagonal(cosines, -1.0)
    nearest = cosines.argmax(axis=1)
    same = [topics[index] == topics[neighbour] for index, neighbour in enumerate(nearest)]
    for index, neighbour in enumerate(nearest):
        mark = " " if same[index] else "×"
        print(f"{mark} {cosines[index, neighbour]:.3f}  {sentences[index]:<80} {sentences[neighbour]}")
    return float(np.mean(same))


def print_stages(encoding: Encoding) -> None:
    """Print the time of each stage of the call; the stages add up to the round trips of its requests, which overlap."""
    timings = encoding.timings
    rows = {
        "tokenize": timings.tokenize_s,
        "queue": timings.queue_s,
        "assemble": timings.assemble_s,
        "compute": timings.compute_s,
        "respond": timings.respond_s,
        "network and client": timings.round_trip_s - timings.total_s,
    }
    print(f"\n{len(encoding.lengths)} sentences, {encoding.lengths.sum()} tokens, {timings.batches} batches")
    print("stage                      ms   share")
    for stage, seconds in rows.items():
        print(f"{stage:<20} {seconds * 1e3:>8.2f}  {seconds / timings.round_trip_s:>6.1%}")
    total_s = sum(rows.values())
    print(f"{'sum of round trips':<20} {timings.round_trip_s * 1e3:>8.2f}  {total_s / timings.round_trip_s:>6.1%}")


if __name__ == "__main__":
    sys.exit(main())
