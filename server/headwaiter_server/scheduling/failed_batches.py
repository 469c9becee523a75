"""Find out whether a batch failed because of faulty sequences, because of its size, or because its device died."""

from dataclasses import dataclass, field

from headwaiter_proto.rules.errors import InferenceFailed
from headwaiter_server.concurrency.worker_thread import NeverRan
from headwaiter_server.runtime.errors import DeviceLost
from headwaiter_server.scheduling.model_queue import ModelQueue
from headwaiter_server.scheduling.observer import FailureCause
from headwaiter_server.scheduling.queued_request import Batch, Sequence, shape_of
from headwaiter_server.scheduling.request_errors import device_failed_request, inference_failed
from headwaiter_server.scheduling.worker import Worker


@dataclass(eq=False, slots=True)
class Diagnosis:
    """What was found out about a failed batch.

    Attributes:
        faulty_count: number of sequences that failed alone.
        ran: the sequences that ran in a part of the batch.
        failed_parts: the failed batch, and each of its parts that failed; only those of two or more sequences.
    """

    faulty_count: int = 0
    ran: set[Sequence] = field(default_factory=set)
    failed_parts: list[Batch] = field(default_factory=list)

    @property
    def too_large(self) -> Batch:
        """The smallest part that failed although all its sequences ran in smaller parts; empty without such a part."""
        too_large = [part for part in self.failed_parts if self.ran.issuperset(part)]
        return min(too_large, key=lambda part: shape_of(part).tokens, default=())

    @property
    def cause(self) -> FailureCause:
        """Why the batch failed."""
        if self.too_large:
            return FailureCause.SIZE
        return FailureCause.SEQUENCE if self.faulty_count else FailureCause.UNKNOWN


async def bisect(queue: ModelQueue, worker: Worker, batch: Batch, error: Exception) -> Diagnosis:
    """Halve a failed batch and run its halves, until each faulty sequence is alone and fails alone.

    Raises:
        DeviceLost: the device died or hangs; requests of the batch may have no answer yet.
        NeverRan: the device was lost before it ran a part of the batch.
    """
    found = Diagnosis()
    # A stack of parts of the batch. A part that has failed has its error; the others have not run again yet.
    parts: list[tuple[Batch, Exception | None]] = [(batch, error)]
    while parts:
        part, failure = parts.pop()
        if failure is None:
            # A request may have been cancelled in the meantime, or have failed because of another of its sequences.
            part = tuple(sequence for sequence in part if not sequence.request.answer.done())
            failure = await _run_again(queue, worker, part, found) if part else None
            if failure is None:
                continue
        if len(part) > 1:
            found.failed_parts.append(part)
            middle = len(part) // 2
            parts += [(part[middle:], None), (part[:middle], None)]
        else:
            found.faulty_count += 1
            part[0].request.fail(inference_failed(part[0].index, failure))
    return found


async def _run_again(queue: ModelQueue, worker: Worker, part: Batch, found: Diagnosis) -> Exception | None:
    """Run a part of a failed batch, and hand out its results; return the error of the part, if it fails."""
    try:
        result = await worker.run(queue.sessions[worker], part, queue.learnt.cost.seconds(*shape_of(part)))
    except (DeviceLost, NeverRan):
        raise
    except Exception as error:  # noqa: BLE001 - the caller handles any error
        return error
    found.ran.update(result.sequences if result else ())
    queue.hand_out(part, result)
    return None


def fail_on_dead_device(batch: Batch) -> None:
    """Fail the requests of the sequences that have started to run.

    The caller sends a request to another replica, except if its sequence is a suspect: a suspect ran alone.
    """
    for sequence in batch:
        if sequence.is_suspect and not sequence.is_queued:
            problem = "made devices fail twice: change or leave out this sequence"
            # The whole request fails, even if it accepts a partial answer: the device of its other sequences died.
            sequence.request.fail_whole(InferenceFailed(problem, sequence=sequence.index))
        elif not sequence.is_queued:
            sequence.request.fail(device_failed_request())
