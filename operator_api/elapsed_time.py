"""The time of a task's own clock at the end of each of its rounds."""

from datetime import datetime

from services.domain.tasks import Clock, Task


def elapsed_at_end(
    task: Task, ended_at: datetime | None, timed_rounds: int, durations_s: float
) -> float | None:
    """Of a round, of which these are the end and, with all before it, the number and sum of known durations.

    A simulated round costs its whole deadline, or what it took where there is none. None while it goes on.
    """
    if ended_at is None:
        return None
    if task.terms.clock is Clock.WALL:
        assert task.first_round_at is not None, "it has a round"
        return (ended_at - task.first_round_at).total_seconds()
    return task.terms.round_deadline_s * timed_rounds if task.terms.has_deadline else durations_s
