"""`encode` writes a copy of a parquet file with a column of vectors."""

import tracemalloc
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from headwaiter_client import Client, FakeEncoder
from headwaiter_client.cli.parquet_column import ParquetColumn
from tests.client.cli.conftest import EncodeJob, ReusableFake

ROWS = 7


class Corpus(EncodeJob):
    """The command `encode` on a parquet file of seven texts in three row groups."""

    def __init__(self, fake: ReusableFake, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        super().__init__(fake, folder / "corpus.parquet", capsys)
        self.out = folder / "out.parquet"
        self.bodies = [f"text {number}" for number in range(ROWS)]
        self.table = pa.table(
            {
                "id": pa.array(range(ROWS), pa.uint64()),
                "body": self.bodies,
                "tags": [["a", "b"], [], None, ["c"], [], [], ["d"]],
            },
            metadata={"license": "CC0"},
        )
        parquet.write_table(self.table, self.texts, row_group_size=3)
        self.table = parquet.read_table(self.texts)

    @property
    def arguments(self) -> tuple[object, ...]:
        return (*super().arguments, "--column", "body")

    def check(self, column: str = "vector") -> None:
        """Check that the output is the input with the vectors of its texts, and that no other file is left."""
        copy = parquet.read_table(self.out)
        assert copy.drop([column]).equals(self.table, check_metadata=True)
        vectors = copy[column]
        assert vectors.type == pa.list_(pa.float32(), 8)
        assert vectors.null_count == 0
        np.testing.assert_array_equal(np.stack(vectors.to_numpy()), self.vectors())
        assert self.files == ["out.parquet"]

    def vectors(self, **options: Any) -> Any:
        return Client(transport=FakeEncoder()).encode(self.bodies, **options).pooled


@pytest.fixture
def corpus(fake: ReusableFake, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Corpus:
    return Corpus(fake, tmp_path, capsys)


@pytest.mark.parametrize("rows_in_group", [1, 2, 3, 100])
def test_the_copy_has_all_columns_and_the_vectors(
    corpus: Corpus, rows_in_group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwaiter_client.cli.parquet_column._ROWS_IN_GROUP", rows_in_group)
    assert corpus.run() == 0
    corpus.check()
    metadata = parquet.ParquetFile(corpus.out).metadata
    assert max(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)) <= rows_in_group


def test_half_precision_vectors_stay_half_precision(corpus: Corpus) -> None:
    assert corpus.run("--dtype", "float16", "--dimensions", "3") == 0
    vectors = parquet.read_table(corpus.out)["vector"]
    assert vectors.type == pa.list_(pa.float16(), 3)
    np.testing.assert_array_equal(np.stack(vectors.to_numpy()), corpus.vectors(dtype="float16", dimensions=3))


def test_int8_vectors_have_their_scales(corpus: Corpus) -> None:
    assert corpus.run("--dtype", "int8") == 0
    rows = parquet.read_table(corpus.out)["vector"].to_pylist()
    decoded = [np.array(row["values"], np.int8) * np.float32(row["scale"]) for row in rows]
    np.testing.assert_array_equal(decoded, corpus.vectors(dtype="int8"))


def test_a_second_column_of_vectors_needs_another_name(corpus: Corpus) -> None:
    assert corpus.run() == 0
    corpus.fake.requests.clear()
    corpus.texts.write_bytes(corpus.out.read_bytes())
    corpus.table = parquet.read_table(corpus.texts)
    error = corpus.refusal("--overwrite")
    assert error.startswith(f"{corpus.texts} ")
    for fact in ("'vector'", "--vector-column"):
        assert fact in error
    assert corpus.fake.requests == []
    assert corpus.run("--overwrite", "--vector-column", "again") == 0
    corpus.check("again")


def test_parquet_is_written_only_from_parquet(job: EncodeJob) -> None:
    job.out = job.out.with_name("out.parquet")
    error = job.refusal()
    for fact in (str(job.out), str(job.texts), "--column", "--output"):
        assert fact in error
    assert job.fake.requests == []


def test_an_interrupted_run_is_resumed(corpus: Corpus) -> None:
    corpus.interrupt()
    assert corpus.files == corpus.work_files
    assert corpus.run() == 0
    assert corpus.fake.texts == ["text 4", "text 5", "text 6"]
    corpus.check()


@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt(), 130), (OSError(28, "No space left on device"), 1)])
def test_a_run_that_fails_while_it_writes_the_copy_keeps_all_rows(
    corpus: Corpus, error: BaseException, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: ParquetColumn, name: str, vectors: object, copy: BinaryIO) -> None:
        copy.write(b"PAR1")
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(ParquetColumn, "write_with_vectors", fail)
        assert corpus.run() == status
    assert "the same command" in corpus.error
    assert corpus.files == corpus.work_files
    corpus.fake.requests.clear()
    # A run that is killed here cannot remove the file.
    corpus.out.with_name("out.parquet.converted").write_bytes(b"PAR1")
    assert corpus.run() == 0
    assert corpus.fake.texts == []
    corpus.check()


def test_a_missing_file_is_named(corpus: Corpus) -> None:
    corpus.texts.unlink()
    assert corpus.refusal() == f"{corpus.texts}: No such file or directory"


def test_a_column_is_a_sequence_of_its_texts(corpus: Corpus) -> None:
    column = ParquetColumn(corpus.texts, "corpus", "body")
    assert [*column] == column[:] == corpus.bodies
    assert (column[-1], column[1:6:2]) == (corpus.bodies[-1], corpus.bodies[1:6:2])
    for index in (ROWS, -ROWS - 1):
        with pytest.raises(IndexError):
            column[index]


def test_two_row_groups_of_texts_are_in_memory(tmp_path: Path) -> None:
    groups, rows, characters = 20, 1_000, 1_000
    texts = [f"{number:0{characters}}" for number in range(groups * rows)]
    parquet.write_table(pa.table({"body": texts}), tmp_path / "corpus.parquet", row_group_size=rows)
    del texts
    column = ParquetColumn(tmp_path / "corpus.parquet", "corpus", "body")
    before_bytes, most_bytes = pa.total_allocated_bytes(), 0
    tracemalloc.start()
    for text in column:
        assert len(text) == characters
        most_bytes = max(most_bytes, pa.total_allocated_bytes() - before_bytes)
    _, python_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most_bytes + python_bytes < 5 * rows * characters
