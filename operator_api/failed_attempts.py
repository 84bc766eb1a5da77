"""How often an address may try keys that are not good."""

import time

from limits import parse
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter

from services.errors import TooManyRequestsError

_LIMIT = parse("20/minute")


class FailedAttempts:
    """Counts attempts to log in or to get a token, in this process; after too many, no key is looked at."""

    def __init__(self) -> None:
        self._limiter = FixedWindowRateLimiter(MemoryStorage())

    def check(self, address: str) -> None:
        """Refuse an address that has failed too often."""
        if not self._limiter.test(_LIMIT, address):
            left_s = self._limiter.get_window_stats(_LIMIT, address).reset_time - time.time()
            raise TooManyRequestsError("Too many keys that are not good. Wait a minute.", left_s)

    def note_failure(self, address: str) -> None:
        """Count an attempt with a key that is not good."""
        self._limiter.hit(_LIMIT, address)
