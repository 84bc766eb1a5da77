"""Tasks, model versions and evaluations."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Unpack

from sqlalchemy import bindparam, delete, insert, select, update

from services.domain.noise_scale import NoiseEstimate
from services.domain.rounds import OPEN_STATES
from services.domain.tasks import (
    DeviceEvaluation,
    DeviceScore,
    Evaluation,
    Score,
    Task,
    TaskChange,
    TaskState,
    TaskTerms,
    combine_device_evaluations,
)
from services.errors import ModelNotFoundError, RoundNotFoundError, TaskNotFoundError
from services.storage.model_store import Blob
from services.storage.sql import (
    Page,
    Paging,
    Repository,
    as_dataclass,
    change_where,
    count_rows,
    new_id,
    with_values,
)
from services.storage.tables import (
    candidates,
    device_evaluations,
    evaluation_parts,
    evaluations,
    jobs,
    model_versions,
    rounds,
    slots,
    tasks,
    trainings,
    updates,
)
from services.storage.transfers import Transfer


@dataclass(frozen=True)
class ModelVersion:
    """One version of a task's model; the bytes are in the model store."""

    version: int
    digest: str
    size_bytes: int
    created_at: datetime
    state_digest: str | None = None
    """Digest of the aggregator's state; none if there is no state or it was dropped."""
    evaluation_error: str | None = None
    """Why the evaluation failed."""
    encoded_digest: str | None = None
    """Of the file that clients download, if the model travels encoded."""
    encoded_size_bytes: int | None = None
    upload_size_bytes: int | None = None
    """Size of an update in the schedule, if updates travel encoded."""
    download_size_bytes: int | None = None
    """Size of the download in the schedule, if the model travels encoded."""

    noise_estimate: NoiseEstimate | None = None
    """The noise of the updates up to this version; none before it was measured."""

    @property
    def download(self) -> Blob:
        """The file that clients download."""
        if self.encoded_digest is None:
            return Blob(self.digest, self.size_bytes)
        assert self.encoded_size_bytes is not None, "of the same file"
        return Blob(self.encoded_digest, self.encoded_size_bytes)


_TASK = with_values(select(tasks), tasks.c.task_id)
# Not FOR UPDATE, which would also block inserts of reports that reference the task.
_LOCKED_TASK = _TASK.with_for_update(key_share=True)
_OF_ROUND = with_values(select(rounds.c.task_serial), rounds.c.round_id).scalar_subquery()
_LOCKED_TASK_OF_ROUND = select(tasks).where(tasks.c.serial == _OF_ROUND).with_for_update(key_share=True)
_ID_OF = with_values(select(tasks.c.task_id), tasks.c.serial)
_SERIALS_OF = select(tasks.c.task_id, tasks.c.serial).where(
    tasks.c.task_id.in_(bindparam("task_ids", expanding=True))
)
_WITH_OPEN_ROUND = select(rounds.c.task_serial).where(rounds.c.state.in_(OPEN_STATES))
_IDLE = (
    select(tasks)
    .where(tasks.c.state == TaskState.RUNNING, tasks.c.serial.not_in(_WITH_OPEN_ROUND))
    .order_by(tasks.c.serial)
)
_UNFINISHED = select(tasks).where(tasks.c.ended_at.is_(None)).order_by(tasks.c.serial)
_CHANGE = change_where(tasks, tasks.c.serial)
_MODEL = with_values(select(model_versions), model_versions.c.task_serial, model_versions.c.version)

_NEWEST_MODEL = (
    select(model_versions)
    .join_from(
        tasks,
        model_versions,
        (model_versions.c.task_serial == tasks.c.serial)
        & (model_versions.c.version == tasks.c.model_version),
    )
    .order_by(tasks.c.serial.desc())
    .limit(1)
)


