"""The latest batches of a model: the lengths of their sequences, and which sequences shared a request."""

from array import array
from dataclasses import dataclass

from headwaiter_server.scheduling.batch_result import BatchResult

# Number of batches that the server remembers of each model, and lists of all models together.
MAX_BATCHES = 64


@dataclass(eq=False, slots=True)
class RecentBatch:
    """A batch that ran; holds neither values nor ids of its sequences.

    Attributes:
        lengths: number of tokens of each sequence.
        request_numbers: for each sequence, the number of its request in this process.
        end_s: when the batch ended, on the scheduler's clock.
        predicted_s: predicted run time.
        measured_s: measured run time.
    """

    lengths: "array[int]"
    request_numbers: "array[int]"
    end_s: float
    predicted_s: float
    measured_s: float


def recent_batch(result: BatchResult, predicted_s: float) -> RecentBatch:
    """Return what the server remembers of a batch."""
    # Arrays, because lists would hold an object for each number.
    lengths = array("I", [sequence.length_tokens for sequence in result.sequences])
    numbers = array("Q", [sequence.request.number for sequence in result.sequences])
    run = result.times.run
    return RecentBatch(lengths, numbers, run.end_s, predicted_s, run.seconds)
