"""The batches that a server has run."""

from dataclasses import dataclass

from headwaiter_proto import encoder_pb2 as pb


@dataclass(frozen=True)
class Batch:
    """A batch that the server has run.

    Attributes:
        model: name of the model.
        version: version of the model.
        lengths: number of tokens of each sequence.
        requests: for each sequence, the number of its request: equal numbers in one list of batches mean the same
            request. The first request in the list has the number 0.
        ended_s_ago: seconds between the end of the batch and the server's reply.
        predicted_s: predicted run time of the batch, in seconds.
        measured_s: measured run time of the batch, in seconds.
    """

    model: str
    version: str
    lengths: tuple[int, ...]
    requests: tuple[int, ...]
    ended_s_ago: float
    predicted_s: float
    measured_s: float


def read_batches(response: pb.ListBatchesResponse) -> list[Batch]:
    """Return the batches that a message lists."""
    return [
        Batch(
            batch.model,
            batch.version,
            tuple(batch.lengths),
            tuple(batch.requests),
            batch.ended_s_ago,
            batch.predicted_s,
            batch.measured_s,
        )
        for batch in response.batches
    ]
