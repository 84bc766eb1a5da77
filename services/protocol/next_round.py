"""The next round: a task that advances by itself goes on until its target accuracy or its final deadline."""

from datetime import datetime, timedelta

from services.domain.rounds import Round, RoundState
from services.domain.tasks import Task, TaskState
from services.protocol.ports import Store
from services.protocol.resource_request import open_round
from services.protocol.round_end import awaits_evaluation, finish_if_out_of_time, is_out_of_time

_LONGEST_PAUSE_S = 60.0


def advance_task(store: Store, task_id: str, now: datetime) -> Round | None:
    """Open the next round of a running task that advances by itself, or finish the task; the round opened."""
    task = store.tasks.get(task_id, lock=True)
    if task.state is not TaskState.RUNNING or store.rounds.open_of(task.serial):
        return None
    if not is_due(store, task, now) or finish_if_out_of_time(store, task, now):
        return None
    return open_round(store, task_id, now)


def is_due(store: Store, task: Task, now: datetime) -> bool:
    """Whether a running task without an open round is to be finished, or has its next round to be opened."""
    if awaits_evaluation(store, task):
        return False
    if is_out_of_time(task, now):
        return True
    return task.terms.auto_advance and now >= _not_before(store, task.serial)


def _not_before(store: Store, task_serial: int) -> datetime:
    """After a failed round wait a while, a second per round so far: clients may come back."""
    last = store.rounds.last_of(task_serial)
    assert last is not None, "a running task has had a round"
    assert last.ended_at is not None, "and it is over"
    if last.state is not RoundState.FAILED:
        return last.ended_at
    return last.ended_at + timedelta(seconds=min(float(last.number), _LONGEST_PAUSE_S))