class Tasks(Repository):
    """The tasks in a database."""

    def add(self, terms: TaskTerms, now: datetime) -> Task:
        """Create a task."""
        task_id = new_id("task")
        row = {
            "task_id": task_id,
            "state": TaskState.INITIALIZING,
            "created_at": now,
            "rounds": 0,
            "elapsed_s": 0.0,
            "terms": terms,
        }
        self._connection.execute(insert(tasks), row)
        return self.get(task_id)

    def get(self, task_id: str, *, lock: bool = False) -> Task:
        """One task; ``lock`` locks it and everything that belongs to it until the transaction ends."""
        query = _LOCKED_TASK if lock else _TASK
        found = self._find(Task, query, task_id=task_id)
        if found is None:
            raise TaskNotFoundError(task_id)
        return found

    def lock_of_round(self, round_id: str) -> Task:
        """Lock the task of a round until the transaction ends."""
        found = self._find(Task, _LOCKED_TASK_OF_ROUND, round_id=round_id)
        if found is None:
            raise RoundNotFoundError(round_id)
        return found

    def page(self, paging: Paging, state: TaskState | None) -> Page[Task]:
        """The tasks, newest first."""
        query = select(tasks) if state is None else select(tasks).where(tasks.c.state == state)
        rows = self._connection.execute(paging.of(query.order_by(tasks.c.serial.desc())))
        return Page([as_dataclass(Task, row) for row in rows], count_rows(self._connection, query))

    def serials_of(self, task_ids: Sequence[str]) -> dict[str, int]:
        """The serials of these tasks, without those that do not exist."""
        rows = self._connection.execute(_SERIALS_OF, {"task_ids": task_ids})
        return {row.task_id: row.serial for row in rows}

    def id_of(self, serial: int) -> str:
        """The id of a task."""
        return str(self._connection.execute(_ID_OF, {"serial": serial}).scalar_one())

    def unfinished(self) -> list[Task]:
        """Those that are not over."""
        return self._list(Task, _UNFINISHED)

    def idle(self) -> list[Task]:
        """Running tasks without an open round."""
        return self._list(Task, _IDLE)

    def change(self, task: Task, **values: Unpack[TaskChange]) -> Task:
        """Set columns of a task that this transaction has locked."""
        self._connection.execute(_CHANGE, {"of_serial": task.serial, **values})
        return replace(task, **values)

    def remove(self, task: Task) -> None:
        """Delete a task that this transaction has locked, and all that is part of it but its events."""
        of_task = select(rounds.c.serial).where(rounds.c.task_serial == task.serial)
        for table in (updates, trainings, slots, candidates):
            self._connection.execute(delete(table).where(table.c.round_serial.in_(of_task)))
        for table in (jobs, rounds, evaluation_parts, evaluations, device_evaluations, model_versions):
            self._connection.execute(delete(table).where(table.c.task_serial == task.serial))
        self._connection.execute(delete(tasks).where(tasks.c.serial == task.serial))


