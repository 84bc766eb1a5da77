"""Initialization: a task begins, and gets its first global model from a worker or from the operator."""

from datetime import datetime

from services.domain.jobs import Job, JobKind
from services.domain.tasks import Task, TaskState, TaskTerms
from services.errors import ModelExistsError, TaskOverError
from services.protocol.moves import move_task
from services.protocol.ports import Store, Stored
from services.protocol.round_end import cancel_open_round


def start_task(store: Store, terms: TaskTerms, now: datetime) -> Task:
    """Begin a task; a worker is asked for the initial model."""
    task = store.tasks.add(terms, now)
    store.jobs.add(JobKind.INITIALIZE_MODEL, {"task_id": task.task_id}, task_serial=task.serial, now=now)
    store.events.record(f"task.{task.state.value}", now, task_id=task.task_id)
    return task


def set_initial_model(store: Store, task_id: str, blob: Stored, now: datetime) -> Task:
    """Take the operator's initial model, in place of a worker's; until the first round it may be changed."""
    task = store.tasks.get(task_id, lock=True)
    if task.is_over:
        raise TaskOverError(f"The task is {task.state}.")
    if task.state is TaskState.RUNNING:
        if store.models.get(task.serial, 0).digest == blob.digest:
            return task
        raise ModelExistsError("The first round has begun; the initial model cannot be changed any more.")
    store.jobs.cancel(task_serial=task.serial)
    return _keep_initial_model(store, task, blob, now)


def finish_initialization(store: Store, claimed: Job, blob: Stored, now: datetime) -> bool:
    """Take the initial model that a worker made; false if the job is no longer its own."""
    task = store.tasks.get(claimed.subject["task_id"], lock=True)
    if not store.jobs.finish(claimed, now):
        return False
    _keep_initial_model(store, task, blob, now)
    return True


def cancel_task(store: Store, task_id: str, now: datetime) -> Task:
    """End a task and its open round; to cancel it twice is no error."""
    task = store.tasks.get(task_id, lock=True)
    if task.state is TaskState.CANCELLED:
        return task
    if task.is_over:
        raise TaskOverError(f"The task is {task.state}.")
    cancel_open_round(store, task, now)
    store.jobs.cancel(task_serial=task.serial)
    return move_task(store, task, TaskState.CANCELLED, now)


def _keep_initial_model(store: Store, task: Task, blob: Stored, now: datetime) -> Task:
    store.models.put(task, 0, blob, now)
    store.events.record("model.created", now, task_id=task.task_id, version=0, digest=blob.digest)
    if task.state is TaskState.INITIALIZING:
        return move_task(store, task, TaskState.READY, now, model_version=0)
    return task
