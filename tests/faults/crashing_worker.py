"""Stands in for ``python -m operator_api`` as a worker with faults, and with leases of a few seconds.

A fault is a file in the folder that FEDCS_FAULTS names. Its name tells which kind of job it befalls, where in
the job, and what happens there, as in ``train_client.working.kill.0``. The process that gets there first
moves the file to the folder ``struck`` and adds its own id and the job's to the name; so each happens once.

Where: ``working`` (halfway through), ``kept`` (the result is in the model store, and not yet in the
database), ``committed`` (it is in the database, and the message not yet at its end).
What: ``kill`` (SIGKILL), ``freeze`` (SIGSTOP), ``linger`` (gets no further until the struck file is deleted).

Nothing in the worker knows of this: the functions that do the jobs are replaced from outside.
"""

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from threading import Lock
from typing import TypeAlias

from torch import Tensor

from operator_api.__main__ import main
from services.domain.jobs import Job, JobKind
from services.protocol import job_lease
from services.storage.database import Database, UnitOfWork
from services.storage.model_store import Blob
from trainer_worker import jobs, lease
from trainer_worker.work import WORK, Progress
from trainer_worker.workshop import Workshop

Work: TypeAlias = Callable[[Workshop, Job, Progress], bool]

_FAULTS = Path(os.environ["FEDCS_FAULTS"])
_IN_TRANSACTION = Lock()


def strike(where: str, job: Job, go_on: Callable[[], None] = lambda: None) -> None:
    for path in sorted(_FAULTS.glob(f"{job.kind.value}.{where}.*")):
        struck = _FAULTS / "struck" / f"{path.name}.{os.getpid()}.{job.job_id}"
        try:
            path.rename(struck)
        except FileNotFoundError:  # it has befallen another
            continue
        what = path.name.split(".")[2]
        if what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif what == "freeze":
            with _IN_TRANSACTION:  # frozen within one, it would keep everybody from writing
                os.kill(os.getpid(), signal.SIGSTOP)
        while what == "linger" and struck.exists():
            time.sleep(0.05)
            go_on()
        return


@dataclass(frozen=True)
class FaultyWorkshop(Workshop):
    job: Job = field(kw_only=True)

    def keep(self, tensors: dict[str, Tensor]) -> Blob:
        blob = super().keep(tensors)
        strike("kept", self.job)
        return blob


def with_faults(work: Work) -> Work:
    def do(workshop: Workshop, job: Job, progress: Progress) -> bool:
        def work_on(done: float) -> None:
            progress(done)
            if done >= 0.5:
                strike("working", job, go_on=lambda: progress(done))

        result = work(FaultyWorkshop(**vars(workshop), job=job), job, work_on)
        strike("committed", job)
        return result

    return do


def shorten_leases() -> None:
    job_lease.LEASE = timedelta(seconds=3)
    lease.RENEW_EVERY_S = 0.4  # type: ignore[attr-defined]
    jobs._PAUSE_S = 0.5


def notice_transactions() -> None:
    unit_of_work = Database.unit_of_work

    @contextmanager
    def noticed(self: Database) -> Iterator[UnitOfWork]:
        with _IN_TRANSACTION, unit_of_work(self) as uow:
            yield uow

    Database.unit_of_work = noticed  # type: ignore[method-assign]


if __name__ == "__main__":
    shorten_leases()
    notice_transactions()
    for kind in JobKind:
        WORK[kind] = with_faults(WORK[kind])  # type: ignore[index]
    main()
