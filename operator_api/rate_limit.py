"""How often a key may ask: so many requests in a span of time, which begins with the first of them.

Not counted by ``limits`` itself: its memory starts a thread every 10 ms under load, to look at all keys.
"""

import time

from limits import RateLimitItem

from services.errors import TooManyRequestsError


class RateLimit:
    """Counts the requests of each key, in one thread."""

    def __init__(self, limit: RateLimitItem) -> None:
        self._limit = limit
        self._counts: dict[str, tuple[float, int]] = {}
        """When the span ends, and how often the key has asked in it."""
        self._next_sweep = 0.0

    def __len__(self) -> int:
        """How many keys are remembered: no more than have asked in two spans."""
        return len(self._counts)

    def count(self, key_id: str) -> None:
        """Note that a key asks, and refuse one that asks too often."""
        now = time.monotonic()
        self._sweep(now)
        ends, asked = self._counts.get(key_id, (now, 0))
        if ends <= now:
            ends, asked = now + self._limit.get_expiry(), 0
        self._counts[key_id] = (ends, asked + 1)
        if asked >= self._limit.amount:
            raise TooManyRequestsError(f"This key may ask {self._limit}.", ends - now)

    def _sweep(self, now: float) -> None:
        if now >= self._next_sweep:
            self._counts = {key_id: count for key_id, count in self._counts.items() if count[0] > now}
            self._next_sweep = now + self._limit.get_expiry()
