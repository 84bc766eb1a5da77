"""What operators do with a task: change its terms, finish it, cancel it, delete it."""

from dataclasses import replace
from datetime import datetime
from typing import Unpack

from services.domain.rounds import UPLOAD_STATES, RoundState
from services.domain.tasks import OUTCOME_DETAILS, TargetMetric, Task, TaskOutcome, TaskState, TermsChange
from services.errors import ModelNotReadyError, NoDataSetError, TaskNotOverError, TaskOverError
from services.protocol.aggregation import close_round
from services.protocol.evaluation import finish_at_target
from services.protocol.transitions import cancel_open_round, finish_task, move_task
from services.storage.database import Store


def change_task(store: Store, task_id: str, now: datetime, **changes: Unpack[TermsChange]) -> Task:
    """Change terms of a task; of one that has ended, its name. It may end by this."""
    task = store.tasks.get(task_id, lock=True)
    if task.is_over and changes.keys() - {"name"}:
        raise TaskOverError(f"The task is {task.state}; only its name can be changed.")
    terms = replace(task.terms, **changes)
    is_measured = terms.dataset is not None or terms.target_metric is TargetMetric.DEVICE
    if terms.target_accuracy is not None and not is_measured:
        raise NoDataSetError("The task has no dataset, so no accuracy is measured.")
    task = store.tasks.change(task, terms=terms)
    store.events.record("task.changed", now, task_id=task_id, changed=sorted(changes))
    if terms.needs_evaluation and task.model_version is not None:
        known = store.models.evaluation(task.serial, task.model_version)
        if known is not None and finish_at_target(store, task, known.accuracy, now):
            return store.tasks.get(task_id)
    return task


def finish_by_operator(store: Store, task_id: str, now: datetime) -> Task:
    """End a task as finished. An open round is closed first, and its model still becomes the task's.

    The task is finished when that round is over. To finish it twice is no error.
    """
    task = store.tasks.get(task_id, lock=True)
    if task.state is TaskState.FINISHED or (task.outcome and not task.is_over):
        return task
    if task.is_over:
        raise TaskOverError(f"The task is {task.state}.")
    if task.state is TaskState.INITIALIZING:
        raise ModelNotReadyError("The task has no initial model yet; cancel it instead.")
    outcome = TaskOutcome.FINISHED_BY_OPERATOR
    open_round = store.rounds.open_of(task.serial)
    if open_round is not None and open_round.state is RoundState.REQUESTING:
        cancel_open_round(store, task, now)
        open_round = None
    if open_round is None:
        return finish_task(store, task, outcome, now)
    store.tasks.change(task, outcome=outcome, detail=OUTCOME_DETAILS[outcome])
    if open_round.state in UPLOAD_STATES:
        close_round(store, open_round.round_id, now)
    return store.tasks.get(task_id)


def cancel_task(store: Store, task_id: str, now: datetime) -> Task:
    """End a task and its open round; to cancel it twice is no error."""
    task = store.tasks.get(task_id, lock=True)
    if task.state is TaskState.CANCELLED:
        return task
    if task.is_over:
        raise TaskOverError(f"The task is {task.state}.")
    cancel_open_round(store, task, now)
    store.jobs.cancel(task_serial=task.serial)
    outcome = TaskOutcome.CANCELLED_BY_OPERATOR
    detail = OUTCOME_DETAILS[outcome]
    return move_task(store, task, TaskState.CANCELLED, now, outcome=outcome, detail=detail)


def delete_task(store: Store, task_id: str, now: datetime) -> None:
    """Delete a task that has ended, with its rounds and models; its events stay."""
    task = store.tasks.get(task_id, lock=True)
    if not task.is_over:
        raise TaskNotOverError(f"The task is {task.state}; finish or cancel it first.")
    store.tasks.remove(task)
    store.events.record("task.deleted", now, task_id=task_id)
