"""An event loop in which nobody waits: when nothing is left to do, its clock goes on to the next moment."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


class _VirtualTime(selectors.DefaultSelector):
    """Passes the time that the loop wants to wait, and looks only then."""

    now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now_s += timeout or 0.0
        return super().select(0)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """For coroutines that wait for each other and for the clock, and for no file or thread."""

    def __init__(self) -> None:
        self._virtual = _VirtualTime()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now_s


def run_in_virtual_time(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """``asyncio.run`` by a clock that starts at 0 and takes no time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(coroutine)
