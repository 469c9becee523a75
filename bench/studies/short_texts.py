"""The memory of a client process that streams 100,000 short texts through encode_stream.

Run it with `python -m bench.studies.short_texts ADDRESS` against a server with the null model. It prints as JSON the
number of texts, the seconds of the stream, the peak memory of this process, and the number of texts whose result is
missing, out of order or that of another text.
"""

import json
import sys
import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from bench.processes import memory_mib
from headwaiter_client import Client, SequenceEncoding
from testbed.minilm import bundle

_TEXTS = 100_000

# One row per text: index of the result, number of tokens, sum of the token ids.
Rows = NDArray[np.int64]


def main() -> None:
    """Measure, and print the figures."""
    found = np.zeros((_TEXTS, 3), np.int64)
    started_s = time.perf_counter()
    with Client(sys.argv[1]) as client:
        for index, encoding in enumerate(client.encode_stream(_texts())):
            found[index] = row(encoding)
    seconds = time.perf_counter() - started_s
    # Read the peak before `_expected` loads the tokenizer. getrusage would include memory of the parent process.
    peak_mib = memory_mib("VmHWM")
    wrong = count_wrong(found, _expected())
    print(json.dumps({"texts": _TEXTS, "seconds": seconds, "peak_mib": peak_mib, "wrong": wrong}))


def row(encoding: SequenceEncoding) -> tuple[int, int, int]:
    """Return the row of a result; the null model's vector begins with [sum of the ids, their number] at unit length."""
    total, number = map(float, encoding.pooled[:2])
    return encoding.index, encoding.length, round(total / number * encoding.length)


def count_wrong(found: Rows, expected: Rows) -> int:
    """Return the number of rows that differ from the expected ones; the row of a missing result is all zeros."""
    return int((found != expected).any(axis=1).sum())


def _texts() -> Iterator[str]:
    return (f"text {number}" for number in range(_TEXTS))


def _expected() -> Rows:
    from tokenizers import Tokenizer

    tokenize = Tokenizer.from_file(str(bundle() / "tokenizer.json"))
    tokenize.no_padding()
    ids = [encoding.ids for encoding in tokenize.encode_batch(list(_texts()))]
    return np.array([(index, len(each), sum(each)) for index, each in enumerate(ids)], np.int64)


if __name__ == "__main__":
    main()
