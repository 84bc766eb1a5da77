"""The interface of selection policies, and the candidates that they choose from."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from services.domain.nanoseconds import Nanoseconds
from services.domain.resources import EstimatedTimes, Positions, ResourceReports
from services.domain.schedule import build_schedule

Counts: TypeAlias = npt.NDArray[np.int64]
"""One number per candidate."""


@dataclass(frozen=True)
class ClientHistory:
    """Counts from earlier rounds of the task: one column per count, one row per candidate."""

    selected: Counts
    """Rounds in which it was selected."""
    received: Counts
    """Rounds in which its update was received in time."""
    missed: Counts
    """Rounds in which its update was late, rejected or missing."""

    def of(self, positions: Positions) -> "ClientHistory":
        """The history of some of the candidates, in the order asked for."""
        return ClientHistory(self.selected[positions], self.received[positions], self.missed[positions])


@dataclass(frozen=True)
class Candidates:
    """The candidates of a policy: one row per candidate."""

    times: EstimatedTimes
    reports: ResourceReports
    history: ClientHistory | None = None
    """None: unknown, or the policy does not use it."""
    class_counts: npt.NDArray[np.int64] | None = None
    """Samples by class, one column per class; None: not reported."""

    def __len__(self) -> int:
        return len(self.times)

    def of(self, positions: Positions) -> "Candidates":
        """Some of the candidates, in the order asked for."""
        return Candidates(
            self.times.of(positions),
            self.reports.of(positions),
            None if self.history is None else self.history.of(positions),
            None if self.class_counts is None else self.class_counts[positions],
        )


@dataclass(frozen=True)
class SelectionPolicy(ABC):
    """Chooses the clients of a round. Its parameters are the fields of its dataclass."""

    summary: ClassVar[str]
    """One sentence for people."""
    honours_deadline: ClassVar[bool] = True
    """Whether its rounds end before their deadline; otherwise a round waits for all selected clients."""
    uses_cost: ClassVar[bool] = False
    """Whether it chooses by the time that a client adds, so that the cost explains its choice."""
    uses_history: ClassVar[bool] = False
    """Whether it needs ``Candidates.history``."""

    selects_prefixes: ClassVar[bool] = False
    """Whether with less time it selects the first of those whom it selects with more."""

    @abstractmethod
    def select(self, candidates: Candidates, available_ns: int, rng: np.random.Generator) -> Positions:
        """Choose clients; returns their positions in upload order.

        If the policy honours the deadline, distribution, updates and uploads of the chosen clients must
        take less than ``available_ns`` in total.
        """

    def by_available(
        self,
        candidates: Candidates,
        available_ns: Nanoseconds,
        rng: Callable[[], np.random.Generator],
    ) -> tuple[Nanoseconds, Nanoseconds]:
        """How many clients it selects with each of these times, and how long their schedules take.

        ``rng`` makes the same random numbers for each.
        """
        schedules = [
            build_schedule(self.select(candidates, time_ns, rng()), candidates.times)
            for time_ns in available_ns.tolist()
        ]
        return (
            np.array([len(schedule) for schedule in schedules], dtype=np.int64),
            np.array(
                [schedule.distribution_ns + schedule.elapsed_ns for schedule in schedules], dtype=np.int64
            ),
        )
