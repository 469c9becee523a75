"""Add a column of vectors to parquet files with Ray Data: on one machine or many, with the vectors of several servers.

Run: python examples/ray_data.py FOLDER OUT --column text [--addresses host:port,host:port] [--actors 4]

It needs `pip install '.[parquet]' 'ray[data]'`. OUT is a new folder; each machine must be able to read FOLDER, to write
OUT, and to import headwaiter_client. If a worker or a machine of Ray dies, Ray encodes the rows again that it has lost.
If a server dies, the client sends its calls to the other servers; if all are away, it waits for up to ten minutes.
"""

import argparse
from pathlib import Path

import pyarrow as pa
import ray

from headwaiter_client import Client, RetryPolicy


class Encoder:
    """Adds vectors to batches of rows; each actor of Ray has one object."""

    def __init__(self, addresses: list[str], column: str) -> None:
        # Bulk work lets the requests of other callers go first.
        self._client = Client(addresses, priority="bulk", timeout_s=600, retry=RetryPolicy(max_attempts=1000))
        self._column = column

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Return the rows with the vectors of their texts."""
        vectors = self._client.encode(rows[self._column].to_pylist(), truncation="right").pooled
        lists = pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), vectors.shape[1])
        return rows.append_column("vector", lists)


def main() -> None:
    """Read the command line, and run the job."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="parquet files")
    parser.add_argument("out", type=Path, help="new folder for the parquet files with vectors")
    parser.add_argument("--column", required=True, help="name of the column of texts")
    parser.add_argument("--addresses", default="localhost:50051", help="servers of the same model")
    parser.add_argument("--actors", type=int, default=4, help="batches that are encoded at the same time")
    arguments = parser.parse_args()
    # What a worker that dies has to encode again is a block.
    blocks = ray.data.read_parquet(str(arguments.folder.absolute())).repartition(target_num_rows_per_block=4096)
    rows = blocks.map_batches(
        Encoder,
        fn_constructor_args=(arguments.addresses.split(","), arguments.column),
        batch_format="pyarrow",
        batch_size=1024,
        compute=ray.data.ActorPoolStrategy(size=arguments.actors),
        num_cpus=0,  # An actor waits for servers most of the time.
    )
    # An existing folder is an error: a second job would add its rows to those of the first.
    rows.write_parquet(str(arguments.out.absolute()), mode=ray.data.SaveMode.ERROR)


if __name__ == "__main__":
    main()
