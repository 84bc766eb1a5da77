"""Hosted trainings."""

from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Select, insert, select, update

from services.domain.rounds import Round
from services.domain.trainings import Training, TrainingState
from services.errors import TrainingNotFoundError
from services.storage.ids import new_id
from services.storage.rows import as_dataclass
from services.storage.tables import rounds, trainings


class Trainings:
    """The hosted trainings in a database."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, round_: Round, client_id: str, partition: int, now: datetime) -> Training:
        """Ask for a training."""
        training_id = new_id("training")
        row = {
            "training_id": training_id,
            "round_serial": round_.serial,
            "client_id": client_id,
            "partition": partition,
            "state": TrainingState.WAITING,
            "created_at": now,
        }
        self._connection.execute(insert(trainings), row)
        return self.get(training_id)

    def get(self, training_id: str) -> Training:
        """One training."""
        row = self._connection.execute(
            _trainings().where(trainings.c.training_id == training_id)
        ).one_or_none()
        if row is None:
            raise TrainingNotFoundError(training_id)
        return as_dataclass(Training, row)

    def of_client(self, round_: Round, client_id: str) -> Training | None:
        """The training of a client in a round."""
        query = _trainings().where(
            trainings.c.round_serial == round_.serial, trainings.c.client_id == client_id
        )
        row = self._connection.execute(query).one_or_none()
        return as_dataclass(Training, row) if row else None

    def end(self, training_id: str, **values: object) -> Training:
        """Set how a training ended."""
        self._connection.execute(
            update(trainings).where(trainings.c.training_id == training_id).values(**values)
        )
        return self.get(training_id)

    def cancel(self, round_: Round, now: datetime) -> list[Training]:
        """Take back what nobody will upload any more; which they were."""
        waiting = (trainings.c.round_serial == round_.serial) & (trainings.c.state == TrainingState.WAITING)
        found = self._connection.execute(_trainings().where(waiting)).all()
        self._connection.execute(
            update(trainings).where(waiting).values(state=TrainingState.CANCELLED, ended_at=now)
        )
        return [as_dataclass(Training, row) for row in found]


def _trainings() -> Select[Any]:
    return select(trainings, rounds.c.round_id).join_from(
        trainings, rounds, rounds.c.serial == trainings.c.round_serial
    )
