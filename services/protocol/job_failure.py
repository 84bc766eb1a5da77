"""When a worker fails or disappears: the job is tried again, and given up after the last attempt."""

from datetime import datetime

from services.domain.jobs import Job, JobKind
from services.domain.rounds import RoundState
from services.domain.tasks import TaskState
from services.domain.trainings import TrainingState
from services.protocol.moves import lock_round, move_task, tell_training
from services.protocol.ports import Store
from services.protocol.round_end import cancel_open_round, end_round


def fail_job(store: Store, task_id: str, claimed: Job, error: str, now: datetime) -> bool:
    """Put back a job whose attempt failed, or give it up and with it what needed it; false if not its own."""
    task = store.tasks.get(task_id, lock=True)
    if not store.jobs.put_back(claimed, error, now):
        return False
    if claimed.attempts_left:
        return True
    if claimed.kind is JobKind.TRAIN_CLIENT:
        training = store.trainings.end(
            claimed.subject["training_id"], state=TrainingState.FAILED, ended_at=now, error=error
        )
        tell_training(store, task_id, training, TrainingState.FAILED, now)
    elif claimed.kind is JobKind.AGGREGATE_ROUND:
        _, round_ = lock_round(store, claimed.subject["round_id"])
        end_round(store, task, round_, RoundState.FAILED, now, outcome="AGGREGATION_FAILED")
    elif not task.is_over:
        cancel_open_round(store, task, now)
        store.jobs.cancel(task_serial=task.serial)
        move_task(store, task, TaskState.FAILED, now, outcome=f"{claimed.kind.value}: {error}")
    return True
