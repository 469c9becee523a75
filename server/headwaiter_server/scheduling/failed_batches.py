"""Find out whether a batch failed because of faulty sequences, because of its size or because the device is dead."""

from dataclasses import dataclass, field

from headwaiter_server.concurrency.worker_thread import NeverRan
from headwaiter_server.scheduling.errors import device_unavailable, inference_failed
from headwaiter_server.scheduling.model_queue import ModelQueue
from headwaiter_server.scheduling.observer import FailureCause
from headwaiter_server.scheduling.queued_request import Batch, Sequence, shape_of
from headwaiter_server.scheduling.worker import Worker


@dataclass(eq=False, slots=True)
class Diagnosis:
    """What was found out about a failed batch.

    Attributes:
        works: whether the device works.
        faulty_count: number of sequences that failed alone.
        ran: the sequences that ran in a part of the batch.
        failed_parts: the failed batch, and each of its parts that failed; only those of two or more sequences.
    """

    works: bool
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
        if not self.works:
            return FailureCause.DEVICE
        if self.too_large:
            return FailureCause.SIZE
        return FailureCause.SEQUENCE if self.faulty_count else FailureCause.UNKNOWN


async def bisect(queue: ModelQueue, worker: Worker, batch: Batch, error: Exception) -> Diagnosis:
    """Halve a failed batch and run its halves, until each faulty sequence is alone and fails alone.

    On a dead device, the requests of the batch fail with Unavailable, or with DeviceFailed if they ran when it died.
    """
    session = queue.sessions[worker]
    found = Diagnosis(works=worker.alive and await worker.answers_probe(session))
    # A stack of parts of the batch. A part that has failed has its error; the others have not run again yet.
    parts: list[tuple[Batch, Exception | None]] = [(batch, error)]
    while parts:
        part, failure = parts.pop()
        if failure is None and found.works:
            # A request may have been cancelled in the meantime, or have failed because of another of its sequences.
            part = tuple(sequence for sequence in part if not sequence.request.answer.done())
            failure = await _run_again(queue, worker, part, found) if part else None
            if failure is None:
                continue
        # The device may have died since the last probe, and a single sequence must not be blamed for that.
        if found.works and len(part) == 1 < len(batch):
            found.works = await worker.answers_probe(session)
        found.works = found.works and worker.alive and not worker.hung
        if failure is None or isinstance(failure, NeverRan):
            for sequence in part:
                sequence.request.fail(device_unavailable())
        elif not found.works:
            queue.device_failures.fail_batch(part)
        elif len(part) == 1:
            found.faulty_count += 1
            part[0].request.fail(inference_failed(part[0].index, failure))
        else:
            found.failed_parts.append(part)
            middle = len(part) // 2
            parts += [(part[middle:], None), (part[:middle], None)]
    queue.device_failures.end(batch)
    return found


async def _run_again(queue: ModelQueue, worker: Worker, part: Batch, found: Diagnosis) -> Exception | None:
    """Run a part of a failed batch, and hand out its results; return the error that the device raises, if any."""
    try:
        result = await worker.run(queue.sessions[worker], part, queue.correction.cost.seconds(*shape_of(part)))
    except Exception as error:  # noqa: BLE001 - the caller handles any error
        return error
    found.ran.update(result.sequences if result else ())
    queue.hand_out(part, result)
    return None
