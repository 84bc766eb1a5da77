"""Stands in for ``python -m operator_api`` as a worker with faults.

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
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from threading import Lock
from typing import TypeAlias

from operator_api.__main__ import main
from services.domain.jobs import Job, JobKind
from services.storage.database import Database, UnitOfWork
from services.storage.model_store import Blob
from trainer_worker.context import WorkerContext
from trainer_worker.handlers import HANDLERS, Progress

Work: TypeAlias = Callable[[WorkerContext, Job, Progress], bool]

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
class FaultyWorkerContext(WorkerContext):
    job: Job = field(kw_only=True)

    def save_blob(self, content: Iterable[bytes | memoryview]) -> Blob:
        blob = super().save_blob(content)
        strike("kept", self.job)
        return blob


def with_faults(work: Work) -> Work:
    def do(context: WorkerContext, job: Job, progress: Progress) -> bool:
        def work_on(done: float) -> None:
            progress(done)
            if done >= 0.5:
                strike("working", job, go_on=lambda: progress(done))

        parts = {part.name: getattr(context, part.name) for part in fields(context)}
        result = work(FaultyWorkerContext(**parts, job=job), job, work_on)
        strike("committed", job)
        return result

    return do


def notice_transactions() -> None:
    unit_of_work = Database.unit_of_work

    @contextmanager
    def noticed(self: Database) -> Iterator[UnitOfWork]:
        with _IN_TRANSACTION, unit_of_work(self) as uow:
            yield uow

    Database.unit_of_work = noticed  # type: ignore[method-assign]


if __name__ == "__main__":
    notice_transactions()
    for kind in JobKind:
        HANDLERS[kind] = with_faults(HANDLERS[kind])  # type: ignore[index]
    main()
