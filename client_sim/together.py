"""Doing several things at once, and hearing of the first that fails."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


@asynccontextmanager
async def together() -> AsyncIterator[asyncio.TaskGroup]:
    """A group of tasks. If one fails the others are cancelled, and its error is raised, on its own."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except ExceptionGroup as failed:
        first = failed.exceptions[0]
        raise first from first.__cause__
