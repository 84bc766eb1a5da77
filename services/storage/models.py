"""Model versions, their evaluations, and how a version travels: the encoded file and the scheduled sizes."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import insert, select, update

from services.domain.noise_scale import NoiseEstimate
from services.domain.rounds import OPEN_STATES
from services.domain.tasks import (
    DeviceEvaluation,
    DeviceScore,
    Evaluation,
    Score,
    Task,
    TaskTerms,
    combine_device_evaluations,
)
from services.errors import ModelNotFoundError
from services.storage.model_store import Blob, ModelStore
from services.storage.sql import (
    Page,
    Paging,
    Repository,
    as_dataclass,
    count_rows,
    with_values,
)
from services.storage.tables import (
    device_evaluations,
    evaluation_parts,
    evaluations,
    model_versions,
    rounds,
    tasks,
    trainings,
    updates,
)
from services.tensors.encoded_files import encode_file
from services.tensors.encodings import make_encoding, scheduled_size
from services.tensors.encodings.float32 import Float32
from services.tensors.layout import read_layout


@dataclass(frozen=True)
class Transfer:
    """How a version travels; without anything, as it is."""

    encoded: Blob | None = None
    """The file that clients download, if the model travels encoded."""
    upload_size_bytes: int | None = None
    """What is scheduled for an update, if updates travel encoded."""
    download_size_bytes: int | None = None
    """What is scheduled for the download, if the model travels encoded."""


def prepare_transfer(models: ModelStore, terms: TaskTerms, model: Blob) -> Transfer:
    """Make and keep the file that clients will download, and find the sizes that are to be scheduled.

    The rounding depends on the model only, so that the file is the same each time.
    """
    upload_size_bytes = download_size_bytes = encoded = None
    update_encoding = make_encoding(terms.update_encoding, terms.topk_fraction)
    if update_encoding.name != Float32.name:
        upload_size_bytes = update_encoding.encoded_size(read_layout(models.path_of(model.digest)))
    model_encoding = make_encoding(terms.model_encoding, terms.topk_fraction)
    if model_encoding.name != Float32.name:
        content = models.path_of(model.digest).read_bytes()
        with models.receive() as incoming:
            for piece in encode_file(model_encoding, content, seed=int(model.digest[:15], 16)):
                incoming.write(piece)
            encoded = incoming.save()
        download_size_bytes = encoded.size_bytes
    if terms.model_size_bytes is not None:
        upload_size_bytes = scheduled_size(update_encoding, terms.model_size_bytes)
        download_size_bytes = scheduled_size(model_encoding, terms.model_size_bytes)
    return Transfer(encoded, upload_size_bytes, download_size_bytes)


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
