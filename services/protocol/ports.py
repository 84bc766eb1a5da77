"""What the steps of the protocol need to be kept, and by whom: implemented in ``services.storage``."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from services.domain.evaluation import Evaluation, Score
from services.domain.jobs import Job, JobKind
from services.domain.resources import ResourceReports
from services.domain.rounds import AcceptedUpdate, Candidate, Round, Slot
from services.domain.tasks import Task, TaskTerms
from services.domain.trainings import Training

Serials = npt.NDArray[np.int64]


class Stored(Protocol):
    """Bytes in the model store."""

    @property
    def digest(self) -> str:
        """SHA-256, in hex."""
        ...

    @property
    def size_bytes(self) -> int:
        """How many they are."""
        ...


class ClientsPort(Protocol):
    """The enrolled clients."""

    def serials_with(self, labels: Mapping[str, str]) -> Serials:
        """The serials of all with these labels, in the order of enrolment."""
        ...

    def ids_of(self, serials: Serials) -> Mapping[int, str]:
        """The ids of these by their serials; one may have been removed a moment ago."""
        ...


class ReportsPort(Protocol):
    """The resource reports."""

    def newest(
        self,
        client_serials: Serials,
        task_serial: int,
        *,
        observed_since: datetime,
        received_since: datetime | None,
    ) -> tuple[Serials, ResourceReports]:
        """The newest fresh report of each, and whose they are as places in ``client_serials``."""
        ...


class TasksPort(Protocol):
    """The tasks."""

    def add(self, terms: TaskTerms, now: datetime) -> Task:
        """Begin one."""
        ...

    def get(self, task_id: str, *, lock: bool = False) -> Task:
        """One of them; with ``lock`` nobody else changes it, or anything that is part of it, meanwhile."""
        ...

    def lock_of_round(self, round_id: str) -> Task:
        """That of a round, which nobody else changes meanwhile."""
        ...

    def id_of(self, serial: int) -> str:
        """The id of one."""
        ...

    def change(self, task: Task, **values: object) -> Task:
        """Set what is kept of it."""
        ...


class ModelsPort(Protocol):
    """The versions of the tasks' models."""

    def put(self, task: Task, version: int, blob: Any, now: datetime) -> Stored:
        """Keep a version."""
        ...

    def get(self, task_serial: int, version: int) -> Stored:
        """One version."""
        ...

    def add_score(self, task: Task, version: int, part: int, score: Score) -> None:
        """Keep how a version did on a part of the validation data."""
        ...

    def scores(self, task_serial: int, version: int) -> Sequence[Score]:
        """How a version did on the parts that are done."""
        ...

    def add_evaluation(self, task: Task, evaluation: Evaluation) -> None:
        """Keep how good a version is."""
        ...

    def evaluation(self, task_serial: int, version: int) -> Evaluation | None:
        """How good a version is, if that is known."""
        ...


class RoundsPort(Protocol):
    """The rounds, their candidates and slots."""

    def add(self, task_serial: int, number: int, **values: object) -> Round:
        """Open one."""
        ...

    def get(self, round_id: str) -> Round:
        """One of them."""
        ...

    def id_of(self, serial: int) -> str:
        """The id of one."""
        ...

    def change(self, round_: Round, **values: object) -> Round:
        """Set what is kept of it."""
        ...

    def open_of(self, task_serial: int) -> Round | None:
        """The task's round that is not over."""
        ...

    def last_of(self, task_serial: int) -> Round | None:
        """The task's newest round."""
        ...

    def asked_clients(self, round_serial: int) -> tuple[Serials, list[str], list[str]]:
        """Serials and ids of the candidates still enrolled; ids of those that are not."""
        ...

    def set_candidates(self, round_: Round, asked: Sequence[Candidate]) -> None:
        """Record the candidates."""
        ...

    def add_slots(self, round_: Round, planned: Sequence[Slot]) -> None:
        """Record who was selected."""
        ...

    def candidate(self, round_serial: int, client_id: str) -> Candidate | None:
        """One candidate."""
        ...

    def slot(self, round_serial: int, client_id: str) -> Slot | None:
        """A client's slot."""
        ...

    def slots(self, round_serial: int) -> list[Slot]:
        """All slots, in upload order."""
        ...

    def change_slot(self, round_serial: int, client_id: str, **values: object) -> None:
        """Set what is kept of a slot."""
        ...

    def slots_of(self, round_serial: int, client_ids: Sequence[str]) -> Mapping[str, Slot]:
        """The slots of these clients, by their ids."""
        ...

    def change_slots(self, round_serial: int, values: Mapping[str, Mapping[str, object]]) -> None:
        """Set the same of several slots, for each client to values of its own."""
        ...

    def settle_slots(self, round_serial: int) -> None:
        """Give every pending slot its outcome."""
        ...

    def pending_slots(self, round_serial: int) -> int:
        """How many slots have no outcome yet."""
        ...


