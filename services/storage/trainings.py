"""Hosted trainings."""

from datetime import datetime

from sqlalchemy import Connection, insert, select, update

from services.domain.rounds import Round
from services.domain.trainings import Training, TrainingState
from services.errors import TrainingNotFoundError
from services.storage.ids import new_id
from services.storage.rows import as_dataclass, change_where, with_values
from services.storage.tables import rounds, trainings

_TRAININGS = select(trainings, rounds.c.round_id).join_from(
    trainings, rounds, rounds.c.serial == trainings.c.round_serial
)
_TRAINING = with_values(_TRAININGS, trainings.c.training_id)
_OF_CLIENT = with_values(_TRAININGS, trainings.c.round_serial, trainings.c.client_id)
_ADD = insert(trainings)
_CHANGE = change_where(trainings, trainings.c.training_id)


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
        self._connection.execute(_ADD, row)
        return self.get(training_id)

    def get(self, training_id: str) -> Training:
        """One training."""
        row = self._connection.execute(_TRAINING, {"training_id": training_id}).one_or_none()
        if row is None:
            raise TrainingNotFoundError(training_id)
        return as_dataclass(Training, row)

    def of_client(self, round_: Round, client_id: str) -> Training | None:
        """The training of a client in a round."""
        of_client = {"round_serial": round_.serial, "client_id": client_id}
        row = self._connection.execute(_OF_CLIENT, of_client).one_or_none()
        return as_dataclass(Training, row) if row else None

    def end(self, training_id: str, **values: object) -> Training:
        """Set how a training ended."""
        self._connection.execute(_CHANGE, {"of_training_id": training_id, **values})
        return self.get(training_id)

    def cancel(self, round_: Round, now: datetime) -> list[Training]:
        """Take back what nobody will upload any more; which they were."""
        waiting = (trainings.c.round_serial == round_.serial) & (trainings.c.state == TrainingState.WAITING)
        found = self._connection.execute(_TRAININGS.where(waiting)).all()
        self._connection.execute(
            update(trainings).where(waiting).values(state=TrainingState.CANCELLED, ended_at=now)
        )
        return [as_dataclass(Training, row) for row in found]
