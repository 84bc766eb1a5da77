"""Rounds with their candidates and slots."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import groupby
from typing import Any, Unpack

import numpy as np
from sqlalchemy import Row, bindparam, case, delete, func, insert, not_, or_, select, update

from services.domain.clipping import PAST_ROUNDS, StepNorms
from services.domain.rounds import (
    DECLINES_PER_MISS,
    MAX_REJECTION_EVENTS_PER_SLOT,
    OPEN_STATES,
    UPLOAD_STATES,
    Candidate,
    CandidateOutcome,
    Round,
    RoundCell,
    RoundChange,
    RoundState,
    RoundTerms,
    Slot,
    SlotChange,
    SlotOutcome,
)
from services.domain.selection import ClientHistory
from services.domain.tasks import Clock
from services.errors import RoundNotFoundError
from services.storage.sql import (
    Page,
    Paging,
    Repository,
    Serials,
    as_dataclass,
    change_where,
    count_rows,
    insert_tuples,
    new_id,
    with_values,
)
from services.storage.tables import (
    candidates,
    clients,
    resource_reports,
    round_cells,
    rounds,
    slots,
    tasks,
)

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
_REPORT_SINCE = (
    select(resource_reports.c.serial)
    .where(
        resource_reports.c.client_serial == clients.c.serial,
        resource_reports.c.received_at >= bindparam("since", type_=resource_reports.c.received_at.type),
        or_(
            resource_reports.c.task_serial.is_(None),
            resource_reports.c.task_serial == bindparam("task_serial"),
        ),
    )
    .correlate(clients)
    .exists()
)
_UNANSWERED = select(
    with_values(
        select(candidates.c.position)
        .join_from(candidates, clients, clients.c.client_id == candidates.c.client_id)
        .where(not_(_REPORT_SINCE)),
        candidates.c.round_serial,
    ).exists()
)
_PENDING_OF = with_values(
    select(slots.c.round_serial).where(slots.c.outcome == SlotOutcome.PENDING), slots.c.client_id
)
_OPEN_FOR = _ROUNDS.where(
    ((rounds.c.state == RoundState.REQUESTING) & rounds.c.serial.in_(_ASKED) & not_(_ANSWERED))
    | (rounds.c.state.in_(UPLOAD_STATES) & rounds.c.serial.in_(_PENDING_OF))
).order_by(rounds.c.serial)
_MISSED = (SlotOutcome.LATE, SlotOutcome.REJECTED, SlotOutcome.MISSED)
_HISTORY = with_values(
    select(
        slots.c.client_id,
        func.count(),
        func.count().filter(slots.c.outcome == SlotOutcome.RECEIVED),
        func.count().filter(slots.c.outcome.in_(_MISSED)),
    )
    .join_from(slots, rounds, rounds.c.serial == slots.c.round_serial)
    .group_by(slots.c.client_id),
    rounds.c.task_serial,
)
_OUTCOMES_OF_DECLINING = (
    with_values(
        select(slots.c.client_id, slots.c.outcome)
        .join_from(slots, rounds, rounds.c.serial == slots.c.round_serial)
        .where(
            slots.c.client_id.in_(
                select(slots.c.client_id).where(slots.c.outcome == SlotOutcome.DECLINED).correlate(None)
            )
        ),
        rounds.c.task_serial,
    )
).order_by(slots.c.client_id, rounds.c.number)
_PAST_NORMS = (
    with_values(select(rounds.c.median_update_norm, rounds.c.median_statistics_norm), rounds.c.task_serial)
    .where(rounds.c.number < bindparam("number"), rounds.c.median_update_norm.is_not(None))
    .order_by(rounds.c.number.desc())
    .limit(PAST_ROUNDS)
)
_CHANGE = change_where(rounds, rounds.c.serial)
_SLOTS = with_values(select(slots), slots.c.round_serial).order_by(slots.c.cell_id, slots.c.order)
_CELLS = with_values(select(round_cells), round_cells.c.round_serial).order_by(round_cells.c.cell_id)
_CELL = with_values(select(round_cells), round_cells.c.round_serial, round_cells.c.cell_id)
_CHANGE_CELL = change_where(round_cells, round_cells.c.round_serial, round_cells.c.cell_id)
_SLOT = with_values(select(slots), slots.c.round_serial, slots.c.client_id)
_PENDING_SLOTS = with_values(
    select(func.count()).where(slots.c.outcome == SlotOutcome.PENDING), slots.c.round_serial
)
_UNCHECKED_UPLOADS = with_values(
    select(func.count()).where(slots.c.outcome == SlotOutcome.PENDING, slots.c.uploaded_at.is_not(None)),
    slots.c.round_serial,
)
_REJECTION_EVENTS = with_values(
    select(
        func.sum(
            case(
                (slots.c.rejections < MAX_REJECTION_EVENTS_PER_SLOT, slots.c.rejections),
                else_=MAX_REJECTION_EVENTS_PER_SLOT,
            )
        )
    ),
    slots.c.round_serial,
)
_WAS_SELECTED = select(
    with_values(
        select(slots.c.round_serial).join_from(slots, rounds, rounds.c.serial == slots.c.round_serial),
        rounds.c.task_serial,
        slots.c.client_id,
    ).exists()
)
_CHANGE_SLOT = change_where(slots, slots.c.round_serial, slots.c.client_id)
_SLOTS_OF = with_values(
    select(slots).where(slots.c.client_id.in_(bindparam("client_ids", expanding=True))), slots.c.round_serial
)


class Rounds(Repository):
    """The rounds in a database."""

    def add(
        self,
        task_serial: int,
        number: int,
        terms: RoundTerms,
        *,
        model_version: int,
        clients: int,
        asked: int,
        opened_at: datetime,
        window_ends_at: datetime | None,
    ) -> Round:
        """Open a round."""
        round_id = new_id("round")
        row = {
            "round_id": round_id,
            "task_serial": task_serial,
            "number": number,
            "state": RoundState.REQUESTING,
            "terms": terms,
            "model_version": model_version,
            "clients": clients,
            "asked": asked,
            "opened_at": opened_at,
            "active_at": opened_at,
            "window_ends_at": window_ends_at,
            "selected": 0,
            "received": 0,
        }
        self._connection.execute(insert(rounds), row)
        return self.get(round_id)

    def get(self, round_id: str) -> Round:
        """One round."""
        found = self._find(Round, _ROUND, round_id=round_id)
        if found is None:
            raise RoundNotFoundError(round_id)
        return found

    def id_of(self, serial: int) -> str:
        """The id of a round."""
        return str(self._connection.execute(_ID_OF, {"serial": serial}).scalar_one())

    def change(self, round_: Round, **values: Unpack[RoundChange]) -> Round:
        """Set columns of a round whose task this transaction has locked."""
        self._connection.execute(_CHANGE, {"of_serial": round_.serial, **values})
        return replace(round_, **values)

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
        return Page([as_dataclass(Round, row) for row in rows], count_rows(self._connection, query))

    def of_task(self, task_serial: int) -> list[Round]:
        """All rounds of a task, in order."""
        query = _ROUNDS.where(rounds.c.task_serial == task_serial).order_by(rounds.c.serial)
        return self._list(Round, query)

    def history(self, task_serial: int, client_ids: Sequence[str]) -> ClientHistory:
        """The history of clients in the rounds of a task, one row per id."""
        rows = self._connection.execute(_HISTORY, {"task_serial": task_serial})
        counts = {client_id: numbers for client_id, *numbers in rows}
        for client_id, missed in self._misses_by_declining(task_serial).items():
            counts[client_id][2] += missed
        columns = np.array(
            [counts.get(client_id, (0, 0, 0)) for client_id in client_ids], dtype=np.int64
        ).reshape(-1, 3)
        return ClientHistory(*columns.T)

    def _misses_by_declining(self, task_serial: int) -> dict[str, int]:
        """How many misses the declined slots of each client count as."""
        rows = self._connection.execute(_OUTCOMES_OF_DECLINING, {"task_serial": task_serial}).all()
        return {
            client_id: sum(
                len(list(run)) // DECLINES_PER_MISS
                for outcome, run in groupby(row.outcome for row in of_client)
                if outcome is SlotOutcome.DECLINED
            )
            for client_id, of_client in groupby(rows, key=lambda row: row.client_id)
        }

    def past_norms(self, round_: Round) -> list[StepNorms]:
        """The median update norms of the task's last rounds before this one, newest first."""
        of_past = {"task_serial": round_.task_serial, "number": round_.number}
        return [StepNorms(*row) for row in self._connection.execute(_PAST_NORMS, of_past)]

    def open_of(self, task_serial: int) -> Round | None:
        """The open round of a task."""
        return self._find(Round, _OPEN_OF, task_serial=task_serial)

    def last_of(self, task_serial: int) -> Round | None:
        """The task's newest round."""
        query = _ROUNDS.where(rounds.c.task_serial == task_serial).order_by(rounds.c.number.desc()).limit(1)
        return self._find(Round, query)

    def consecutive_failures(self, task_serial: int) -> int:
        """The number of consecutive failures at the end of the task's rounds."""
        of_task = rounds.c.task_serial == task_serial
        last_other = select(func.max(rounds.c.number)).where(of_task, rounds.c.state != RoundState.FAILED)
        failed = select(func.count()).where(
            of_task, rounds.c.number > func.coalesce(last_other.scalar_subquery(), 0)
        )
        return int(self._connection.execute(failed).scalar_one())

    def clients_to_notify(self, round_id: str) -> list[str]:
        """The clients with an assignment in a round that was just opened or scheduled."""
        round_ = self.get(round_id)
        if round_.state is RoundState.REQUESTING:
            return [candidate.client_id for candidate in self.candidates(round_.serial)]
        return [slot.client_id for slot in self.slots(round_.serial)]

    def open_for(self, client_id: str) -> list[Round]:
        """Open rounds that need a report or an update from a client."""
        return self._list(Round, _OPEN_FOR, client_id=client_id)

    def awaits_reports(self, round_: Round) -> bool:
        """Whether a client that was asked for its resources, and is still enrolled, has not answered."""
        asked = {"round_serial": round_.serial, "task_serial": round_.task_serial, "since": round_.opened_at}
        return bool(self._connection.execute(_UNANSWERED, asked).scalar_one())

    def in_states(self, *states: RoundState) -> list[Round]:
        """All rounds in these states."""
        return self._list(Round, _IN_STATES, states=states)

    def set_candidates(self, round_: Round, asked: Sequence[Candidate]) -> None:
        """Store the candidates; replaces earlier ones."""
        if round_.window_ends_at is not None:
            self._connection.execute(delete(candidates).where(candidates.c.round_serial == round_.serial))
        if asked:
            rows = [
                (round_.serial, position, client_id, cell_id, outcome.value, *numbers)
                for position, client_id, cell_id, outcome, *numbers in asked
            ]
            columns = ("round_serial", *Candidate._fields)
            insert_tuples(self._connection, candidates.name, columns, rows)

    def add_slots(self, round_: Round, planned: Sequence[Slot]) -> None:
        """Store the slots of the selected clients."""
        if planned:
            self._connection.execute(
                insert(slots), [{"round_serial": round_.serial, **vars(slot)} for slot in planned]
            )

    def select_candidate(self, round_: Round, client_id: str) -> None:
        """Record that a candidate was selected after all."""
        of_client = (candidates.c.round_serial == round_.serial) & (candidates.c.client_id == client_id)
        self._connection.execute(
            update(candidates).where(of_client).values(outcome=CandidateOutcome.SELECTED, cost_ns=None)
        )

    def add_cells(self, round_: Round, cells: Iterable[RoundCell]) -> None:
        """Record the cells of a round, and its resource blocks there."""
        rows = [{"round_serial": round_.serial, **vars(cell)} for cell in cells]
        if rows:
            self._connection.execute(insert(round_cells), rows)

    def change_cells(self, round_: Round, cells: Iterable[RoundCell]) -> None:
        """Record how long the schedule of each cell takes."""
        rows = [
            {
                "of_round_serial": round_.serial,
                "of_cell_id": cell.cell_id,
                "distribution_ns": cell.distribution_ns,
                "elapsed_ns": cell.elapsed_ns,
            }
            for cell in cells
        ]
        if rows:
            self._connection.execute(_CHANGE_CELL, rows)

    def cells(self, round_serial: int) -> list[RoundCell]:
        """The cells of a round, in the order of their ids."""
        return self._list(RoundCell, _CELLS, round_serial=round_serial)

    def cell(self, round_serial: int, cell_id: str) -> RoundCell:
        """One cell of a round."""
        row = self._connection.execute(_CELL, {"round_serial": round_serial, "cell_id": cell_id}).one()
        return as_dataclass(RoundCell, row)

    def busy_clients(self, task_serial: int) -> Serials:
        """The serials of clients with a pending slot in another task's open round on the wall clock."""
        collecting = (
            select(rounds.c.serial, tasks.c.terms)
            .join_from(rounds, tasks, tasks.c.serial == rounds.c.task_serial)
            .where(rounds.c.state.in_(UPLOAD_STATES), rounds.c.task_serial != task_serial)
        )
        found = self._connection.execute(collecting).all()
        query = (
            select(clients.c.serial)
            .distinct()
            .join_from(slots, clients, clients.c.client_id == slots.c.client_id)
            .where(
                slots.c.round_serial.in_([row.serial for row in found if row.terms.clock is Clock.WALL]),
                slots.c.outcome == SlotOutcome.PENDING,
            )
        )
        return np.array(self._connection.execute(query).scalars().all(), dtype=np.int64)

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

    def serials_of_candidates(self, round_serial: int) -> dict[str, int]:
        """The serials of the candidates that are still enrolled, by their ids."""
        query = (
            select(candidates.c.client_id, clients.c.serial)
            .join_from(candidates, clients, clients.c.client_id == candidates.c.client_id)
            .where(candidates.c.round_serial == round_serial)
        )
        return {client_id: serial for client_id, serial in self._connection.execute(query)}  # noqa: C416

    def slots(self, round_serial: int) -> list[Slot]:
        """The slots in the order of cells, those of a cell in upload order."""
        return self._list(Slot, _SLOTS, round_serial=round_serial)

    def was_selected(self, task_serial: int, client_id: str) -> bool:
        """Whether a client has had a slot in a round of a task."""
        of_client = {"task_serial": task_serial, "client_id": client_id}
        return bool(self._connection.execute(_WAS_SELECTED, of_client).scalar_one())

    def slots_in(self, cell_id: str, round_serials: Sequence[int]) -> list[tuple[int, Slot]]:
        """The slots of these rounds in one cell, each with the serial of its round."""
        query = (
            select(slots)
            .where(slots.c.cell_id == cell_id, slots.c.round_serial.in_(round_serials))
            .order_by(slots.c.round_serial, slots.c.order)
        )
        return [(row.round_serial, as_dataclass(Slot, row)) for row in self._connection.execute(query)]

    def slot(self, round_serial: int, client_id: str) -> Slot | None:
        """A client's slot."""
        of_client = {"round_serial": round_serial, "client_id": client_id}
        return self._find(Slot, _SLOT, **of_client)

    def change_slot(self, round_serial: int, client_id: str, **values: Unpack[SlotChange]) -> None:
        """Set columns of a slot."""
        of_client = {"of_round_serial": round_serial, "of_client_id": client_id}
        self._connection.execute(_CHANGE_SLOT, {**of_client, **values})

    def slots_of(self, round_serial: int, client_ids: Sequence[str]) -> dict[str, Slot]:
        """The slots of these clients, by their ids."""
        of_clients = {"round_serial": round_serial, "client_ids": client_ids}
        rows = self._connection.execute(_SLOTS_OF, of_clients)
        return {row.client_id: as_dataclass(Slot, row) for row in rows}

    def change_slots(self, round_serial: int, values: Mapping[str, SlotChange]) -> None:
        """Set the same columns of several slots, with values per client."""
        rows = [
            {"of_round_serial": round_serial, "of_client_id": client_id, **values[client_id]}
            for client_id in values
        ]
        self._connection.execute(_CHANGE_SLOT, rows)

    def settle_slots(self, round_serial: int) -> None:
        """Set the outcome of every pending slot to rejected or missed."""
        pending = (slots.c.round_serial == round_serial) & (slots.c.outcome == SlotOutcome.PENDING)
        settled = update(slots).where(pending).values(grant_expires_ns=None)
        rejected = settled.where(slots.c.rejections > 0).values(outcome=SlotOutcome.REJECTED)
        self._connection.execute(rejected)
        self._connection.execute(settled.values(outcome=SlotOutcome.MISSED))

    def pending_slots(self, round_serial: int) -> int:
        """The number of slots without an outcome."""
        return int(self._connection.execute(_PENDING_SLOTS, {"round_serial": round_serial}).scalar_one())

    def unchecked_uploads(self, round_serial: int) -> int:
        """The number of pending slots whose upload has arrived and is not checked yet."""
        unchecked = self._connection.execute(_UNCHECKED_UPLOADS, {"round_serial": round_serial})
        number: int = unchecked.scalar_one()
        return number

    def rejection_events(self, round_serial: int) -> int:
        """The number of rejection events of its slots, without the limit per round."""
        return int(self._connection.execute(_REJECTION_EVENTS, {"round_serial": round_serial}).scalar_one())


def _candidate(row: Row[Any]) -> Candidate:
    return Candidate(*(getattr(row, name) for name in Candidate._fields))
