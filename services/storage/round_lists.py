"""Who took part in a round, a page at a time: the lists of a round with ten thousand candidates are long."""

from dataclasses import dataclass
from typing import Final

from sqlalchemy import ColumnElement, Connection, and_, bindparam, func, select

from services.domain.rounds import Candidate, CandidateOutcome, Round, Slot, SlotOutcome
from services.storage.rows import as_dataclass
from services.storage.tables import candidates, rounds, slots

LEFT_OUT: Final = "left out"
"""The fate of a slot whose update was received and then not aggregated; other fates are slot outcomes."""

_was_left_out = and_(slots.c.outcome == SlotOutcome.REJECTED, slots.c.elapsed_s.is_not(None))
_of_round = candidates.c.round_serial == bindparam("serial")

_NEIGHBOURS = select(rounds.c.number, rounds.c.round_id).where(
    rounds.c.task_serial == bindparam("task_serial"),
    rounds.c.number.in_(bindparam("numbers", expanding=True)),
)
_FATES = (
    select(slots.c.outcome, _was_left_out.label("left_out"), func.count().label("number"))
    .where(slots.c.round_serial == bindparam("serial"))
    .group_by(slots.c.outcome, "left_out")
)
_OUTCOMES = (
    select(candidates.c.outcome, func.count().label("number"))
    .where(_of_round, candidates.c.outcome.in_(bindparam("outcomes", expanding=True)))
    .group_by(candidates.c.outcome)
)
_SELECTED = (
    select(slots, candidates.c.throughput_bps, candidates.c.compute_samples_per_s)
    .join_from(slots, candidates)
    .where(slots.c.round_serial == bindparam("serial"))
    .order_by(slots.c.order)
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


def fate_of(slot: Slot) -> str:
    """What became of a slot."""
    left_out = slot.outcome is SlotOutcome.REJECTED and slot.elapsed_s is not None
    return LEFT_OUT if left_out else slot.outcome.value


class RoundLists:
    """The lists of the rounds in a database."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def neighbours(self, round_: Round) -> tuple[str | None, str | None]:
        """The ids of the rounds before and after one in its task."""
        numbers = [round_.number - 1, round_.number + 1]
        found = self._connection.execute(_NEIGHBOURS, {"task_serial": round_.task_serial, "numbers": numbers})
        ids = {row.number: row.round_id for row in found}
        return ids.get(numbers[0]), ids.get(numbers[1])

    def count_fates(self, round_: Round) -> dict[str, int]:
        """How many slots of a round have which outcome, with ``LEFT_OUT`` as one of them."""
        rows = self._connection.execute(_FATES, {"serial": round_.serial})
        return {LEFT_OUT if row.left_out else row.outcome.value: row.number for row in rows}

    def count_without_slot(self, round_: Round) -> dict[str, int]:
        """How many candidates of a round have no slot, by outcome."""
        outcomes = _without_slot(round_)
        rows = self._connection.execute(_OUTCOMES, {"serial": round_.serial, "outcomes": outcomes})
        return {row.outcome.value: row.number for row in rows}

    def selected(
        self, round_: Round, limit: int, offset: int, fate: str | None = None
    ) -> list[SelectedClient]:
        """Slots in upload order, all of a round or those with one fate."""
        query = _SELECTED if fate is None else _SELECTED.where(_has_fate(fate))
        rows = self._connection.execute(query.limit(limit).offset(offset), {"serial": round_.serial})
        return [
            SelectedClient(as_dataclass(Slot, row), row.throughput_bps, row.compute_samples_per_s)
            for row in rows
        ]

    def without_slot(
        self, round_: Round, limit: int, offset: int, outcome: CandidateOutcome | None = None
    ) -> list[Candidate]:
        """Candidates that have no slot, in the order they were drawn: all, or those with one outcome."""
        outcomes = [one for one in _without_slot(round_) if outcome in (None, one)]
        rows = self._connection.execute(
            _WITHOUT_SLOT.limit(limit).offset(offset), {"serial": round_.serial, "outcomes": outcomes}
        )
        return [Candidate(*row) for row in rows]


def _has_fate(fate: str) -> ColumnElement[bool]:
    if fate == LEFT_OUT:
        return _was_left_out
    return and_(slots.c.outcome == SlotOutcome(fate), ~_was_left_out)


def _without_slot(round_: Round) -> list[CandidateOutcome]:
    """The selected have none either if the round failed because they were too few."""
    return [one for one in CandidateOutcome if one is not CandidateOutcome.SELECTED or not round_.selected]
