"""When a worker fails or disappears: the job is tried again, and given up after the last attempt."""

from datetime import datetime

from services.domain.jobs import Job, JobKind
from services.domain.rounds import RoundState
from services.domain.tasks import TaskState
from services.domain.trainings import TrainingState
from services.protocol.job_lease import tell_failure
from services.protocol.moves import lock_round, move_task, tell_training
from services.protocol.ports import Store
from services.protocol.round_end import cancel_open_round, end_round


def fail_job(
    store: Store, task_id: str, claimed: Job, error: str, now: datetime, *, hopeless: bool = False
) -> bool:
    """Put back a job whose attempt failed, or give it up and with it what needed it; false if not its own.

    It is given up after the last attempt, or at once if another one would be ``hopeless``.
    """
    task = store.tasks.get(task_id, lock=True)
    again = claimed.attempts_left > 0 and not hopeless
    ours = store.jobs.put_back(claimed, error) if again else store.jobs.give_up(claimed, error, now)
    if not ours:
        return False
    tell_failure(store, claimed, error, now)
    if again:
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
