"""Read messages and end calls with errors so that grpc.aio frees the memory of each call at once.

grpc.aio keeps memory in three cases (measured with 1.85.3):

- A message that arrives after the task that reads the message was cancelled is never freed.
- An aborted call refers to its AbortError, whose traceback refers to the call. Only the garbage collector frees the
  two, with all that the frames of the traceback hold.
- The iterator of messages that a handler gets keeps the last message, and forms a cycle with the call. No handler uses
  the iterator.
"""

import asyncio
from typing import Any

import grpc
from grpc.aio import AbortError


async def read_message(context: Any) -> Any:
    """Return the next message of a call, or `grpc.aio.EOF`.

    A cancellation leaves the read running; the read ends with the call.
    """
    reading = asyncio.ensure_future(context.read())
    # If nobody waits any more, asyncio would log the error of a call that has ended.
    reading.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    await asyncio.wait({reading})
    return reading.result()


async def end_with_error(
    context: Any, code: grpc.StatusCode, message: str, metadata: tuple[tuple[str, str | bytes], ...] = ()
) -> None:
    """End a call with an error. Return from the handler afterwards: grpc.aio itself raises the AbortError there."""
    try:
        await context.abort(code, message, metadata)
    except AbortError as aborted:
        aborted.__traceback__ = aborted.__context__ = None
