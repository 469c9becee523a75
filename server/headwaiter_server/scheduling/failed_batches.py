"""Find out whether a batch failed because of faulty sequences or because the device is dead."""

from headwaiter_server.scheduling.answers import Answers, inference_failed
from headwaiter_server.scheduling.cost_correction import CostCorrection
from headwaiter_server.scheduling.device_failures import DeviceFailures, device_unavailable
from headwaiter_server.scheduling.queued_request import Batch, shape_of
from headwaiter_server.scheduling.worker import Worker
from headwaiter_server.scheduling.worker_thread import NeverRan


async def bisect(
    worker: Worker,
    batch: Batch,
    error: Exception,
    correction: CostCorrection,
    answers: Answers,
    device_failures: DeviceFailures,
) -> bool:
    """Halve a failed batch and run its halves, until each faulty sequence is alone and fails alone.

    On a dead device, the requests of the batch fail with Unavailable, or with DeviceFailed if they ran when it died.

    Returns:
        Whether the device works.
    """
    works = worker.alive and await worker.answers_probe()
    faulty_count = 0
    # Parts of the batch, the next one last. A part that has failed has its error; the others have not run again yet.
    parts: list[tuple[Batch, Exception | None]] = [(batch, error)]
    while parts:
        part, failure = parts.pop()
        if failure is None and works:
            # A request may have been cancelled in the meantime, or have failed because of another of its sequences.
            part = tuple(sequence for sequence in part if not sequence.request.answer.done())
            failure = await _run_again(worker, part, correction, answers) if part else None
            if failure is None:
                continue
        # A batch rarely has two faulty sequences, so a second one may mean that the device has died meanwhile.
        if works and faulty_count and len(part) == 1:
            works = await worker.answers_probe()
        works = works and worker.alive and not worker.hung
        if failure is None or isinstance(failure, NeverRan):
            for sequence in part:
                answers.fail(sequence.request, device_unavailable())
        elif not works:
            device_failures.fail_batch(part)
        elif len(part) == 1:
            faulty_count += 1
            answers.fail(part[0].request, inference_failed(part[0].index, failure))
        else:
            middle = len(part) // 2
            parts += [(part[middle:], None), (part[:middle], None)]
    return works


async def _run_again(worker: Worker, part: Batch, correction: CostCorrection, answers: Answers) -> Exception | None:
    """Run a part of a failed batch, and hand out its results; return the error that the device raises, if any."""
    try:
        result = await worker.run(part, correction.cost.seconds(*shape_of(part)))
    except Exception as error:  # noqa: BLE001 - the caller handles any error
        return error
    answers.hand_out(part, result)
    return None
