"""A task as lists of tasks and its own page show it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from services.domain.rounds import Round
from services.domain.tasks import Task, TaskState
from services.storage.database import Store

WIDTH, HEIGHT = 120, 28
_MARGIN = 2


def polyline(shares: Sequence[float]) -> str:
    """The ``points`` of an SVG line from left to right, 0 at the bottom and 1 at the top."""
    steps = max(len(shares) - 1, 1)
    across, up = WIDTH - 2 * _MARGIN, HEIGHT - 2 * _MARGIN
    points = [
        (_MARGIN + across * place / steps, _MARGIN + up * (1 - share)) for place, share in enumerate(shares)
    ]
    if len(points) == 1:
        points *= 2  # a line to itself is a dot; a point alone is not drawn
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


@dataclass(frozen=True)
class TaskRow:
    """A task, its newest round and the accuracy of its models."""

    task: Task
    newest_round: Round | None
    accuracies: Sequence[float]
    waits: bool = False
    """Whether it waits for resource blocks."""

    @property
    def open_round(self) -> Round | None:
        """The round that is under way."""
        return self.newest_round if self.newest_round and self.newest_round.is_open else None

    @property
    def rounds_done(self) -> int:
        """How many rounds are over, failed ones included."""
        return self.task.rounds - (self.open_round is not None)

    @property
    def can_open_round(self) -> bool:
        """Whether it makes sense to ask for the next round; the protocol has the last word."""
        return self.task.state in {TaskState.READY, TaskState.RUNNING} and self.open_round is None

    @property
    def state(self) -> str:
        """The state in a word; a task in which nothing happens is idle."""
        if self.waits:
            return "waiting"
        starts_rounds = self.task.terms.auto_advance and self.task.state is TaskState.RUNNING
        return "idle" if self.can_open_round and not starts_rounds else self.task.state.value

    @property
    def state_text(self) -> str:
        """What the operator can do about it."""
        return {"idle": "idle: open a round", "waiting": "waiting for resource blocks"}.get(
            self.state, self.state
        )

    @property
    def active_at(self) -> datetime:
        """When something happened last."""
        active_at = self.newest_round.active_at if self.newest_round else self.task.created_at
        return self.task.ended_at or active_at

    @property
    def points(self) -> str:
        """Of the line that shows how its accuracy went."""
        return polyline(self.accuracies)


def load_rows(store: Store, tasks: Sequence[Task], now: datetime) -> list[TaskRow]:
    """The rows of these tasks."""
    serials = [task.serial for task in tasks]
    rounds = store.overview.newest_rounds(serials)
    curves = store.overview.accuracy_curves(serials)
    waiting = {one.task_serial for one in store.waiting_tasks.all(now)}
    return [
        TaskRow(task, rounds.get(task.serial), curves.get(task.serial, ()), task.serial in waiting)
        for task in tasks
    ]
