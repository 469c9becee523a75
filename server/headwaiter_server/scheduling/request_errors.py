"""The errors of requests that expire, or that the model or the device fails on, and which requests are late."""

from headwaiter_proto.rules.errors import DeadlineExceeded, DeviceFailed, InferenceFailed, Unavailable

# A caller's cancellation may arrive this much before the deadline passes here, but at most this share of the time to
# the deadline. gRPC rounds a deadline of a second and more up, by at most 1 %.
_MAX_EARLY_S, _MAX_EARLY_SHARE, _MAX_ROUNDING = 0.1, 0.1, 0.01


def is_late(now_s: float, arrived_s: float, deadline_s: float) -> bool:
    """Return whether a request that is cancelled now has missed its deadline.

    The caller's clock of the deadline started earlier, and has the deadline without the rounding of its way, so the
    caller's cancellation may arrive a little before the deadline passes here.
    """
    allowed_s = deadline_s - arrived_s
    return now_s >= deadline_s - min(_MAX_EARLY_SHARE * allowed_s, _MAX_EARLY_S + _MAX_ROUNDING * allowed_s)


def deadline_passed() -> DeadlineExceeded:
    """Return the error of a request whose deadline passed, or came too near, before it ran."""
    return DeadlineExceeded(
        "the deadline passed, or came too near, while the request waited in the queue: allow more time"
    )


def inference_failed(index: int, cause: Exception) -> InferenceFailed:
    """Return the error of the sequence at an index, on which the model raised `cause`."""
    problem = "made the model fail: change this sequence, or look for the cause in the server's log"
    failure = InferenceFailed(problem, sequence=index)
    failure.__cause__ = cause
    return failure


def output_not_finite(index: int) -> InferenceFailed:
    """Return the error of the sequence at an index whose output is not finite."""
    return InferenceFailed("has an output that is not finite: change or leave out this sequence", sequence=index)


def device_failed_request() -> DeviceFailed:
    """Return the error of a request that a device ran when it died."""
    return DeviceFailed(
        "the device failed while it ran the request, and the server ends: try another replica, or try again later"
    )


def shutting_down() -> Unavailable:
    """Return the error of a request that comes after a drain has begun."""
    return Unavailable("the server is shutting down: send the request to another replica")
