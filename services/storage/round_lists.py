"""Candidates and slots of a round, a page at a time, and how often each client was selected."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from sqlalchemy import ColumnElement, Row, Select, and_, bindparam, func, select

from services.domain.rounds import Candidate, CandidateOutcome, Round, Slot, SlotOutcome
from services.storage.sql import Repository, as_dataclass, with_values
from services.storage.tables import candidates, clients, rounds, slots, tasks

_NEWEST_ROUND = (
    select(rounds, tasks.c.task_id)
    .join_from(rounds, tasks, tasks.c.serial == rounds.c.task_serial)
    .order_by(rounds.c.serial.desc())
    .limit(1)
)
_TASKS = (
    select(tasks.c.task_id, tasks.c.terms)
    .where(tasks.c.rounds > 0)
    .order_by(tasks.c.serial.desc())
    .limit(bindparam("most"))
)
_OF_ROUND = with_values(
    select(clients.c.serial).join_from(slots, clients, clients.c.client_id == slots.c.client_id),
    slots.c.round_serial,
).order_by(slots.c.cell_id, slots.c.order)
_times_selected = (
    with_values(
        select(slots.c.client_id, func.count().label("times")).join_from(
            rounds, slots, slots.c.round_serial == rounds.c.serial
        ),
        rounds.c.task_serial,
    )
    .group_by(slots.c.client_id)
    .subquery()
)
_COUNTS = select(clients.c.serial, _times_selected.c.times).join_from(
    _times_selected, clients, clients.c.client_id == _times_selected.c.client_id
)


class Selections(Repository):
    """The selections in a database. Removed clients are omitted."""

    def newest_round(self) -> Round | None:
        """The newest round of all tasks."""
        return self._find(Round, _NEWEST_ROUND)

    def tasks(self, most: int) -> list[tuple[str, str]]:
        """Ids and names of the tasks that have a round, newest first, at most ``most``."""
        return [(row.task_id, row.terms.name) for row in self._connection.execute(_TASKS, {"most": most})]

    def of_round(self, round_serial: int) -> npt.NDArray[np.int64]:
        """The serials of those selected in a round, in upload order."""
        return _column(self._all(_OF_ROUND, round_serial=round_serial), 0)

    def counts(self, task_serial: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The serials of all clients that a task selected, and how often."""
        rows = self._all(_COUNTS, task_serial=task_serial)
        return _column(rows, 0), _column(rows, 1)

    def _all(self, query: Select[Any], **values: int) -> "list[Row[Any]]":
        return list(self._connection.execute(query, values))


def _column(rows: "list[Row[Any]]", index: int) -> npt.NDArray[np.int64]:
    return np.array([row[index] for row in rows], dtype=np.int64)


DISCARDED: Final = "discarded"
"""The outcome of a slot whose update was received and then not aggregated; the others are those of slots."""

_was_discarded = and_(slots.c.outcome == SlotOutcome.REJECTED, slots.c.elapsed_s.is_not(None))
_of_round = candidates.c.round_serial == bindparam("serial")

_NEIGHBOURS = select(rounds.c.number, rounds.c.round_id).where(
    rounds.c.task_serial == bindparam("task_serial"),
    rounds.c.number.in_(bindparam("numbers", expanding=True)),
)
_SLOT_OUTCOMES = (
    select(slots.c.outcome, _was_discarded.label("discarded"), func.count().label("number"))
    .where(slots.c.round_serial == bindparam("serial"))
    .group_by(slots.c.outcome, "discarded")
)
_CANDIDATE_OUTCOMES = (
    select(candidates.c.outcome, func.count().label("number"))
    .where(_of_round, candidates.c.outcome.in_(bindparam("outcomes", expanding=True)))
    .group_by(candidates.c.outcome)
)
_SELECTED = (
    select(
        slots,
        candidates.c.throughput_bps,
        candidates.c.compute_samples_per_s,
        candidates.c.expected_throughput_bps,
        candidates.c.expected_compute_samples_per_s,
    )
    .join_from(slots, candidates)
    .where(slots.c.round_serial == bindparam("serial"))
    .order_by(slots.c.cell_id, slots.c.order)
)
_WITHOUT_SLOT = (
    select(*(candidates.c[name] for name in Candidate._fields))
    .where(_of_round, candidates.c.outcome.in_(bindparam("outcomes", expanding=True)))
    .order_by(candidates.c.position)
)


