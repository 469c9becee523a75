"""The arrays of results: their memory, their types, and what is computed from them."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from headwaiter_client import Client, FakeEncoder, InvalidInput
from headwaiter_client.calls.results import with_failures
from tests.support.client.client_runner import TEXTS, ClientRunner

LABELS = ["no", "yes"]


def arrays_of(value: object) -> Iterator[NDArray[Any]]:
    """Yield all arrays of a result."""
    match value:
        case np.ndarray():
            yield value
        case list():
            for each in value:
                yield from arrays_of(each)
        case _ if hasattr(value, "__dict__"):
            for each in vars(value).values():
                yield from arrays_of(each)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize("count", [1, 40], ids=["one request", "three requests"])
@pytest.mark.parametrize("partial", [False, True])
def test_all_arrays_are_writable(dtype: str, count: int, partial: bool, runner: ClientRunner) -> None:
    options: dict[str, Any] = {"hidden": True, "dtype": dtype, "offsets": True, "partial": partial}
    texts: list[Any] = [*TEXTS[:count], *([None] if partial else [])]
    results = [
        runner.call(FakeEncoder(max_request_sequences=16), "encode", texts, **options),
        *runner.stream(FakeEncoder(max_request_sequences=16), texts, **options),
        runner.call(FakeEncoder(labels=LABELS, max_request_sequences=16), "classify", TEXTS[:count]),
        runner.call(FakeEncoder(labels=LABELS, per_token=True, max_request_sequences=16), "classify", TEXTS[:count]),
        runner.call(FakeEncoder(), "attend", TEXTS[0], query=0),
    ]
    arrays = list(arrays_of(results))
    assert len(arrays) > 10
    assert all(array.flags.writeable for array in arrays)
    # Warnings are errors in these tests: PyTorch warns of arrays that are not writable.
    assert torch.from_numpy(results[0].pooled).shape == results[0].pooled.shape


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_the_kept_results_of_a_stream_hold_no_other_results_in_memory(dtype: str, runner: ClientRunner) -> None:
    results = runner.stream(FakeEncoder(width=64), ["a " * 100] * 50, hidden=True, dtype=dtype, offsets=True)
    # What a view keeps in memory is the array that owns its memory.
    owners = [array if array.base is None else array.base for array in arrays_of(results[0])]
    assert all(isinstance(owner, np.ndarray) for owner in owners)
    length, sizes = results[0].length, {"float32": 4, "int8": 1}
    values = (1 + length) * 64 * sizes[dtype] + length * 2 * 4
    scales = (1 + length) * 4 if dtype == "int8" else 0
    assert sum(owner.nbytes for owner in owners) == values + scales


def test_a_kept_sparse_vector_of_a_stream_holds_no_other_vector_in_memory(runner: ClientRunner) -> None:
    kept = runner.stream(FakeEncoder(width=64, sparse=True), ["fresh bread"] * 50)[0].sparse
    assert len(kept) > 0
    assert (kept if kept.base is None else kept.base).nbytes == kept.nbytes


def test_one_kept_array_of_a_list_holds_no_other_array_in_memory(runner: ClientRunner) -> None:
    encoded = runner.call(FakeEncoder(), "encode", TEXTS[:100], hidden=True)
    scored = runner.call(FakeEncoder(labels=LABELS, per_token=True), "classify", TEXTS[:100])
    for rows in (encoded.hidden[0], scored.token_scores[0]):
        assert (rows if rows.base is None else rows.base).nbytes == rows.nbytes


def test_the_similarity_of_two_encodings_is_the_cosine_of_each_pair(runner: ClientRunner) -> None:
    queries = runner.call(FakeEncoder(), "encode", ["fresh bread", "rain"], normalize=False)
    documents = runner.call(FakeEncoder(), "encode", ["the bread is fresh", "rain falls", "fresh bread"], dtype="int8")
    cosines = queries.similarity(documents)
    assert (cosines.shape, cosines.dtype) == ((2, 3), np.float32)
    expected = torch.cosine_similarity(
        torch.from_numpy(queries.pooled)[:, None], torch.from_numpy(documents.pooled)[None], dim=-1
    )
    np.testing.assert_allclose(cosines, expected, atol=1e-6)
    assert cosines[0].argmax() == 2
    np.testing.assert_allclose(queries.similarity(documents.pooled), cosines, atol=1e-6)
    np.testing.assert_allclose(queries.similarity(documents.pooled[2].tolist()), cosines[:, 2], atol=1e-6)


def test_a_failed_sequence_is_similar_to_nothing() -> None:
    client = Client(transport=FakeEncoder())
    encoding = client.encode(["bread", "bread \ud800"], partial=True)
    np.testing.assert_allclose(encoding.similarity(encoding), [[1, 0], [0, 0]], atol=1e-6)


def test_vectors_that_cannot_be_compared_have_no_similarity() -> None:
    encoding, other = (Client(transport=FakeEncoder(model=name)).encode(["bread"]) for name in ("one", "another"))
    with pytest.raises(InvalidInput) as refused:
        encoding.similarity(other)
    assert str(encoding.model) in str(refused.value)
    assert str(other.model) in str(refused.value)
    vectors: Any
    for vectors in ([[1.0, 2.0]], 1.0, "bread", ["bread"], [[1.0], [1.0, 2.0]], {"bread"}):
        with pytest.raises(InvalidInput, match="width"):
            encoding.similarity(vectors)


def test_failures_can_be_added_to_a_result_whose_vectors_were_read() -> None:
    encoding = Client(transport=FakeEncoder()).encode(["bread", "rain"], hidden=True, dtype="int8")
    assert len(encoding.pooled) == len(encoding.hidden) == 2
    failed = with_failures(encoding, 0, {1: InvalidInput("not a text")})
    assert failed.pooled.any(axis=1).tolist() == [True, False]
    assert list(map(len, failed.hidden)) == [3, 0]
