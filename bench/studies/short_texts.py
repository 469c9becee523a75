"""A hundred thousand short texts through encode_stream, in a process that does nothing else: what memory it takes.

Run as `python -m bench.studies.short_texts ADDRESS` against `bench.servers.null`; it prints its figures as JSON.
"""

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from headwaiter_client import Client, SequenceEncoding
from testbed.minilm import bundle

_TEXTS = 100_000

# Of each text, where it came, its tokens and the sum of their ids.
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class ShortTexts:
    """What the stream came to.

    Attributes:
        texts: sent.
        seconds: from the first to the last result.
        peak_mib: memory of the client's process at most.
        wrong: texts whose result is missing, out of order or of another text.
    """

    texts: int
    seconds: float
    peak_mib: float
    wrong: int


def main() -> None:
    """Measure and print."""
    found = np.zeros((_TEXTS, 3), np.int64)
    started_s = time.perf_counter()
    with Client(sys.argv[1]) as client:
        for place, encoding in enumerate(client.encode_stream(_texts())):
            found[place] = row(encoding)
    seconds = time.perf_counter() - started_s
    # Before the tokenizer, which is there to check and no part of a client.
    peak_mib = _peak_mib()
    wrong = count_wrong(found, _expected())
    print(json.dumps(asdict(ShortTexts(_TEXTS, seconds, peak_mib, wrong))))


def row(encoding: SequenceEncoding) -> tuple[int, int, int]:
    """Return a result's row; the null model's vector is [sum of the ids, their number, 0, …], scaled to unit length."""
    assert encoding.pooled is not None
    total, number = map(float, encoding.pooled[:2])
    return encoding.index, encoding.length, round(total / number * encoding.length)


def count_wrong(found: Rows, expected: Rows) -> int:
    """Return how many of the expected rows are not found in their place; a missing one is all zeros."""
    return int((found != expected).any(axis=1).sum())


def _texts() -> Iterator[str]:
    return (f"text {number}" for number in range(_TEXTS))


def _expected() -> Rows:
    from tokenizers import Tokenizer

    tokenize = Tokenizer.from_file(str(bundle() / "tokenizer.json"))
    tokenize.no_padding()
    ids = [encoding.ids for encoding in tokenize.encode_batch(list(_texts()))]
    return np.array([(index, len(each), sum(each)) for index, each in enumerate(ids)], np.int64)


def _peak_mib() -> float:
    # Of this program alone: getrusage counts what the process that started it had taken by then.
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) / 1024


if __name__ == "__main__":
    main()
