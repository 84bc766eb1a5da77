"""What the page of a round shows: how far it is, its totals, and a page of the clients that were asked."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from operator_api.dashboard.formats import as_duration
from operator_api.dashboard.round_rows import Row, candidate_row, slot_row
from operator_api.dashboard.round_words import state_text
from services.domain.nanoseconds import to_ns, to_seconds
from services.domain.rounds import UPLOAD_STATES, CandidateOutcome, Round, RoundState, SlotOutcome
from services.domain.tasks import Task
from services.storage.database import Database, Store
from services.storage.round_lists import LEFT_OUT

PER_PAGE = 100
"""Rows of the table, and slots that are drawn."""

Shown: TypeAlias = SlotOutcome | CandidateOutcome | Literal["left out"] | None
"""Whose rows are wanted; none: everybody's."""

_FATES = (*SlotOutcome, LEFT_OUT)


@dataclass(frozen=True)
class RoundPage:
    """All that the page of a round shows."""

    round_: Round
    task: Task
    previous_id: str | None
    next_id: str | None
    fates: Mapping[str, int]
    """How many slots have which."""
    reasons: Mapping[str, int]
    """How many candidates have no slot, by outcome."""
    shown: Shown
    page: int
    rows: Sequence[Row]

    @property
    def counts(self) -> Mapping[str, int]:
        """How many rows there are of which outcome: those with a slot first."""
        return {**self.fates, **self.reasons}

    @property
    def total(self) -> int:
        """How many rows there are on all pages."""
        return sum(self.counts.values()) if self.shown is None else self.counts.get(str(self.shown), 0)

    @property
    def pages(self) -> int:
        """How many pages the table has."""
        return max(math.ceil(self.total / PER_PAGE), 1)

    @property
    def state_text(self) -> str:
        """Where the round is in its life."""
        return state_text(self.round_, self.task)

    @property
    def can_close(self) -> bool:
        """Whether collection can be ended."""
        return self.round_.state in UPLOAD_STATES

    @property
    def planned_s(self) -> float | None:
        """How long the round is to take; unknown until there is a schedule."""
        if self.round_.distribution_ns is None or self.round_.elapsed_ns is None:
            return None
        overhead_ns = to_ns(self.task.terms.selection_s) + to_ns(self.task.terms.aggregation_s)
        return to_seconds(overhead_ns + self.round_.distribution_ns + self.round_.elapsed_ns)

    @property
    def summary(self) -> str:
        """The chart in a sentence or two."""
        if self.planned_s is None:
            return f"{self.round_.asked} clients were asked."
        terms = self.task.terms
        deadline = f" of {as_duration(terms.round_deadline_s)}" if terms.has_deadline else ""
        so_far = ", ".join(f"{number} {fate}" for fate, number in self.fates.items())
        drawn = f" The first {PER_PAGE} slots are drawn." if self.round_.selected > PER_PAGE else ""
        return (
            f"{self.round_.selected} of {self.round_.asked} clients that were asked have a slot. "
            f"The plan takes {as_duration(self.planned_s)}{deadline}: "
            f"{as_duration(to_seconds(self.round_.distribution_ns or 0))} to distribute the model, then "
            "updates at the same time and uploads one after another. "
            f"Slots: {so_far}.{drawn}"
        )

    @property
    def no_chart(self) -> str:
        """Why there is no chart; empty if there is one."""
        if self.round_.selected:
            return ""
        if self.round_.state is RoundState.REQUESTING:
            return f"No schedule yet. {self.state_text}"
        return "No client has a slot in this round. The table says why, client by client."


def load_round(database: Database, round_id: str, shown: Shown, page: int) -> RoundPage:
    """Read what the page of a round shows."""
    with database.reading() as store:
        round_ = store.rounds.get(round_id)
        task = store.tasks.get(round_.task_id)
        previous_id, next_id = store.round_lists.neighbours(round_)
        fates = store.round_lists.count_fates(round_)
        return RoundPage(
            round_=round_,
            task=task,
            previous_id=previous_id,
            next_id=next_id,
            fates={str(one): fates[one] for one in _FATES if one in fates},
            reasons=store.round_lists.count_without_slot(round_),
            shown=shown,
            page=page,
            rows=_rows(store, round_, task, shown, (page - 1) * PER_PAGE),
        )


def _rows(store: Store, round_: Round, task: Task, shown: Shown, offset: int) -> list[Row]:
    """Slots in upload order first, then the others in the order they were drawn."""
    lists, rows = store.round_lists, list[Row]()
    if not isinstance(shown, CandidateOutcome):
        slots = lists.selected(round_, PER_PAGE, offset, shown)
        rows += [slot_row(one, task.terms) for one in slots]
    if isinstance(shown, CandidateOutcome):
        rows += map(candidate_row, lists.without_slot(round_, PER_PAGE, offset, shown))
    elif shown is None and len(rows) < PER_PAGE:
        after = max(offset - round_.selected, 0)
        rows += map(candidate_row, lists.without_slot(round_, PER_PAGE - len(rows), after))
    return rows