@dataclass(frozen=True)
class SelectedClient:
    """A slot, and what its client had reported."""

    slot: Slot
    throughput_bps: float | None
    compute_samples_per_s: float | None
    expected_throughput_bps: float | None = None
    """What the round was planned with; none: with what the client reported."""
    expected_compute_samples_per_s: float | None = None


def outcome_of(slot: Slot) -> str:
    """The outcome of a slot, with discarded updates apart from rejected ones."""
    discarded = slot.outcome is SlotOutcome.REJECTED and slot.elapsed_s is not None
    return DISCARDED if discarded else slot.outcome.value


class RoundLists(Repository):
    """The lists of the rounds in a database."""

    def neighbours(self, round_: Round) -> tuple[str | None, str | None]:
        """The ids of the rounds before and after one in its task."""
        numbers = [round_.number - 1, round_.number + 1]
        found = self._connection.execute(_NEIGHBOURS, {"task_serial": round_.task_serial, "numbers": numbers})
        ids = {row.number: row.round_id for row in found}
        return ids.get(numbers[0]), ids.get(numbers[1])

    def count_outcomes(self, round_: Round) -> dict[str, int]:
        """The number of slots of a round by outcome, including ``DISCARDED``."""
        rows = self._connection.execute(_SLOT_OUTCOMES, {"serial": round_.serial})
        return {DISCARDED if row.discarded else row.outcome.value: row.number for row in rows}

    def count_without_slot(self, round_: Round) -> dict[str, int]:
        """How many candidates of a round have no slot, by outcome."""
        outcomes = _without_slot(round_)
        rows = self._connection.execute(_CANDIDATE_OUTCOMES, {"serial": round_.serial, "outcomes": outcomes})
        return {row.outcome.value: row.number for row in rows}

    def selected(
        self, round_: Round, limit: int, offset: int, outcome: str | None = None
    ) -> list[SelectedClient]:
        """Slots in upload order, all of a round or those with one outcome."""
        query = _SELECTED if outcome is None else _SELECTED.where(_has_outcome(outcome))
        rows = self._connection.execute(query.limit(limit).offset(offset), {"serial": round_.serial})
        return [
            SelectedClient(
                as_dataclass(Slot, row),
                row.throughput_bps,
                row.compute_samples_per_s,
                row.expected_throughput_bps,
                row.expected_compute_samples_per_s,
            )
            for row in rows
        ]

    def without_slot(
        self, round_: Round, limit: int, offset: int, outcome: CandidateOutcome | None = None
    ) -> list[Candidate]:
        """Candidates that have no slot, in the order they were drawn: all, or those with one outcome."""
        outcomes = [candidate for candidate in _without_slot(round_) if outcome in (None, candidate)]
        rows = self._connection.execute(
            _WITHOUT_SLOT.limit(limit).offset(offset), {"serial": round_.serial, "outcomes": outcomes}
        )
        return [Candidate(*row) for row in rows]


def _has_outcome(outcome: str) -> ColumnElement[bool]:
    if outcome == DISCARDED:
        return _was_discarded
    return and_(slots.c.outcome == SlotOutcome(outcome), ~_was_discarded)


def _without_slot(round_: Round) -> list[CandidateOutcome]:
    """Outcomes without a slot: also SELECTED, if the round failed because of too few clients."""
    return [
        outcome
        for outcome in CandidateOutcome
        if outcome is not CandidateOutcome.SELECTED or not round_.selected
    ]
