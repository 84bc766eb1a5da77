"""Runs one job: claim it, call its handler, and handle every kind of failure."""

from datetime import timedelta

import structlog
from sqlalchemy.exc import SQLAlchemyError

from services.domain.jobs import Job, JobKind
from services.errors import (
    FedCSError,
    HostError,
    ModelFileMissingError,
    ModelStoreUnavailableError,
    NotFoundError,
    StorageFullError,
    WorkImpossibleError,
)
from services.learning.devices import is_host_failure
from services.protocol.jobs import claim_job, fail_job, hand_back_job, refuse_job, skip_refused_job
from services.storage.database import describe_failure
from trainer_worker.context import WorkerContext
from trainer_worker.handlers import HANDLERS
from trainer_worker.lease import Lease, LeaseLostError, WorkerStopsError
from trainer_worker.publisher import BrokerUnavailableError

_log = structlog.get_logger(__name__)

_MAX_ERROR_CHARACTERS = 1000
_HOST_FAILURES = (HostError, ModelStoreUnavailableError, ModelFileMissingError, StorageFullError, OSError)


class JobRefusedError(Exception):
    """The host cannot do the job; it was put back for another worker."""


def do_job(context: WorkerContext, job_id: str) -> None:
    """Run a job if it is still waiting: messages may arrive twice or late."""
    if context.stopping.is_set():
        _republish(context, job_id)
    elif claimed := _claim(context, job_id):
        _run_claimed(context, claimed)
        if claimed.kind is JobKind.AGGREGATE_ROUND:
            _publish_waiting(context)


def _run_claimed(context: WorkerContext, claimed: Job) -> None:
    log = _log.bind(
        job_id=claimed.job_id, kind=claimed.kind.value, attempt=claimed.attempts, **claimed.subject
    )
    log.info("job started")
    lease = Lease(context.settings, context.database, claimed, context.stopping)
    try:
        with lease.held():
            done = _run_handler(context, claimed, lease)
        log.info("job done" if done else "result discarded: the job was cancelled or its lease was lost")
    except LeaseLostError:
        log.info("job stopped: it was cancelled or its lease was lost")
    except WorkerStopsError:
        log.info("job handed back: the worker is stopping")
        _hand_back(context, claimed)
    except NotFoundError as error:
        log.info("job discarded: its task was deleted", error=str(error))
    except JobRefusedError as error:
        log.warning("job refused: this host cannot do it; another worker may", error=str(error))
        _pause(context)
    except (HostError, WorkImpossibleError) as error:
        log.warning("job failed permanently", error=str(error))
        _fail(context, claimed, str(error), permanent=True)
    except Exception as error:
        log.exception("job failed")
        _fail(context, claimed, _describe(error), permanent=False)


def _run_handler(context: WorkerContext, claimed: Job, lease: Lease) -> bool:
    """Call the handler. If this host cannot do the job and another worker may, put it back.

    If there is no other worker, retry as long as the store is unavailable or full.
    """
    while True:
        try:
            return HANDLERS[claimed.kind](context, claimed, lease.progress)
        except Exception as error:
            if _is_host_failure(error) and _refuse(context, claimed, _describe(error)):
                raise JobRefusedError(_describe(error)) from error
            if isinstance(error, (ModelStoreUnavailableError, StorageFullError)):
                _log.warning("the job waits for the model store", job_id=claimed.job_id, error=str(error))
                lease.wait(context.settings.retry_pause_s)
                continue
            if isinstance(error, (OSError, SQLAlchemyError)) and claimed.attempts_left:
                lease.wait(
                    context.settings.retry_pause_s * claimed.attempts
                )  # a retry at once would fail too
            raise


def _is_host_failure(error: Exception) -> bool:
    return isinstance(error, _HOST_FAILURES) or is_host_failure(error)


def _describe(error: Exception) -> str:
    text = str(error) if isinstance(error, FedCSError) else f"{type(error).__name__}: {error}"
    return text[:_MAX_ERROR_CHARACTERS]


def _republish(context: WorkerContext, job_id: str) -> None:
    """Have the job published again: this worker consumed its message and is stopping."""
    with context.database.unit_of_work() as uow:
        uow.jobs.mark_unpublished([job_id])
        uow.commit()


def _claim(context: WorkerContext, job_id: str) -> Job | None:
    """Claim the job, unless another worker has it or this worker has refused it."""
    context.database.set_clock()
    now = context.database.now()
    with context.database.unit_of_work() as uow:
        if refused := skip_refused_job(uow, job_id, context.identity, now):
            claimed = None
        else:
            claimed = claim_job(uow, job_id, now, timedelta(seconds=context.settings.job_lease_s))
        uow.commit()
    if refused:
        _pause(context)
    return claimed


def _pause(context: WorkerContext) -> None:
    """Take no message for a while: an idle process would receive the refused job again."""
    context.stopping.wait(context.settings.retry_pause_s)


def _refuse(context: WorkerContext, claimed: Job, error: str) -> bool:
    """Put the job back for another worker; false if there is none or the database fails."""
    now, for_s = context.database.now(), context.settings.refusal_s
    try:
        with context.database.unit_of_work() as uow:
            refused = refuse_job(uow, claimed, context.identity, error, now, for_s=for_s)
            uow.commit()
    except (SQLAlchemyError, StorageFullError) as failure:
        _log.warning("the refusal was not stored", error=describe_failure(failure))
        return False
    return refused


def _hand_back(context: WorkerContext, claimed: Job) -> None:
    with context.database.unit_of_work() as uow:
        hand_back_job(uow, claimed, context.database.now())
        uow.commit()


def _fail(context: WorkerContext, claimed: Job, error: str, *, permanent: bool) -> None:
    with context.database.unit_of_work() as uow:
        task_id = uow.tasks.id_of(claimed.task_serial)
        fail_job(
            uow, task_id, claimed, error[:_MAX_ERROR_CHARACTERS], context.database.now(), permanent=permanent
        )
        uow.commit()


def _publish_waiting(context: WorkerContext) -> None:
    """Publish the evaluation of the new model at once, without waiting for the reconciler."""
    try:
        context.publisher.publish_waiting(context.database)
    except BrokerUnavailableError as error:
        _log.warning("the broker is unavailable", error=str(error))
