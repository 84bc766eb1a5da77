"""Client Selection (step 3 of Protocol 2 in the paper): from resource reports to a stored schedule."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from services.domain.nanoseconds import to_ns, to_seconds
from services.domain.radio import PerClient
from services.domain.resources import (
    EstimatedTimes,
    LocalWork,
    Positions,
    ResourceReports,
    estimate_times,
)
from services.domain.rounds import Candidate, CandidateOutcome, Round, RoundCell, RoundState, Slot
from services.domain.schedule import Schedule, build_schedule
from services.domain.selection import (
    Candidates,
    ClientHistory,
    NotSelectedReason,
    SelectionPolicy,
    make_policy,
    policy_rng,
)
from services.domain.selection.fedcs import costs_ns
from services.domain.selection.optimal import optimal_order
from services.domain.tasks import Clock, Task
from services.protocol.candidates import busy_clients, expected_reports
from services.protocol.round_deadline import local_work, selection_deadline, with_own_deadline
from services.protocol.transitions import end_round, move_round
from services.storage.database import Store
from services.storage.sql import Serials


@dataclass(frozen=True)
class SelectionTerms:
    """The constraints of Client Selection."""

    work: LocalWork
    round_deadline_s: float
    selection_s: float = 0.0
    aggregation_s: float = 0.0
    planning_factor: float = 1.0
    """The policy sees estimated times multiplied by it; the schedule has the estimated times."""

    @property
    def available_ns(self) -> int:
        """The time available for distribution, updates and uploads."""
        return to_ns(self.round_deadline_s) - to_ns(self.selection_s) - to_ns(self.aggregation_s)


@dataclass(frozen=True)
class NotSelected:
    """A candidate that was not selected, and the time it would add to the planned round."""

    position: int
    reason: NotSelectedReason
    cost_ns: int | None


@dataclass(frozen=True)
class RoundPlan:
    """The outcome of Client Selection."""

    times: EstimatedTimes
    """Of every candidate."""
    schedule: Schedule
    not_selected: list[NotSelected]
    max_clients: int
    """The largest number of clients that any selection can fit into this round."""


def select_clients(
    reports: ResourceReports,
    terms: SelectionTerms,
    policy: SelectionPolicy,
    seed: int | Sequence[int],
    history: ClientHistory | None = None,
) -> RoundPlan:
    """Select from the eligible candidates, and build the schedule."""
    times = estimate_times(reports, terms.work)
    planned = times.scaled(terms.planning_factor)
    with_data = np.flatnonzero(reports.data_samples > 0)
    eligible = with_data
    if not policy.honours_deadline:
        eligible = with_data[planned.of(with_data).fit_longest_round()]
    candidates = Candidates(planned, reports, history).of(eligible)
    order = eligible[policy.select(candidates, terms.available_ns, policy_rng(seed))]
    return RoundPlan(
        times=times,
        schedule=build_schedule(order, times),
        not_selected=_not_selected(
            build_schedule(order, planned), planned, policy, terms, with_data=with_data, eligible=eligible
        ),
        max_clients=len(optimal_order(planned.of(with_data), terms.available_ns)),
    )


def _not_selected(
    schedule: Schedule,
    times: EstimatedTimes,
    policy: SelectionPolicy,
    terms: SelectionTerms,
    *,
    with_data: Positions,
    eligible: Positions,
) -> list[NotSelected]:
    """The reason for every candidate that was not selected, in order of position."""
    costs = costs_ns(times, schedule.distribution_ns, schedule.elapsed_ns)
    too_long = schedule.distribution_ns + schedule.elapsed_ns + costs >= terms.available_ns
    reasons = dict.fromkeys(range(len(times)), NotSelectedReason.NO_DATA)
    reasons |= dict.fromkeys(with_data.tolist(), NotSelectedReason.TOO_SLOW)
    reasons |= dict.fromkeys(eligible.tolist(), NotSelectedReason.NOT_CHOSEN)
    if policy.honours_deadline:
        reasons |= dict.fromkeys(eligible[too_long[eligible]].tolist(), NotSelectedReason.DEADLINE)
    for position in schedule.positions.tolist():
        del reasons[position]
    shown = dict(zip(eligible.tolist(), costs[eligible].tolist(), strict=True)) if policy.uses_cost else {}
    return [NotSelected(position, reason, shown.get(position)) for position, reason in reasons.items()]


_OUTCOMES = {reason: CandidateOutcome(reason.value) for reason in NotSelectedReason}


class DrawnClient(NamedTuple):
    """A client that was drawn and cannot be selected, and why."""

    client_id: str
    cell_id: str
    outcome: CandidateOutcome


@dataclass(frozen=True)
class DrawnCandidates:
    """The clients drawn for a round, in the order they were drawn."""

    serials: Serials
    client_ids: Sequence[str]
    cell_ids: Sequence[str]
    """The cell of each when it was drawn: its slot will be there, wherever it goes."""
    others: Sequence[DrawnClient] = ()
    """Those that have been removed since, and those in whose place others were drawn."""


@dataclass(frozen=True)
class CellPlan:
    """The outcome of Client Selection in one cell of a round."""

    cell: RoundCell
    places: Serials
    """Whose reports they are, as places among the drawn candidates."""
    reports: ResourceReports
    expected: ResourceReports
    """What the plan is made with; the same object: the reports."""
    plan: RoundPlan


def schedule_round(store: Store, task: Task, round_: Round, asked: DrawnCandidates, now: datetime) -> Round:
    """Select in each cell from the fresh reports; record the schedules, and the reason for every candidate.

    The cells have a channel each, so each schedule is made without regard to the others.
    """
    is_free = np.isin(asked.serials, busy_clients(store, task), invert=True)
    reported, reports = store.reports.newest(
        asked.serials,
        task.serial,
        observed_since=now - timedelta(seconds=task.terms.report_max_age_s),
        received_since=None if round_.window_ends_at is None else round_.opened_at,
    )
    cell_ids = [asked.cell_ids[place] for place in reported.tolist()]
    expected = expected_reports(store, task, asked.serials[reported], cell_ids, reports)
    policy = make_policy(round_.terms.policy, round_.terms.policy_parameters)
    history = None
    if policy.uses_history:
        history = store.rounds.history(task.serial, [asked.client_ids[place] for place in reported.tolist()])
    plans = []
    cells = store.rounds.cells(round_.serial)
    round_ = selection_deadline(store, task, round_, cells, now)
    numbers = {cell.cell_id: number for number, cell in enumerate(cells)}
    in_cell = np.array([numbers[cell_id] for cell_id in cell_ids], dtype=np.int64)
    for number, cell in enumerate(cells):
        own = np.flatnonzero((in_cell == number) & is_free[reported])
        of_cell = reports.of(own)
        expected_of_cell = of_cell if expected is reports else expected.of(own)
        plan = select_clients(
            expected_of_cell,
            _terms(task, round_, cell),
            policy,
            [task.terms.seed, round_.number],
            None if history is None else history.of(own),
        )
        planned = replace(
            cell, distribution_ns=plan.schedule.distribution_ns, elapsed_ns=plan.schedule.elapsed_ns
        )
        plans.append(CellPlan(planned, reported[own], of_cell, expected_of_cell, plan))
    spent_ns = [of_cell.plan.schedule.distribution_ns + of_cell.plan.schedule.elapsed_ns for of_cell in plans]
    round_ = with_own_deadline(store, task, round_, max(spent_ns, default=0), now)
    store.rounds.set_candidates(round_, _candidates(asked, is_free, plans))
    selected = sum(len(of_cell.plan.schedule) for of_cell in plans)
    if selected < task.terms.min_clients:
        return end_round(store, task, round_, RoundState.FAILED, now, outcome="TOO_FEW_CLIENTS")
    store.rounds.change_cells(round_, [of_cell.cell for of_cell in plans])
    store.rounds.add_slots(round_, [slot for of_cell in plans for slot in _slots(round_, asked, of_cell)])
    deadline_ns = round_.terms.upload_deadline_ns
    closes_at = None
    if task.terms.clock is Clock.WALL and deadline_ns is not None:
        closes_at = now + timedelta(seconds=to_seconds(deadline_ns))
    return move_round(
        store,
        round_,
        RoundState.SCHEDULED,
        now,
        started_at=now,
        active_at=now,
        upload_deadline_at=closes_at,
        selected=selected,
        distribution_ns=max(of_cell.plan.schedule.distribution_ns for of_cell in plans),
        elapsed_ns=max(of_cell.plan.schedule.elapsed_ns for of_cell in plans),
        upper_bound=sum(of_cell.plan.max_clients for of_cell in plans),
    )


def _terms(task: Task, round_: Round, cell: RoundCell) -> SelectionTerms:
    terms = round_.terms
    return SelectionTerms(
        work=local_work(task, round_, cell),
        round_deadline_s=terms.round_deadline_s,
        selection_s=terms.selection_s,
        aggregation_s=terms.aggregation_s,
        planning_factor=terms.planning_factor,
    )


def _candidates(
    asked: DrawnCandidates, is_free: npt.NDArray[np.bool_], plans: Sequence[CellPlan]
) -> list[Candidate]:
    """Each that was drawn, with what was found out about it."""
    client_ids = [*asked.client_ids, *(client.client_id for client in asked.others)]
    cell_ids = [*asked.cell_ids, *(client.cell_id for client in asked.others)]
    outcomes = [CandidateOutcome.NO_REPORT] * len(asked.client_ids) + [
        client.outcome for client in asked.others
    ]
    for place in np.flatnonzero(~is_free).tolist():
        outcomes[place] = CandidateOutcome.BUSY
    columns: list[list[Any]] = [[None] * len(client_ids) for _ in range(8)]
    for of_cell in plans:
        places = of_cell.places.tolist()
        costs_ns: list[int | None] = [None] * len(places)
        for other in of_cell.plan.not_selected:
            outcomes[places[other.position]] = _OUTCOMES[other.reason]
            costs_ns[other.position] = other.cost_ns
        for position in of_cell.plan.schedule.positions.tolist():
            outcomes[places[position]] = CandidateOutcome.SELECTED
        reports, expected, times = of_cell.reports, of_cell.expected, of_cell.plan.times
        known = (reports.throughput_bps, reports.compute_samples_per_s, reports.data_samples)
        figures = [*(values.tolist() for values in (*known, times.update_ns, times.upload_ns)), costs_ns]
        if expected is not reports:
            figures.append(_where_different(expected.throughput_bps, reports.throughput_bps))
            figures.append(_where_different(expected.compute_samples_per_s, reports.compute_samples_per_s))
        for column, values in zip(columns, figures, strict=False):
            for place, value in zip(places, values, strict=True):
                column[place] = value
    return list(map(Candidate, range(len(client_ids)), client_ids, cell_ids, outcomes, *columns))


def _where_different(expected: PerClient, reported: PerClient) -> list[float | None]:
    """What was expected where it is not what was reported."""
    return [
        None if one == other else one for one, other in zip(expected.tolist(), reported.tolist(), strict=True)
    ]


def _slots(round_: Round, asked: DrawnCandidates, planned: CellPlan) -> Iterator[Slot]:
    schedule = planned.plan.schedule
    uploads_begin_ns = to_ns(round_.terms.selection_s) + schedule.distribution_ns
    for order, slot in enumerate(schedule.slots(), start=1):
        yield Slot(
            client_id=asked.client_ids[int(planned.places[slot.position])],
            cell_id=planned.cell.cell_id,
            order=order,
            data_samples=int(planned.reports.data_samples[slot.position]),
            update_ns=slot.update_ns,
            upload_ns=slot.upload_ns,
            upload_start_ns=slot.upload_start_ns,
            upload_end_ns=slot.upload_end_ns,
            window_start_ns=uploads_begin_ns + slot.upload_start_ns,
            window_end_ns=uploads_begin_ns + slot.upload_end_ns,
            time_slot_first=slot.time_slot_first,
            time_slot_count=slot.time_slot_count,
        )
