"""Initialization: create a task and its initial global model."""

from datetime import datetime

from services.domain.jobs import Job, JobKind
from services.domain.tasks import Task, TaskState, TaskTerms
from services.errors import ModelExistsError, TaskOverError
from services.protocol.transitions import move_task
from services.storage.database import Store
from services.storage.model_store import Blob
from services.storage.models import Transfer


def start_task(store: Store, terms: TaskTerms, now: datetime) -> Task:
    """Create a task, and a job for its initial model."""
    task = store.tasks.add(terms, now)
    store.jobs.add(JobKind.INITIALIZE_MODEL, {"task_id": task.task_id}, task_serial=task.serial, now=now)
    store.events.record(f"task.{task.state.value}", now, task_id=task.task_id)
    return task


def set_initial_model(
    store: Store, task_id: str, blob: Blob, now: datetime, transfer: Transfer | None = None
) -> Task:
    """Set the initial model; the operator may replace it until the first round opens."""
    task = store.tasks.get(task_id, lock=True)
    if task.is_over:
        raise TaskOverError(f"The task is {task.state}.")
    if task.state is TaskState.RUNNING:
        if store.models.get(task.serial, 0).digest == blob.digest:
            return task
        raise ModelExistsError("The first round has begun; the initial model cannot be changed any more.")
    store.jobs.cancel(task_serial=task.serial)
    return _store_initial_model(store, task, blob, now, transfer)


def finish_initialization(
    store: Store, claimed: Job, blob: Blob, now: datetime, transfer: Transfer | None = None
) -> bool:
    """Store the initial model that a worker created; false if the lease was lost."""
    task = store.tasks.get(claimed.subject["task_id"], lock=True)
    if not store.jobs.finish(claimed, now):
        return False
    _store_initial_model(store, task, blob, now, transfer)
    return True


def _store_initial_model(
    store: Store, task: Task, blob: Blob, now: datetime, transfer: Transfer | None
) -> Task:
    store.models.put(task, 0, blob, now, transfer=transfer)
    store.events.record("model.created", now, task_id=task.task_id, version=0, digest=blob.digest)
    if task.state is TaskState.INITIALIZING:
        return move_task(store, task, TaskState.READY, now, model_version=0)
    return task
