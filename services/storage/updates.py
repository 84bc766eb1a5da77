"""Updates of clients, and the hosted trainings that produce updates of simulated clients."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import and_, bindparam, insert, select, update

from services.domain.jobs import Training, TrainingState
from services.domain.rounds import AcceptedUpdate, Round, Slot
from services.domain.tasks import Task
from services.errors import RoundNotFoundError, TrainingNotFoundError
from services.storage.model_store import Blob
from services.storage.sql import Repository, RowPart, as_dataclass, change_where, new_id, with_values
from services.storage.tables import model_versions, rounds, slots, tasks, trainings, updates

_TASK = RowPart(Task, tasks)
_ROUND = RowPart(Round, rounds, but=["task_id"])
_MODEL = RowPart(Blob, model_versions)
_SLOT = RowPart(Slot, slots)
_UPLOAD_CONTEXT = with_values(
    select(*_TASK.columns, *_ROUND.columns, *_MODEL.columns, *_SLOT.columns)
    .join_from(rounds, tasks, tasks.c.serial == rounds.c.task_serial)
    .join(
        model_versions,
        and_(
            model_versions.c.task_serial == rounds.c.task_serial,
            model_versions.c.version == rounds.c.model_version,
        ),
    )
    .outerjoin(
        slots, and_(slots.c.round_serial == rounds.c.serial, slots.c.client_id == bindparam("client_id"))
    ),
    rounds.c.round_id,
)
_UPDATE_OF_CLIENT = with_values(select(updates), updates.c.round_serial, updates.c.client_id)
_UPDATES_OF_ROUND = with_values(select(updates).join_from(updates, slots), updates.c.round_serial).order_by(
    slots.c.cell_id, slots.c.order
)
_ADD_UPDATES = insert(updates)


class Updates(Repository):
    """The updates in a database."""

    def upload_context(self, round_id: str, client_id: str) -> tuple[Task, Round, Slot | None, Blob]:
        """A round with its task, its model and the client's slot, in one query."""
        of_client = {"round_id": round_id, "client_id": client_id}
        row = self._connection.execute(_UPLOAD_CONTEXT, of_client).one_or_none()
        if row is None:
            raise RoundNotFoundError(round_id)
        values = iter(row)
        task = _TASK.read(values)
        round_ = _ROUND.read(values, task_id=task.task_id)
        model = _MODEL.read(values)
        slot = _SLOT.read(values)
        return task, round_, slot if slot.client_id is not None else None, model

    def add(self, round_serial: int, accepted: Sequence[AcceptedUpdate]) -> None:
        """Record accepted updates."""
        rows = [{"round_serial": round_serial, **vars(update_)} for update_ in accepted]
        self._connection.execute(_ADD_UPDATES, rows)

    def of_client(self, round_serial: int, client_id: str) -> AcceptedUpdate | None:
        """A client's accepted update."""
        of_client = {"round_serial": round_serial, "client_id": client_id}
        return self._find(AcceptedUpdate, _UPDATE_OF_CLIENT, **of_client)

    def of_round(self, round_serial: int) -> Sequence[AcceptedUpdate]:
        """All accepted updates of a round, in slot order."""
        return self._list(AcceptedUpdate, _UPDATES_OF_ROUND, round_serial=round_serial)


_TRAININGS = select(trainings, rounds.c.round_id).join_from(
    trainings, rounds, rounds.c.serial == trainings.c.round_serial
)
_TRAINING = with_values(_TRAININGS, trainings.c.training_id)
_TRAINING_OF_CLIENT = with_values(_TRAININGS, trainings.c.round_serial, trainings.c.client_id)
_ADD_TRAINING = insert(trainings)
_CHANGE_TRAINING = change_where(trainings, trainings.c.training_id)


class Trainings(Repository):
    """The hosted trainings in a database."""

    def add(self, round_: Round, client_id: str, partition: int, now: datetime) -> Training:
        """Add a waiting training."""
        training_id = new_id("training")
        row = {
            "training_id": training_id,
            "round_serial": round_.serial,
            "client_id": client_id,
            "partition": partition,
            "state": TrainingState.WAITING,
            "created_at": now,
        }
        self._connection.execute(_ADD_TRAINING, row)
        return self.get(training_id)

    def get(self, training_id: str) -> Training:
        """One training."""
        found = self._find(Training, _TRAINING, training_id=training_id)
        if found is None:
            raise TrainingNotFoundError(training_id)
        return found

    def of_client(self, round_: Round, client_id: str) -> Training | None:
        """The training of a client in a round."""
        of_client = {"round_serial": round_.serial, "client_id": client_id}
        return self._find(Training, _TRAINING_OF_CLIENT, **of_client)

    def end(
        self,
        training_id: str,
        *,
        state: TrainingState,
        ended_at: datetime,
        digest: str | None = None,
        size_bytes: int | None = None,
        error: str | None = None,
    ) -> Training:
        """Record the end of a training."""
        values = {
            "state": state,
            "ended_at": ended_at,
            "digest": digest,
            "size_bytes": size_bytes,
            "error": error,
        }
        self._connection.execute(_CHANGE_TRAINING, {"of_training_id": training_id, **values})
        return self.get(training_id)

    def cancel(self, round_: Round, now: datetime) -> list[Training]:
        """Cancel the waiting trainings of a round; returns them."""
        waiting = (trainings.c.round_serial == round_.serial) & (trainings.c.state == TrainingState.WAITING)
        found = self._connection.execute(_TRAININGS.where(waiting)).all()
        self._connection.execute(
            update(trainings).where(waiting).values(state=TrainingState.CANCELLED, ended_at=now)
        )
        return [as_dataclass(Training, row) for row in found]
