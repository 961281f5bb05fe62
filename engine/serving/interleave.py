"""Several streams read as one.

Owns the fairness and the back-pressure between them: nothing is taken out of a stream before the reader asks.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Sequence
from typing import TypeVar

T = TypeVar("T")


async def interleave(streams: Sequence[AsyncIterable[T]]) -> AsyncGenerator[tuple[int, T], None]:
    """(which stream, its next item) as they come, until all have ended. What one raises ends all."""
    if len(streams) == 1:
        async for item in streams[0]:
            yield 0, item
        return
    iterators = [aiter(stream) for stream in streams]
    waiting = {asyncio.ensure_future(_next(iterator)): index for index, iterator in enumerate(iterators)}
    try:
        while waiting:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=waiting.__getitem__):
                index = waiting.pop(task)
                for item in task.result():
                    yield index, item
                    waiting[asyncio.ensure_future(_next(iterators[index]))] = index
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def _next(iterator: AsyncIterator[T]) -> tuple[T, ...]:
    """The next item, or nothing: a task cannot raise StopAsyncIteration."""
    async for item in iterator:
        return (item,)
    return ()