class UpdatesPort(Protocol):
    """What clients uploaded."""

    def awaited(self, round_id: str, client_id: str) -> tuple[Task, Round, Slot | None, Stored]:
        """A round with its task and its model, and the client's slot if it has one."""
        ...

    def add(self, round_serial: int, accepted: Sequence[AcceptedUpdate]) -> None:
        """Record accepted updates."""
        ...

    def of_client(self, round_serial: int, client_id: str) -> AcceptedUpdate | None:
        """A client's accepted update."""
        ...


class TrainingsPort(Protocol):
    """The hosted trainings."""

    def add(self, round_: Round, client_id: str, partition: int, now: datetime) -> Training:
        """Ask for one."""
        ...

    def of_client(self, round_: Round, client_id: str) -> Training | None:
        """That of a client in a round."""
        ...

    def end(self, training_id: str, **values: object) -> Training:
        """Set how one ended."""
        ...

    def cancel(self, round_: Round, now: datetime) -> Sequence[Training]:
        """Take back those that wait; which they were."""
        ...


class JobsPort(Protocol):
    """The work for the trainer."""

    def add(
        self,
        kind: JobKind,
        subject: Mapping[str, str],
        *,
        task_serial: int,
        now: datetime,
        round_serial: int | None = None,
    ) -> Job:
        """Ask for work."""
        ...

    def claim(self, job_id: str, now: datetime, lease: timedelta) -> Job | None:
        """Take one that waits."""
        ...

    def renew(self, claimed: Job, now: datetime, lease: timedelta) -> bool:
        """Hold on to it; false if another has it now."""
        ...

    def finish(self, claimed: Job, now: datetime) -> bool:
        """Mark as done; false if another has it now."""
        ...

    def hand_back(self, claimed: Job) -> bool:
        """Give back untried; false if another has it now."""
        ...

    def put_back(self, claimed: Job, error: str) -> bool:
        """Give back, to be tried again; false if another has it now."""
        ...

    def give_up(self, claimed: Job, error: str, now: datetime) -> bool:
        """Mark as failed; false if another has it now."""
        ...

    def cancel(self, *, task_serial: int | None = None, round_serial: int | None = None) -> None:
        """Take back what is unfinished."""
        ...


class EventsPort(Protocol):
    """What happened."""

    def record(
        self,
        kind: str,
        now: datetime,
        *,
        task_id: str | None = None,
        round_id: str | None = None,
        client_id: str | None = None,
        **data: Any,
    ) -> None:
        """Note what this transaction changes."""
        ...


class Store(Protocol):
    """One transaction on all of it."""

    @property
    def clients(self) -> ClientsPort: ...  # noqa: D102
    @property
    def reports(self) -> ReportsPort: ...  # noqa: D102
    @property
    def tasks(self) -> TasksPort: ...  # noqa: D102
    @property
    def models(self) -> ModelsPort: ...  # noqa: D102
    @property
    def rounds(self) -> RoundsPort: ...  # noqa: D102
    @property
    def updates(self) -> UpdatesPort: ...  # noqa: D102
    @property
    def trainings(self) -> TrainingsPort: ...  # noqa: D102
    @property
    def jobs(self) -> JobsPort: ...  # noqa: D102
    @property
    def events(self) -> EventsPort: ...  # noqa: D102
