"""What the scripts of this folder share: the facts of the server, comparisons, and a table of results.

A script runs in the environment of its client, without our packages. Its argument is a file of JSON:

    url, token: the server.
    texts, small, other: texts, and their vectors of the models `small` and `other`, as gRPC gives them.
    small_unit, other_unit: the same vectors with unit length.
    other_query: the vectors of the model `other` with its prompt `query`.
    probabilities: the probabilities of each text, of the model `labels`.
    query, documents, scores: a query, documents, and their scores of the model `ranker`.
"""

import json
import sys
import traceback
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

TOLERANCE = 1e-6
facts = SimpleNamespace(**json.loads(Path(sys.argv[1]).read_text()))
_rows = []
_failed = []


def largest_difference(actual, expected):
    """Return the largest absolute difference between two nested lists of numbers of the same shape."""
    if isinstance(expected, list):
        assert len(actual) == len(expected), (len(actual), len(expected))
        return max(map(largest_difference, actual, expected), default=0.0)
    return abs(actual - expected)


def near(actual, expected):
    """Check that numbers equal those of gRPC, and return a sentence about them."""
    difference = largest_difference(actual, expected)
    assert difference <= TOLERANCE, difference
    return "the numbers of gRPC" + (f", largest difference {difference:.1e}" if difference else "")


def ranked(results):
    """Check pairs of an index and a score, best first, against the scores of gRPC."""
    order = sorted(range(len(facts.scores)), key=lambda index: -facts.scores[index])[: len(results)]
    assert [index for index, _ in results] == order, (results, order)
    return near([score for _, score in results], [facts.scores[index] for index in order])


def unit(vector):
    """Return a vector with unit length."""
    length = sum(value * value for value in vector) ** 0.5
    return [value / length for value in vector]


def raises(kind, call, *words):
    """Check that a call raises an error of a kind whose text has these words, and return the name of the error."""
    try:
        call()
    except kind as error:
        raised = error
    else:
        raise AssertionError(f"no {kind.__name__}")
    missing = [word for word in words if word not in str(raised)]
    assert not missing, f"{missing} missing in {raised}"
    status = getattr(raised, "status_code", None)
    return f"`{type(raised).__name__}`" + (f" with status {status}" if status else "")


def check(client, what):
    """Run the decorated function, which returns the result of a row of the table."""

    def run(function):
        package, _, part = client.partition(":")
        try:
            result = function()
        except Exception:  # noqa: BLE001 - a row of the table says that the check failed
            traceback.print_exc()
            _failed.append(what)
            result = "FAILED"
        _rows.append(f"| {package} {version(package)}{' ' + part if part else ''} | {what} | {result} |")
        return function

    return run


def finish():
    """Print the table, and exit with an error if a check failed."""
    print("\n".join(_rows))
    sys.exit(bool(_failed))