class Models(Repository):
    """The model versions in a database, and their evaluations."""

    def put(
        self,
        task: Task,
        version: int,
        blob: Blob,
        now: datetime,
        *,
        state: Blob | None = None,
        transfer: Transfer | None = None,
        noise_estimate: NoiseEstimate | None = None,
    ) -> ModelVersion:
        """Store a version, or replace it; the aggregator's last two states are kept."""
        transfer = transfer or Transfer()
        values = {
            "digest": blob.digest,
            "size_bytes": blob.size_bytes,
            "created_at": now,
            "state_digest": state.digest if state else None,
            "encoded_digest": transfer.encoded.digest if transfer.encoded else None,
            "encoded_size_bytes": transfer.encoded.size_bytes if transfer.encoded else None,
            "upload_size_bytes": transfer.upload_size_bytes,
            "download_size_bytes": transfer.download_size_bytes,
            "noise_estimate": noise_estimate,
        }
        of_older = (model_versions.c.task_serial == task.serial) & (model_versions.c.version < version - 1)
        with_state = model_versions.c.state_digest.is_not(None)
        self._connection.execute(update(model_versions).where(of_older, with_state).values(state_digest=None))
        of_version = (model_versions.c.task_serial == task.serial) & (model_versions.c.version == version)
        changed = self._connection.execute(update(model_versions).where(of_version).values(**values))
        if not changed.rowcount:
            row = {"task_serial": task.serial, "version": version, **values}
            self._connection.execute(insert(model_versions), row)
        return self.get(task.serial, version)

    def get(self, task_serial: int, version: int) -> ModelVersion:
        """One version."""
        of_version = {"task_serial": task_serial, "version": version}
        found = self._find(ModelVersion, _MODEL, **of_version)
        if found is None:
            raise ModelNotFoundError(version)
        return found

    def page(self, task_serial: int, paging: Paging) -> Page[ModelVersion]:
        """The versions of a task's model, newest first."""
        query = select(model_versions).where(model_versions.c.task_serial == task_serial)
        rows = self._connection.execute(paging.of(query.order_by(model_versions.c.version.desc())))
        return Page([as_dataclass(ModelVersion, row) for row in rows], count_rows(self._connection, query))

    def referenced(self, digests: Collection[str]) -> set[str]:
        """The digests that are still referenced: models, and updates of open rounds.

        Updates are deleted after their aggregation, for privacy and to save space.
        """
        models = select(model_versions.c.digest).where(model_versions.c.digest.in_(digests))
        found = set(self._connection.execute(models).scalars())
        for column in (model_versions.c.state_digest, model_versions.c.encoded_digest):
            found.update(self._connection.execute(select(column).where(column.in_(digests))).scalars())
        for table in (updates, trainings):
            of_round = table.c.round_serial == rounds.c.serial
            query = select(table.c.digest).join_from(table, rounds, of_round)
            still_used = (table.c.digest.in_(digests), rounds.c.state.in_(OPEN_STATES))
            found.update(self._connection.execute(query.where(*still_used)).scalars())
        return found

    def noise_scales(self, task_serial: int) -> dict[int, float]:
        """The noise scale that was measured up to each version."""
        query = select(model_versions.c.version, model_versions.c.noise_estimate).where(
            model_versions.c.task_serial == task_serial, model_versions.c.noise_estimate.is_not(None)
        )
        return {row.version: row.noise_estimate.noise_scale for row in self._connection.execute(query)}

    def add_score(self, task: Task, version: int, part: int, score: Score) -> None:
        """Store the score of a version on one part of the validation data."""
        row = {"task_serial": task.serial, "version": version, "part": part, **vars(score)}
        self._connection.execute(insert(evaluation_parts), row)

    def scores(self, task_serial: int, version: int) -> list[Score]:
        """The scores of the evaluated parts of a version."""
        query = select(evaluation_parts).where(
            evaluation_parts.c.task_serial == task_serial, evaluation_parts.c.version == version
        )
        return self._list(Score, query.order_by(evaluation_parts.c.part))

    def add_evaluation(self, task: Task, evaluation: Evaluation) -> None:
        """Store the evaluation of a version."""
        self._connection.execute(insert(evaluations), {"task_serial": task.serial, **vars(evaluation)})

    def add_device_evaluation(
        self, task: Task, version: int, client_id: str, evaluation: DeviceEvaluation, now: datetime
    ) -> bool:
        """Add a device's evaluation of a version; false if the device has evaluated the version before."""
        key = (
            device_evaluations.c.task_serial == task.serial,
            device_evaluations.c.version == version,
            device_evaluations.c.client_id == client_id,
        )
        if self._connection.execute(select(device_evaluations.c.version).where(*key)).one_or_none():
            return False
        row = {"task_serial": task.serial, "version": version, "client_id": client_id, "received_at": now}
        self._connection.execute(insert(device_evaluations), row | vars(evaluation))
        return True

    def device_evaluations(self, task_serial: int, version: int | None = None) -> dict[int, DeviceScore]:
        """What devices measured, by version; of one version, if given."""
        query = select(device_evaluations).where(device_evaluations.c.task_serial == task_serial)
        if version is not None:
            query = query.where(device_evaluations.c.version == version)
        found: dict[int, list[DeviceEvaluation]] = {}
        for row in self._connection.execute(query):
            found.setdefault(row.version, []).append(as_dataclass(DeviceEvaluation, row))
        return {number: combine_device_evaluations(of_version) for number, of_version in found.items()}

    def set_evaluation_error(self, task: Task, version: int, error: str) -> bool:
        """Store why an evaluation failed; false if an error is already stored."""
        unknown = (
            model_versions.c.task_serial == task.serial,
            model_versions.c.version == version,
            model_versions.c.evaluation_error.is_(None),
        )
        changed = update(model_versions).where(*unknown).values(evaluation_error=error)
        return bool(self._connection.execute(changed).rowcount)

    def evaluation_errors(self, task_serial: int) -> dict[int, str]:
        """The evaluation errors by version."""
        query = select(model_versions.c.version, model_versions.c.evaluation_error).where(
            model_versions.c.task_serial == task_serial, model_versions.c.evaluation_error.is_not(None)
        )
        return {row.version: row.evaluation_error for row in self._connection.execute(query)}

    def newest(self) -> ModelVersion | None:
        """The newest version of the newest task that has one."""
        return self._find(ModelVersion, _NEWEST_MODEL)

    def evaluation(self, task_serial: int, version: int) -> Evaluation | None:
        """The evaluation of a version, if there is one."""
        return self.evaluations(task_serial).get(version)

    def evaluations(self, task_serial: int) -> dict[int, Evaluation]:
        """The evaluations by version."""
        query = select(evaluations).where(evaluations.c.task_serial == task_serial)
        return {row.version: as_dataclass(Evaluation, row) for row in self._connection.execute(query)}
