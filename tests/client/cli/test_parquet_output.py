"""`encode` writes a copy of a parquet file with a column of vectors."""

import io
import sys
import tracemalloc
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from headwaiter_client import Client, FakeEncoder
from headwaiter_client.cli import main
from headwaiter_client.cli.parquet_column import ParquetColumn
from tests.client.cli.conftest import ReusableFake

ROWS = 7


class Corpus:
    """A parquet file of seven texts in three row groups, and the command that adds their vectors."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.file, self.out, self._capsys = folder / "corpus.parquet", folder / "out.parquet", capsys
        self.texts = [f"text {number}" for number in range(ROWS)]
        self.table = pa.table(
            {
                "id": pa.array(range(ROWS), pa.uint64()),
                "body": self.texts,
                "tags": [["a", "b"], [], None, ["c"], [], [], ["d"]],
            },
            metadata={"license": "CC0"},
        )
        parquet.write_table(self.table, self.file, row_group_size=3)
        self.table = parquet.read_table(self.file)
        self.error = ""

    @property
    def files(self) -> list[str]:
        return sorted(path.name for path in self.out.parent.glob("out*"))

    def encode(self, *flags: str) -> int:
        status = main(["encode", str(self.file), "--column", "body", "-o", str(self.out), *flags])
        self.error = self._capsys.readouterr().err
        return status

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
        return Client(transport=FakeEncoder()).encode(self.texts, **options).pooled


@pytest.fixture
def corpus(fake: ReusableFake, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Corpus:
    return Corpus(tmp_path, capsys)


@pytest.mark.parametrize("rows_in_group", [1, 2, 3, 100])
def test_the_copy_has_all_columns_and_the_vectors(
    corpus: Corpus, rows_in_group: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwaiter_client.cli.parquet_column._ROWS_IN_GROUP", rows_in_group)
    assert corpus.encode() == 0
    corpus.check()
    metadata = parquet.ParquetFile(corpus.out).metadata
    assert max(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)) <= rows_in_group


def test_parquet_from_standard_input_is_copied(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(corpus.file.read_bytes())))
    assert main(["encode", "-", "--column", "body", "-o", str(corpus.out)]) == 0
    corpus.check()


def test_half_precision_vectors_stay_half_precision(corpus: Corpus) -> None:
    assert corpus.encode("--dtype", "float16", "--dimensions", "3") == 0
    vectors = parquet.read_table(corpus.out)["vector"]
    assert vectors.type == pa.list_(pa.float16(), 3)
    np.testing.assert_array_equal(np.stack(vectors.to_numpy()), corpus.vectors(dtype="float16", dimensions=3))


def test_int8_vectors_have_their_scales(corpus: Corpus) -> None:
    assert corpus.encode("--dtype", "int8") == 0
    rows = parquet.read_table(corpus.out)["vector"].to_pylist()
    decoded = [np.array(row["values"], np.int8) * np.float32(row["scale"]) for row in rows]
    np.testing.assert_array_equal(decoded, corpus.vectors(dtype="int8"))


def test_a_second_column_of_vectors_needs_another_name(corpus: Corpus, fake: ReusableFake) -> None:
    assert corpus.encode() == 0
    fake.requests.clear()
    corpus.file.write_bytes(corpus.out.read_bytes())
    corpus.table = parquet.read_table(corpus.file)
    assert corpus.encode("--overwrite") == 1
    assert corpus.error.startswith(f"headwaiter-client: {corpus.file} ")
    for fact in ("'vector'", "--vector-column"):
        assert fact in corpus.error
    assert fake.requests == []
    assert corpus.encode("--overwrite", "--vector-column", "again") == 0
    corpus.check("again")


def test_parquet_is_written_only_from_parquet(
    fake: ReusableFake, six_texts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = six_texts.with_name("out.parquet")
    assert main(["encode", str(six_texts), "-o", str(out)]) == 1
    error = capsys.readouterr().err
    for fact in (str(out), str(six_texts), "--column", "--output"):
        assert fact in error
    assert fake.requests == []


def test_an_interrupted_run_is_resumed(corpus: Corpus, fake: ReusableFake) -> None:
    fake.errors_by_text["text 4"] = KeyboardInterrupt()
    assert corpus.encode() == 130
    assert corpus.files == ["out.parquet.journal", "out.parquet.partial"]
    fake.errors_by_text.clear()
    fake.requests.clear()
    assert corpus.encode() == 0
    assert fake.texts == ["text 4", "text 5", "text 6"]
    corpus.check()


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_a_run_that_fails_while_it_writes_the_copy_keeps_all_rows(
    corpus: Corpus, fake: ReusableFake, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: ParquetColumn, name: str, vectors: object, copy: BinaryIO) -> None:
        copy.write(b"PAR1")
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(ParquetColumn, "write_with_vectors", fail)
        assert corpus.encode() == (130 if isinstance(error, KeyboardInterrupt) else 1)
    assert "the same command" in corpus.error
    assert corpus.files == ["out.parquet.journal", "out.parquet.partial"]
    fake.requests.clear()
    # A run that is killed here cannot remove the file.
    corpus.out.with_name("out.parquet.converted").write_bytes(b"PAR1")
    assert corpus.encode() == 0
    assert fake.texts == []
    corpus.check()


def test_a_file_that_appears_while_the_copy_is_written_stays(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    write = ParquetColumn.write_with_vectors

    def write_beside_another(*arguments: Any) -> None:
        write(*arguments)
        corpus.out.write_text("another program's")

    monkeypatch.setattr(ParquetColumn, "write_with_vectors", write_beside_another)
    assert corpus.encode() == 1
    assert corpus.out.read_text() == "another program's"
    assert corpus.files == ["out.parquet", "out.parquet.journal", "out.parquet.partial"]


def test_a_missing_file_is_named(corpus: Corpus) -> None:
    corpus.file.unlink()
    assert corpus.encode() == 1
    assert corpus.error == f"headwaiter-client: {corpus.file}: No such file or directory\n"


def test_a_column_is_a_sequence_of_its_texts(corpus: Corpus) -> None:
    column = ParquetColumn(corpus.file, "corpus", "body")
    assert [*column] == column[:] == corpus.texts
    assert (column[-1], column[1:6:2]) == (corpus.texts[-1], corpus.texts[1:6:2])
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
