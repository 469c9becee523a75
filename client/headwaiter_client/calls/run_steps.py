"""Take the steps of a generator, blocking or in an event loop: the steps of calls, and those of their transports."""

from collections.abc import Awaitable, Callable, Generator
from contextlib import closing
from typing import Any, TypeVar

from headwaiter_client.errors import HeadwaiterError

_Step = TypeVar("_Step")
_Result = TypeVar("_Result")


def run_steps(steps: Generator[_Step, Any, _Result], take: Callable[[_Step], object]) -> _Result:
    """Take each step, give the generator the outcome or the `HeadwaiterError` of the step, and return its result."""
    with closing(steps):
        try:
            step = next(steps)
            while True:
                try:
                    outcome = take(step)
                except HeadwaiterError as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(outcome)
        except StopIteration as end:
            result: _Result = end.value
            return result


async def run_steps_async(steps: Generator[_Step, Any, _Result], take: Callable[[_Step], Awaitable[object]]) -> _Result:
    """Do what `run_steps` does, and await each step."""
    with closing(steps):
        try:
            step = next(steps)
            while True:
                try:
                    outcome = await take(step)
                except HeadwaiterError as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(outcome)
        except StopIteration as end:
            result: _Result = end.value
            return result
