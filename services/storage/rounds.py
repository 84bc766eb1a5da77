"""Rounds with their candidates and slots."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from sqlalchemy import Connection, Row, bindparam, delete, func, insert, not_, or_, select, update

from services.domain.rounds import (
    OPEN_STATES,
    UPLOAD_STATES,
    Candidate,
    CandidateOutcome,
    Round,
    RoundState,
    Slot,
    SlotOutcome,
)
from services.errors import RoundNotFoundError
from services.storage.ids import new_id
from services.storage.rows import (
    Page,
    Paging,
    as_dataclass,
    change_where,
    count,
    insert_tuples,
    with_values,
)
from services.storage.tables import candidates, clients, resource_reports, rounds, slots, tasks

_ROUNDS = select(rounds, tasks.c.task_id).join_from(rounds, tasks, tasks.c.serial == rounds.c.task_serial)
_ROUND = with_values(_ROUNDS, rounds.c.round_id)
_ID_OF = with_values(select(rounds.c.round_id), rounds.c.serial)
_IN_STATES = _ROUNDS.where(rounds.c.state.in_(bindparam("states", expanding=True))).order_by(rounds.c.serial)
_OPEN_OF = with_values(_ROUNDS.where(rounds.c.state.in_(OPEN_STATES)), rounds.c.task_serial)
_ANSWERED = (
    with_values(
        select(resource_reports.c.serial)
        .join_from(resource_reports, clients, clients.c.serial == resource_reports.c.client_serial)
        .where(
            resource_reports.c.received_at >= rounds.c.opened_at,
            or_(
                resource_reports.c.task_serial.is_(None),
                resource_reports.c.task_serial == rounds.c.task_serial,
            ),
        ),
        clients.c.client_id,
    )
    .correlate(rounds)
    .exists()
)
_ASKED = with_values(
    select(candidates.c.round_serial).where(candidates.c.outcome == CandidateOutcome.ASKED),
    candidates.c.client_id,
)
_PENDING_OF = with_values(
    select(slots.c.round_serial).where(slots.c.outcome == SlotOutcome.PENDING), slots.c.client_id
)
_OPEN_FOR = _ROUNDS.where(
    ((rounds.c.state == RoundState.REQUESTING) & rounds.c.serial.in_(_ASKED) & not_(_ANSWERED))
    | (rounds.c.state.in_(UPLOAD_STATES) & rounds.c.serial.in_(_PENDING_OF))
).order_by(rounds.c.serial)
_CHANGE = change_where(rounds, rounds.c.serial)
_SLOTS = with_values(select(slots), slots.c.round_serial).order_by(slots.c.order)
_SLOT = with_values(select(slots), slots.c.round_serial, slots.c.client_id)
_PENDING_SLOTS = with_values(
    select(func.count()).where(slots.c.outcome == SlotOutcome.PENDING), slots.c.round_serial
)
_CHANGE_SLOT = change_where(slots, slots.c.round_serial, slots.c.client_id)
_SLOTS_OF = with_values(
    select(slots).where(slots.c.client_id.in_(bindparam("client_ids", expanding=True))), slots.c.round_serial
)


class Rounds:
    """The rounds in a database."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, task_serial: int, number: int, **values: object) -> Round:
        """Open a round."""
        round_id = new_id("round")
        row = {
            "round_id": round_id,
            "task_serial": task_serial,
            "number": number,
            "state": RoundState.REQUESTING,
            "selected": 0,
            "received": 0,
            **values,
        }
        self._connection.execute(insert(rounds), row)
        return self.get(round_id)

    def get(self, round_id: str) -> Round:
        """One round."""
        row = self._connection.execute(_ROUND, {"round_id": round_id}).one_or_none()
        if row is None:
            raise RoundNotFoundError(round_id)
        return as_dataclass(Round, row)

    def id_of(self, serial: int) -> str:
        """The id of a round."""
        round_id: str = self._connection.execute(_ID_OF, {"serial": serial}).scalar_one()
        return round_id

    def change(self, round_: Round, **values: object) -> Round:
        """Set columns of a round whose task this transaction has locked."""
        self._connection.execute(_CHANGE, {"of_serial": round_.serial, **values})
        return replace(round_, **values)  # type: ignore[arg-type]

    def page(
        self,
        paging: Paging,
        *,
        task_id: str | None = None,
        state: RoundState | None = None,
        client_id: str | None = None,
    ) -> Page[Round]:
        """Rounds, newest first; of a task, in a state, or with a slot for a client."""
        query = _ROUNDS
        if task_id is not None:
            query = query.where(tasks.c.task_id == task_id)
        if state is not None:
            query = query.where(rounds.c.state == state)
        if client_id is not None:
            with_client = select(slots.c.round_serial).where(slots.c.client_id == client_id)
            query = query.where(rounds.c.serial.in_(with_client))
        rows = self._connection.execute(paging.of(query.order_by(rounds.c.serial.desc())))
        return Page([as_dataclass(Round, row) for row in rows], count(self._connection, query))

    def of_task(self, task_serial: int) -> list[Round]:
        """All rounds of a task, in order."""
        query = _ROUNDS.where(rounds.c.task_serial == task_serial).order_by(rounds.c.serial)
        return [as_dataclass(Round, row) for row in self._connection.execute(query)]

    def open_of(self, task_serial: int) -> Round | None:
        """The task's round that is not over."""
        row = self._connection.execute(_OPEN_OF, {"task_serial": task_serial}).one_or_none()
        return as_dataclass(Round, row) if row else None

    def last_of(self, task_serial: int) -> Round | None:
        """The task's newest round."""
        query = _ROUNDS.where(rounds.c.task_serial == task_serial).order_by(rounds.c.number.desc()).limit(1)
        row = self._connection.execute(query).one_or_none()
        return as_dataclass(Round, row) if row else None

    def wanted_clients(self, round_id: str) -> list[str]:
        """Of whom a round that has just been opened or scheduled wants something."""
        round_ = self.get(round_id)
        if round_.state is RoundState.REQUESTING:
            return [one.client_id for one in self.candidates(round_.serial)]
        return [slot.client_id for slot in self.slots(round_.serial)]

    def open_for(self, client_id: str) -> list[Round]:
        """Open rounds that want something of a client: a report, or the update of its pending slot."""
        rows = self._connection.execute(_OPEN_FOR, {"client_id": client_id})
        return [as_dataclass(Round, row) for row in rows]

    def in_states(self, *states: RoundState) -> list[Round]:
        """All rounds in these states."""
        rows = self._connection.execute(_IN_STATES, {"states": states})
        return [as_dataclass(Round, row) for row in rows]

    def set_candidates(self, round_: Round, asked: Sequence[Candidate]) -> None:
        """Record the candidates, in place of those recorded before."""
        if round_.window_ends_at is not None:
            self._connection.execute(delete(candidates).where(candidates.c.round_serial == round_.serial))
        if asked:
            rows = [
                (round_.serial, position, client_id, outcome.value, *numbers)
                for position, client_id, outcome, *numbers in asked
            ]
            columns = ("round_serial", *Candidate._fields)
            insert_tuples(self._connection, candidates.name, columns, rows)

    def add_slots(self, round_: Round, planned: Sequence[Slot]) -> None:
        """Record who was selected."""
        if planned:
            self._connection.execute(
                insert(slots), [{"round_serial": round_.serial, **vars(slot)} for slot in planned]
            )

    def candidates(self, round_serial: int) -> list[Candidate]:
        """The candidates in the order they were drawn."""
        query = select(candidates).where(candidates.c.round_serial == round_serial)
        rows = self._connection.execute(query.order_by(candidates.c.position))
        return [_candidate(row) for row in rows]

    def candidate(self, round_serial: int, client_id: str) -> Candidate | None:
        """One candidate."""
        query = select(candidates).where(
            candidates.c.round_serial == round_serial, candidates.c.client_id == client_id
        )
        row = self._connection.execute(query).one_or_none()
        return _candidate(row) if row else None

    def asked_clients(self, round_serial: int) -> tuple[npt.NDArray[np.int64], list[str], list[str]]:
        """Serials and ids of the candidates still enrolled, in the order drawn; ids of those that are not."""
        query = (
            select(clients.c.serial, candidates.c.client_id)
            .outerjoin_from(candidates, clients, clients.c.client_id == candidates.c.client_id)
            .where(candidates.c.round_serial == round_serial)
            .order_by(candidates.c.position)
        )
        rows = self._connection.execute(query).all()
        enrolled = [row for row in rows if row.serial is not None]
        return (
            np.array([row.serial for row in enrolled], dtype=np.int64),
            [row.client_id for row in enrolled],
            [row.client_id for row in rows if row.serial is None],
        )

    def slots(self, round_serial: int) -> list[Slot]:
        """The slots in upload order."""
        rows = self._connection.execute(_SLOTS, {"round_serial": round_serial})
        return [as_dataclass(Slot, row) for row in rows]

    def slot(self, round_serial: int, client_id: str) -> Slot | None:
        """A client's slot."""
        of_client = {"round_serial": round_serial, "client_id": client_id}
        row = self._connection.execute(_SLOT, of_client).one_or_none()
        return as_dataclass(Slot, row) if row else None

    def change_slot(self, round_serial: int, client_id: str, **values: object) -> None:
        """Set columns of a slot."""
        of_client = {"of_round_serial": round_serial, "of_client_id": client_id}
        self._connection.execute(_CHANGE_SLOT, of_client | values)

    def slots_of(self, round_serial: int, client_ids: Sequence[str]) -> dict[str, Slot]:
        """The slots of these clients, by their ids."""
        of_clients = {"round_serial": round_serial, "client_ids": client_ids}
        rows = self._connection.execute(_SLOTS_OF, of_clients)
        return {row.client_id: as_dataclass(Slot, row) for row in rows}

    def change_slots(self, round_serial: int, values: Mapping[str, Mapping[str, object]]) -> None:
        """Set the same columns of several slots, for each client to values of its own."""
        rows = [{"of_round_serial": round_serial, "of_client_id": one, **values[one]} for one in values]
        self._connection.execute(_CHANGE_SLOT, rows)

    def settle_slots(self, round_serial: int) -> None:
        """Give every pending slot its outcome: nothing more is accepted."""
        pending = (slots.c.round_serial == round_serial) & (slots.c.outcome == SlotOutcome.PENDING)
        rejected = update(slots).where(pending, slots.c.rejections > 0).values(outcome=SlotOutcome.REJECTED)
        self._connection.execute(rejected)
        self._connection.execute(update(slots).where(pending).values(outcome=SlotOutcome.MISSED))

    def pending_slots(self, round_serial: int) -> int:
        """How many slots have no outcome yet."""
        pending: int = self._connection.execute(_PENDING_SLOTS, {"round_serial": round_serial}).scalar_one()
        return pending


def _candidate(row: Row[Any]) -> Candidate:
    return Candidate(*(getattr(row, name) for name in Candidate._fields))
