"""The life cycle of a job: claim, renew, retry, refuse, hand back and fail."""

from datetime import datetime, timedelta
from typing import Any

from services.domain.jobs import QUEUES, Job, JobKind, TrainingState, WorkerIdentity, has_other_worker
from services.domain.rounds import RoundState
from services.domain.tasks import Task, TaskOutcome, TaskState
from services.protocol.evaluation import record_failed_evaluation
from services.protocol.transitions import cancel_open_round, emit_training, end_round, lock_round, move_task
from services.storage.database import Store


def claim_job(store: Store, job_id: str, now: datetime, lease: timedelta) -> Job | None:
    """Claim a waiting job; none if another worker has it or it has ended."""
    claimed = store.jobs.claim(job_id, now, lease)
    if claimed is not None:
        _emit(store, "job.started", claimed, now)
    return claimed


def renew_job(store: Store, claimed: Job, done: float, now: datetime, lease: timedelta) -> bool:
    """Renew the lease of a job and emit its progress; false if the lease was lost."""
    if not store.jobs.renew(claimed, now, lease):
        return False
    _emit(store, "job.progress", claimed, now, done=round(done, 3))
    return True


def hand_back_job(store: Store, claimed: Job, now: datetime) -> bool:
    """Put a job back because its worker stops. It does not count as an attempt."""
    if not store.jobs.hand_back(claimed):
        return False
    _emit(store, "job.handed_back", claimed, now)
    return True


def emit_failure(store: Store, failed: Job, error: str, now: datetime) -> None:
    """Emit that an attempt failed."""
    _emit(store, "job.failed", failed, now, error=error)


def emit_refusal(store: Store, refused: Job, host: str, error: str, now: datetime) -> None:
    """Emit that a host cannot do a job."""
    _emit(store, "job.refused", refused, now, host=host, error=error)


def _emit(store: Store, kind: str, job: Job, now: datetime, **data: Any) -> None:
    store.events.record(
        kind,
        now,
        task_id=store.tasks.id_of(job.task_serial),
        round_id=None if job.round_serial is None else store.rounds.id_of(job.round_serial),
        job_id=job.job_id,
        job=job.kind.value,
        subject=dict(job.subject),
        attempt=job.attempts,
        **data,
    )


def fail_job(
    store: Store, task_id: str, claimed: Job, error: str, now: datetime, *, permanent: bool = False
) -> bool:
    """Put a job back after a failed attempt, or fail it and what depends on it; false if the lease was lost.

    It fails after the last attempt, or at once if the error is ``permanent``.
    """
    task = store.tasks.get(task_id, lock=True)
    retry = claimed.attempts_left > 0 and not permanent
    is_leased = store.jobs.put_back(claimed, error) if retry else store.jobs.give_up(claimed, error, now)
    if not is_leased:
        return False
    emit_failure(store, claimed, error, now)
    if retry:
        return True
    if claimed.kind is JobKind.TRAIN_CLIENT:
        training = store.trainings.end(
            claimed.subject["training_id"], state=TrainingState.FAILED, ended_at=now, error=error
        )
        emit_training(store, task_id, training, TrainingState.FAILED, now)
    elif claimed.kind is JobKind.AGGREGATE_ROUND:
        _, round_ = lock_round(store, claimed.subject["round_id"])
        end_round(store, task, round_, RoundState.FAILED, now, outcome="AGGREGATION_FAILED")
    elif claimed.kind is JobKind.EVALUATE_MODEL:
        record_failed_evaluation(store, task, claimed, error, now)
        if task.terms.needs_evaluation:  # else it would wait for the accuracy for ever
            _fail_task(store, task, claimed, error, now)
    else:
        _fail_task(store, task, claimed, error, now)
    return True


def _fail_task(store: Store, task: Task, failed: Job, error: str, now: datetime) -> None:
    if not task.is_over:
        cancel_open_round(store, task, now)
        store.jobs.cancel(task_serial=task.serial)
        is_evaluation = failed.kind is JobKind.EVALUATE_MODEL
        outcome = TaskOutcome.EVALUATION_FAILED if is_evaluation else TaskOutcome.INITIALIZATION_FAILED
        move_task(store, task, TaskState.FAILED, now, outcome=outcome, detail=error)


def refuse_job(
    store: Store, claimed: Job, worker: WorkerIdentity, error: str, now: datetime, *, for_s: float
) -> bool:
    """Put a job back that this host cannot do; the worker does not take it again for ``for_s``.

    It does not count as an attempt. False, without a change, if no other live worker may do the job or the
    lease was lost.
    """
    refused_by = store.refusals.refused_by(claimed.job_id)
    if not has_other_worker(QUEUES[claimed.kind], store.workers.live(now), refused_by, worker):
        return False
    if not store.jobs.hand_back(claimed):
        return False
    store.refusals.add(claimed.job_id, worker.worker_id, error, now, now + timedelta(seconds=for_s))
    emit_refusal(store, claimed, worker.host, error, now)
    return True


def skip_refused_job(store: Store, job_id: str, worker: WorkerIdentity, now: datetime) -> bool:
    """Whether this worker has refused the job; if so, it is published again for other workers."""
    refusal = store.refusals.get(job_id, worker.worker_id)
    if refusal is None or refusal.expires_at <= now:
        return False
    store.jobs.mark_unpublished([job_id])
    return True
