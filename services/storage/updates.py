"""Clients' updates: what an upload is held against, and those that were accepted."""

from collections.abc import Sequence

from sqlalchemy import Connection, and_, bindparam, insert, select

from services.domain.rounds import AcceptedUpdate, Round, Slot
from services.domain.tasks import Task, TaskTerms
from services.errors import RoundNotFoundError
from services.storage.model_store import Blob
from services.storage.rows import PartOfRow, as_dataclass, with_values
from services.storage.tables import model_versions, rounds, slots, tasks, updates

_TERMS = PartOfRow(TaskTerms, tasks)
_TASK = PartOfRow(Task, tasks, but=["terms"])
_ROUND = PartOfRow(Round, rounds, but=["task_id"])
_MODEL = PartOfRow(Blob, model_versions)
_SLOT = PartOfRow(Slot, slots)
_AWAITED = with_values(
    select(*_TERMS.columns, *_TASK.columns, *_ROUND.columns, *_MODEL.columns, *_SLOT.columns)
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
_OF_CLIENT = with_values(select(updates), updates.c.round_serial, updates.c.client_id)
_OF_ROUND = with_values(select(updates).join_from(updates, slots), updates.c.round_serial).order_by(
    slots.c.order
)
_ADD = insert(updates)


class Updates:
    """The updates in a database."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def awaited(self, round_id: str, client_id: str) -> tuple[Task, Round, Slot | None, Blob]:
        """A round with its task and its model, and the client's slot if it has one; all of it in one look."""
        of_client = {"round_id": round_id, "client_id": client_id}
        row = self._connection.execute(_AWAITED, of_client).one_or_none()
        if row is None:
            raise RoundNotFoundError(round_id)
        values = iter(row)
        task = _TASK.read(values, terms=_TERMS.read(values))
        round_ = _ROUND.read(values, task_id=task.task_id)
        model = _MODEL.read(values)
        slot = _SLOT.read(values)
        return task, round_, slot if slot.client_id is not None else None, model

    def add(self, round_serial: int, accepted: Sequence[AcceptedUpdate]) -> None:
        """Record accepted updates."""
        rows = [{"round_serial": round_serial, **vars(one)} for one in accepted]
        self._connection.execute(_ADD, rows)

    def of_client(self, round_serial: int, client_id: str) -> AcceptedUpdate | None:
        """A client's accepted update."""
        of_client = {"round_serial": round_serial, "client_id": client_id}
        row = self._connection.execute(_OF_CLIENT, of_client).one_or_none()
        return as_dataclass(AcceptedUpdate, row) if row else None

    def of_round(self, round_serial: int) -> Sequence[AcceptedUpdate]:
        """All accepted updates of a round, in slot order."""
        rows = self._connection.execute(_OF_ROUND, {"round_serial": round_serial})
        return [as_dataclass(AcceptedUpdate, row) for row in rows]
