"""What a task page shows: the task and those it is compared with, and when each got how far."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from operator_api.dashboard.comparison import Comparison
from operator_api.dashboard.overview_view import TaskRow
from operator_api.elapsed_time import elapsed_at_end
from services.domain.tasks import Task
from services.storage.database import Database, Store
from services.storage.progress import RoundProgress
from services.storage.rows import Paging

_DEFAULT_THRESHOLDS = (0.5, 0.75)
_RECENT = Paging(1, 20)
"""The tasks that are offered for comparison."""


@dataclass(frozen=True)
class TimedRound:
    """A round of a task, and the time of the task's clock at its end."""

    row: RoundProgress
    elapsed_s: float | None
    """None while it is under way."""


@dataclass(frozen=True)
class Course:
    """A task, round by round."""

    task: Task
    rounds: Sequence[TimedRound]


@dataclass(frozen=True)
class Milestones:
    """A task, and when it got how far."""

    task: Task
    accuracy: float | None
    """Of the newest model that was evaluated."""
    arrivals: Sequence[TimedRound | None]
    """For each threshold the round that first reached it."""


@dataclass(frozen=True)
class TaskPage:
    """All that a task page shows."""

    row: TaskRow
    courses: Sequence[Milestones]
    """The page's own first."""
    thresholds: Sequence[float]
    recent: Sequence[Task]
    """What it can be compared with, newest first; those it is compared with always among them."""
    comparison: Comparison
    page: int
    pages: int
    shown_rounds: Sequence[TimedRound]
    """Of the task, newest first."""


def load_courses(database: Database, task_ids: Sequence[str]) -> list[Course]:
    """All rounds of these tasks; a task that is named twice comes once."""
    with database.reading() as store:
        tasks = _tasks(store, task_ids)
        progress = store.progress.of_tasks([task.serial for task in tasks])
    return [Course(task, _timed(task, progress.get(task.serial, ()))) for task in tasks]


def load_task_page(database: Database, task_id: str, comparison: Comparison, paging: Paging) -> TaskPage:
    """Read what the page of a task shows: of thousands of rounds those on it, and those of the arrivals."""
    with database.reading() as store:
        tasks = _tasks(store, [task_id, *comparison.others])
        own, serials = tasks[0], [task.serial for task in tasks]
        thresholds = comparison.thresholds or _default_thresholds(own)
        firsts = [store.progress.first_with(serials, one) for one in thresholds]
        last = own.rounds - (paging.page - 1) * paging.per_page
        on_page = range(last, max(last - paging.per_page, 0), -1)
        known = _rounds(store, tasks, {*on_page, *(number for one in firsts for number in one.values())})
        curves = store.overview.accuracy_curves(serials)
        newest_round = store.overview.newest_rounds([own.serial]).get(own.serial)
        recent = store.tasks.page(_RECENT, None).items
    courses = [
        Milestones(
            task,
            accuracy=curves[task.serial][-1] if task.serial in curves else None,
            arrivals=[known[task.serial].get(one.get(task.serial, 0)) for one in firsts],
        )
        for task in tasks
    ]
    return TaskPage(
        row=TaskRow(own, newest_round, ()),
        courses=courses,
        thresholds=thresholds,
        recent=_offered(recent, tasks),
        comparison=comparison,
        page=paging.page,
        pages=max(math.ceil(own.rounds / paging.per_page), 1),
        shown_rounds=[known[own.serial][number] for number in on_page],
    )


def _tasks(store: Store, task_ids: Sequence[str]) -> list[Task]:
    return [store.tasks.get(task_id) for task_id in dict.fromkeys(task_ids)]


def _rounds(
    store: Store, tasks: Sequence[Task], numbers: Collection[int]
) -> Mapping[int, Mapping[int, TimedRound]]:
    """These rounds of the tasks, by the task's serial and the round's number."""
    found = store.progress.rounds([task.serial for task in tasks], numbers)
    return {
        task.serial: {one.row.number: one for one in _timed(task, found.get(task.serial, ()))}
        for task in tasks
    }


def _timed(task: Task, rounds: Sequence[RoundProgress]) -> list[TimedRound]:
    return [
        TimedRound(row, elapsed_at_end(task, row.ended_at, row.timed_rounds, row.durations_s))
        for row in rounds
    ]


def _default_thresholds(task: Task) -> Sequence[float]:
    target = task.terms.target_accuracy
    return _DEFAULT_THRESHOLDS if target is None else (target,)


def _offered(recent: Sequence[Task], shown: Sequence[Task]) -> list[Task]:
    own, *others = shown
    offered = {task.task_id: task for task in (*recent, *others) if task.task_id != own.task_id}
    return sorted(offered.values(), key=lambda task: task.serial, reverse=True)
