"""One job from its message to its end: claim, do, and whatever can go wrong between the two."""

import structlog
from sqlalchemy.exc import SQLAlchemyError

from services.domain.jobs import Job, JobKind
from services.errors import ModelStoreAwayError, StorageFullError, WorkImpossibleError
from services.protocol.job_failure import fail_job
from services.protocol.job_lease import claim_job, hand_back_job
from trainer_worker.lease import Lease, LeaseLostError, WorkerStopsError
from trainer_worker.publisher import BrokerAwayError
from trainer_worker.work import WORK
from trainer_worker.workshop import Workshop

_log = structlog.get_logger(__name__)

_LONGEST_ERROR = 1000
_PAUSE_S = 5.0
"""Before work is tried again that something around it has failed: a moment later it would fail as well."""


def do_job(workshop: Workshop, job_id: str) -> None:
    """Do a job, if it still waits: messages may come twice, and late."""
    if workshop.stopping.is_set():
        _pass_on(workshop, job_id)
    elif claimed := _claim(workshop, job_id):
        _do_claimed(workshop, claimed)
        if claimed.kind is JobKind.AGGREGATE_ROUND:
            _tell_of_new_work(workshop)


def _do_claimed(workshop: Workshop, claimed: Job) -> None:
    log = _log.bind(
        job_id=claimed.job_id, kind=claimed.kind.value, attempt=claimed.attempts, **claimed.subject
    )
    log.info("job started")
    lease = Lease(workshop.database, claimed, workshop.stopping)
    try:
        with lease.held():
            done = _work(workshop, claimed, lease)
        log.info("job done" if done else "job done in vain: it was cancelled, or somebody else has it")
    except LeaseLostError:
        log.info("job left: it was cancelled, or somebody else has it")
    except WorkerStopsError:
        log.info("job handed back")
        _hand_back(workshop, claimed)
    except WorkImpossibleError as error:
        log.warning("job impossible", error=str(error))
        _fail(workshop, claimed, str(error), hopeless=True)
    except Exception as error:
        log.exception("job failed")
        if isinstance(error, (OSError, SQLAlchemyError)) and claimed.attempts_left:
            workshop.stopping.wait(_PAUSE_S * claimed.attempts)  # the lease has longer to go than twice that
        _fail(workshop, claimed, f"{type(error).__name__}: {error}", hopeless=False)


def _work(workshop: Workshop, claimed: Job, lease: Lease) -> bool:
    """Do the work, from its beginning whenever the store was away or full: that is no fault of the job's."""
    while True:
        try:
            return WORK[claimed.kind](workshop, claimed, lease.progress)
        except (ModelStoreAwayError, StorageFullError) as error:
            _log.warning("the job waits", job_id=claimed.job_id, error=str(error))
            lease.wait(_PAUSE_S)


def _pass_on(workshop: Workshop, job_id: str) -> None:
    """Have the job told of again: its message is used up, and this worker stops."""
    with workshop.database.unit_of_work() as uow:
        uow.jobs.mark_unpublished(job_id)
        uow.commit()


def _claim(workshop: Workshop, job_id: str) -> Job | None:
    workshop.database.set_clock()
    with workshop.database.unit_of_work() as uow:
        claimed = claim_job(uow, job_id, workshop.database.now())
        uow.commit()
    return claimed


def _hand_back(workshop: Workshop, claimed: Job) -> None:
    with workshop.database.unit_of_work() as uow:
        hand_back_job(uow, claimed, workshop.database.now())
        uow.commit()


def _fail(workshop: Workshop, claimed: Job, error: str, *, hopeless: bool) -> None:
    with workshop.database.unit_of_work() as uow:
        task_id = uow.tasks.id_of(claimed.task_serial)
        fail_job(uow, task_id, claimed, error[:_LONGEST_ERROR], workshop.database.now(), hopeless=hopeless)
        uow.commit()


def _tell_of_new_work(workshop: Workshop) -> None:
    """Have the new model evaluated at once; the keeper would tell of it too, a moment later."""
    try:
        workshop.publisher.publish_waiting(workshop.database)
    except BrokerAwayError as error:
        _log.warning("the broker cannot be reached", error=str(error))
