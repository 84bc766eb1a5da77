"""A thread pool with a bounded queue for charts and plans.

Each takes up to seconds of processor time. In the shared thread pool, forty charts at once delayed reports by
19 s: no thread was free, and forty threads competed for the interpreter.
"""

import asyncio
import contextvars
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from services.errors import ServiceBusyError

THREADS = 2
"""More threads are not faster, because of the interpreter lock; with one, a chart would wait for a plan."""
MAX_PENDING = 50
"""Requests that are being worked on or wait for it."""
_RETRY_AFTER_S = 2.0

_T = TypeVar("_T")


class ComputePool:
    """Runs what takes long for requests, a few at a time."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, "compute")
        self._pending = 0

    async def run(self, work: Callable[..., _T], *arguments: object) -> _T:
        """The result of the work, when its turn has come; refused if too many wait."""
        if self._pending >= MAX_PENDING:
            raise ServiceBusyError(
                f"{MAX_PENDING} charts and plans are being made. Ask again later.", _RETRY_AFTER_S
            )
        self._pending += 1
        try:
            context = contextvars.copy_context()
            return await asyncio.get_running_loop().run_in_executor(
                self._threads, context.run, work, *arguments
            )
        finally:
            self._pending -= 1

    def stop(self) -> None:
        """End the threads; what has not begun is not done."""
        self._threads.shutdown(wait=False, cancel_futures=True)
