"""A wait ends with a cancellation, whatever else happens at the same time."""

import asyncio

import pytest

from headwaiter_client.waiting import wait_for_async_event


def test_a_cancellation_while_the_event_is_set_is_not_lost() -> None:
    async def check() -> None:
        event = asyncio.Event()

        async def wait_and_go_on() -> None:
            await wait_for_async_event(event, 60)
            await asyncio.sleep(60)

        task = asyncio.create_task(wait_and_go_on())
        await asyncio.sleep(0)
        event.set()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(task, 5)

    asyncio.run(check())
