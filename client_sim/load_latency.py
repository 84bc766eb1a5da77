"""What the calls of a load test took, and what went wrong with them.

A call is sent once: what fails is an error, though another attempt would have been answered. Latency counts
from the moment a call was due, not from when it was sent: a client that is held up, by the service or by this
machine, cannot make the figures look better by sending less (coordinated omission).
"""

import asyncio
import time
from array import array
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TypeVar

from client_sim.api_client import ApiError, AsyncApi
from client_sim.attempts import BrokenAnswerError
from client_sim.calls import Call
from services.errors import FedCSError

BUCKET_S = 10.0
_NO_ANSWER = "no answer by the end"

Answer = TypeVar("Answer")


class Operation(StrEnum):
    """What is measured."""

    REPORT = "report"
    LONG_POLL = "long poll"
    """How much later it is answered than it should be: after its time, or when the round was opened."""
    DOWNLOAD = "model download"
    UPLOAD = "upload"
    OPEN_ROUND = "open round"
    CLOSE_ROUND = "close round"
    """Of rounds that cannot end by themselves, as uploads failed."""
    AGGREGATION = "aggregation"
    """From the answer to the last upload to the event that tells of the new model."""
    EVENTS = "events"
    METRICS = "metrics"


class Tally:
    """One operation: the latencies of what was answered, the errors by kind, and how many when."""

    def __init__(self) -> None:
        self.latencies_s = array("d")
        self.errors: Counter[str] = Counter()
        self.per_bucket: Counter[int] = Counter()
        """How many were answered, by tens of seconds since the beginning."""


class Measured:
    """The service's API, with what its calls took."""

    def __init__(self, api: AsyncApi, duration_s: float) -> None:
        self._api = api
        self.begins_s = time.monotonic()
        self.ends_s = self.begins_s + duration_s
        self.tallies = {operation: Tally() for operation in Operation}
        self.lags_s = array("d")
        """How late clients woke up: where this is much, the machine was too busy to tell of the service."""

    async def send(
        self, operation: Operation, call: Call[Answer], key: str | None = None, due_s: float | None = None
    ) -> Answer | None:
        """The answer, its latency counted from when it was due (now, if not said); None after an error."""
        since_s = time.monotonic() if due_s is None else due_s
        answer = await self.attempt(operation, call, key)
        if answer is not None:
            self.answered(operation, time.monotonic() - since_s)
        return answer

    async def attempt(
        self, operation: Operation, call: Call[Answer], key: str | None = None
    ) -> Answer | None:
        """The answer, or None after an error, which is counted; the latency is for the caller to tell."""
        with self.counting_unanswered(operation):
            try:
                return await self._api.send(call, key)
            except FedCSError as error:
                self.failed(operation, kind_of(error))
                return None

    def answered(self, operation: Operation, latency_s: float) -> None:
        """Count an answer."""
        tally = self.tallies[operation]
        tally.latencies_s.append(latency_s)
        tally.per_bucket[int((time.monotonic() - self.begins_s) // BUCKET_S)] += 1

    def failed(self, operation: Operation, kind: str) -> None:
        """Count an error."""
        self.tallies[operation].errors[kind] += 1

    @contextmanager
    def counting_unanswered(self, operation: Operation) -> Iterator[None]:
        """Count as an error what is given up after the end; what is broken off before, by the user, not."""
        try:
            yield
        except asyncio.CancelledError:
            if time.monotonic() >= self.ends_s:
                self.failed(operation, _NO_ANSWER)
            raise

    async def wait_until(self, due_s: float) -> None:
        """Wait for a moment, and note how late this wakes up."""
        if (wait_s := due_s - time.monotonic()) > 0:
            await asyncio.sleep(wait_s)
            self.lags_s.append(time.monotonic() - due_s)

    @property
    def answers(self) -> int:
        """How many calls were answered."""
        return sum(len(tally.latencies_s) for tally in self.tallies.values())

    @property
    def errors(self) -> int:
        """How many were not, or not as hoped for."""
        return sum(tally.errors.total() for tally in self.tallies.values())


def kind_of(error: FedCSError) -> str:
    """What kind of error it is, in few words: there are few kinds, however many errors there are."""
    if isinstance(error, ApiError):
        return f"{error.status} {error.problem.cause}"
    failure: BaseException = error
    while failure.__cause__ is not None:  # what the system said names it best, such as ConnectionRefusedError
        failure = failure.__cause__
        if isinstance(failure, BrokenAnswerError):
            told = str(failure).partition(":")[0]
            return told if told[:3].isdecimal() else "wrong answer"
    return type(failure).__name__
