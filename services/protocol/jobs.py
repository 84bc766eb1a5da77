"""The life cycle of a job: claim, renew, retry, refuse, hand back and fail; hosted trainings."""

from datetime import datetime, timedelta
from typing import Any

from services.domain.jobs import (
    QUEUES,
    Job,
    JobKind,
    Training,
    TrainingState,
    WorkerIdentity,
    has_other_worker,
)
from services.domain.rounds import UPLOAD_STATES, RoundState
from services.domain.tasks import Task, TaskOutcome, TaskState
from services.errors import NoDataSetError, NotSelectedError, RoundNotCollectingError
from services.protocol.evaluation import record_failed_evaluation
from services.protocol.transitions import cancel_open_round, emit_training, end_round, lock_round, move_task
from services.storage.database import Store
from services.storage.model_store import Blob


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


def request_training(store: Store, round_id: str, client_id: str, partition: int, now: datetime) -> Training:
    """Request the training of a selected client; a repeated request returns the same training."""
    task, round_ = lock_round(store, round_id)
    if task.terms.dataset is None:
        raise NoDataSetError("The task has no dataset for simulated clients to train on.")
    if store.rounds.slot(round_.serial, client_id) is None:
        raise NotSelectedError(f"The client {client_id!r} was not selected for the round {round_id!r}.")
    if known := store.trainings.of_client(round_, client_id):
        return known
    if round_.state not in UPLOAD_STATES:
        raise RoundNotCollectingError(f"The round is {round_.state}.")
    training = store.trainings.add(round_, client_id, partition, now)
    store.jobs.add(
        JobKind.TRAIN_CLIENT,
        {"training_id": training.training_id},
        task_serial=task.serial,
        round_serial=round_.serial,
        now=now,
    )
    emit_training(store, task.task_id, training, TrainingState.WAITING, now)
    return training


def finish_training(store: Store, claimed: Job, training: Training, blob: Blob, now: datetime) -> bool:
    """Store the update that a worker trained; false if the lease was lost."""
    task, round_ = lock_round(store, training.round_id)
    if not store.jobs.finish(claimed, now):
        return False
    store.trainings.end(
        training.training_id,
        state=TrainingState.DONE,
        ended_at=now,
        digest=blob.digest,
        size_bytes=blob.size_bytes,
    )
    store.rounds.change(round_, active_at=now)
    emit_training(store, task.task_id, training, TrainingState.DONE, now)
    return True
