"""Find out whether a batch failed because of faulty sequences or because the device is dead."""

from collections import deque

from headwaiter_proto.rules.errors import Unavailable
from headwaiter_server.scheduling.answers import Answers, inference_failed
from headwaiter_server.scheduling.cost_correction import CostCorrection
from headwaiter_server.scheduling.queued_request import Batch, shape_of
from headwaiter_server.scheduling.worker import Worker


async def bisect(worker: Worker, batch: Batch, error: Exception, correction: CostCorrection, answers: Answers) -> bool:
    """Halve a failed batch and run its halves, until each faulty sequence is alone and fails alone.

    On a dead device, the requests of the batch fail with Unavailable.

    Returns:
        Whether the device works.
    """
    works = worker.alive and await worker.answers_probe()
    failed: deque[tuple[Batch, Exception]] = deque([(batch, error)])
    faulty_count = 0
    while failed:
        part, error = failed.popleft()
        # A batch rarely has two faulty sequences, so a second one may mean that the device has died meanwhile.
        if works and faulty_count and len(part) == 1:
            works = await worker.answers_probe()
        works = works and worker.alive
        if not works:
            for sequence in part:
                answers.fail(sequence.request, device_failed())
        elif len(part) == 1:
            faulty_count += 1
            answers.fail(part[0].request, inference_failed(part[0].index, error))
        else:
            middle = len(part) // 2
            for half in (part[:middle], part[middle:]):
                # A request may have been cancelled or may have failed in the meantime.
                wanted = tuple(sequence for sequence in half if not sequence.request.answer.done())
                if not wanted:
                    continue
                try:
                    result = await worker.run(wanted, correction.cost.seconds(*shape_of(wanted)))
                except Exception as half_error:  # noqa: BLE001 - a later pass of the loop handles the error
                    failed.append((wanted, half_error))
                else:
                    answers.hand_out(wanted, result)
    return works


def device_failed() -> Unavailable:
    """Return the error of all requests that wait for a dead device."""
    return Unavailable("the device failed and is being reopened: try another replica, or try again in a few seconds")
