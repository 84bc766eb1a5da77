"""The lengths of everything in a chaos test."""

from dataclasses import dataclass
from typing import TypeAlias

Span: TypeAlias = tuple[float, float]


@dataclass(frozen=True)
class Timing:
    """The lengths of everything, in seconds; within a span, another one each time."""

    lease_s: float | None
    """Of jobs and of the reconciler; none: as long as in real deployments."""
    fault_s: Span
    freeze_s: Span
    """Longer than a lease."""
    pause_s: Span
    """Between two faults."""
    skew_s: Span
    wall_round_s: float
    wall_task_s: float
    simulated_rounds: int
    """In a task by the simulated clock."""
    settle_s: float
    """After the last fault all tasks must have ended in this time."""
    overdue_s: float
    """A round must have stopped collecting so long after its deadline, and have ended so long after that."""


PRODUCTION = Timing(
    lease_s=None,
    fault_s=(0.5, 8.0),
    freeze_s=(22.0, 28.0),
    pause_s=(1.0, 10.0),
    skew_s=(20.0, 600.0),
    wall_round_s=8.0,
    wall_task_s=90.0,
    simulated_rounds=6,
    settle_s=300.0,
    overdue_s=120.0,
)
"""As in real deployments."""

SHORT = Timing(
    lease_s=3.0,
    fault_s=(0.2, 1.0),
    freeze_s=(3.5, 4.5),
    pause_s=(0.1, 0.8),
    skew_s=(20.0, 600.0),
    wall_round_s=4.0,
    wall_task_s=15.0,
    simulated_rounds=2,
    settle_s=300.0,
    overdue_s=300.0,
)
"""For a short run on a machine that may be busy; its limits do not measure speed."""
