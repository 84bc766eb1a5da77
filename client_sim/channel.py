"""The uplink that the devices of a round share on the wall clock: whose turn it is, and at what pace."""

import asyncio
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field

_CHUNKS_PER_S = 50


class Channel:
    """One upload at a time, in the scheduled order."""

    def __init__(self, client_ids: Iterable[str]) -> None:
        self._order = deque(client_ids)
        self._turns = {client_id: _Turn() for client_id in self._order}
        self._call_up()

    async def is_next(self, client_id: str) -> None:
        """Wait until nobody is left between the device that has the channel and this one."""
        await self._turns[client_id].is_next.wait()

    async def is_free(self, client_id: str) -> None:
        """Wait until all before this device have left."""
        await self._turns[client_id].is_free.wait()

    def leave(self, client_id: str) -> None:
        """A device has uploaded, or never will; before its turn, it is passed over."""
        if self._turns.pop(client_id, None) is not None:
            self._call_up()

    def _call_up(self) -> None:
        while self._order and self._order[0] not in self._turns:
            self._order.popleft()
        called = 0
        for client_id in self._order:
            if turn := self._turns.get(client_id):
                turn.is_next.set()
                if called == 0:
                    turn.is_free.set()
                called += 1
            if called == 2:
                break


@dataclass(frozen=True)
class _Turn:
    is_next: asyncio.Event = field(default_factory=asyncio.Event)
    is_free: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class Pace:
    """Hands an update to the network bit by bit, and measures how long that took."""

    duration_s: float
    """From the first byte to the last."""
    hurry_at_s: float
    """By the clock of the event loop: what is left then goes at once."""
    on_sent: Callable[[], None]
    """Called with the last byte; again, if the network fails and all has to be sent anew."""
    measured_s: float | None = None
    """None: not yet sent, or not at this pace to the end."""

    async def chunks(self, content: bytes) -> AsyncIterator[bytes]:
        """The content: its first chunk at once, its last when the duration has passed."""
        clock = asyncio.get_running_loop().time
        count = max(min(math.ceil(self.duration_s * _CHUNKS_PER_S) + 1, len(content)), 2)
        size, interval_s = len(content) / count, self.duration_s / (count - 1)
        self.measured_s, began_s = None, clock()
        for number in range(count):
            # Each is due at a moment of its own: what one comes too late is not added to the next.
            due_s = min(began_s + number * interval_s, self.hurry_at_s)
            if (left_s := due_s - clock()) > 0:
                await asyncio.sleep(left_s)
            yield content[round(number * size) : round((number + 1) * size)]
        if began_s + self.duration_s <= self.hurry_at_s:
            self.measured_s = clock() - began_s
        self.on_sent()
