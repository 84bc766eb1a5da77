"""Rate limits: requests of each caller, and failed logins of each address.

``limits`` parses them but does not count; its memory storage starts a timer thread every 10 ms that reads all
keys. With 20,000 callers that took 20 % of a core at 700 requests per second; this takes 1 % at 1,400.
"""

import time

from limits import RateLimitItem, parse

from services.errors import TooManyRequestsError


class RateLimit:
    """Fixed windows, one for each key, in this process; for use in one thread."""

    def __init__(self, limit: RateLimitItem, detail: str = "") -> None:
        self._limit = limit
        self._detail = detail or f"The rate limit is {limit}."
        self._windows: dict[str, tuple[float, int]] = {}
        """The end of the window, and the number of hits in it."""
        self._next_expiry = 0.0

    def __len__(self) -> int:
        """The number of keys in memory: at most those of two windows."""
        return len(self._windows)

    def check(self, key: str) -> None:
        """Raise if the window of this key is used up."""
        now = time.monotonic()
        ends, hits = self._windows.get(key, (now, 0))
        if hits >= self._limit.amount and ends > now:
            raise TooManyRequestsError(self._detail, ends - now)

    def hit(self, key: str) -> None:
        """Count a hit without a check."""
        now = time.monotonic()
        self._expire(now)
        ends, hits = self._windows.get(key, (now + self._limit.get_expiry(), 0))
        self._windows[key] = (ends, hits + 1) if ends > now else (now + self._limit.get_expiry(), 1)

    def count(self, key: str) -> None:
        """Count a request; raise if there were too many."""
        self.check(key)
        self.hit(key)

    def _expire(self, now: float) -> None:
        if now >= self._next_expiry:
            self._windows = {key: window for key, window in self._windows.items() if window[0] > now}
            self._next_expiry = now + self._limit.get_expiry()


def failed_login_limit() -> RateLimit:
    """Limits failed logins or token requests of an address; after too many no key is checked."""
    return RateLimit(parse("20/minute"), "Too many invalid keys. Wait a minute.")
