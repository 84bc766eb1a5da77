"""From the answers to a Resource Request to a scheduled round: the stored half of Client Selection."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from services.domain.nanoseconds import to_ns, to_seconds
from services.domain.resources import LocalWork, ResourceReports
from services.domain.rounds import Candidate, CandidateOutcome, Round, RoundState, Slot
from services.domain.selection import POLICIES, LeftOutReason
from services.domain.tasks import Clock, Task
from services.errors import ScheduleTooLongError
from services.protocol.client_selection import RoundPlan, RoundTerms, select_clients
from services.protocol.moves import move_round
from services.protocol.ports import Serials, Store
from services.protocol.round_end import end_round

_OUTCOMES = {reason: CandidateOutcome(reason.value) for reason in LeftOutReason}


@dataclass(frozen=True)
class Asked:
    """The clients drawn for a round, in the order they were drawn."""

    serials: Serials
    client_ids: Sequence[str]
    removed: Sequence[str] = ()
    """Ids of those that have been removed since."""


def schedule_round(store: Store, task: Task, round_: Round, asked: Asked, now: datetime) -> Round:
    """Select from the fresh reports and record the schedule, with the reason for every candidate."""
    where, reports = store.reports.newest(
        asked.serials,
        task.serial,
        observed_since=now - timedelta(seconds=task.terms.report_max_age_s),
        received_since=None if round_.window_ends_at is None else round_.opened_at,
    )
    seed = [task.terms.seed, round_.number]
    try:
        plan = select_clients(reports, _terms(store, task), POLICIES[task.terms.policy], seed)
    except ScheduleTooLongError as error:
        store.rounds.set_candidates(round_, _candidates(asked, where, reports, None))
        return end_round(store, task, round_, RoundState.FAILED, now, outcome=error.cause, started_at=now)
    store.rounds.set_candidates(round_, _candidates(asked, where, reports, plan))
    if len(plan.schedule) < task.terms.min_clients:
        return end_round(
            store, task, round_, RoundState.FAILED, now, outcome="TOO_FEW_CLIENTS", started_at=now
        )
    store.rounds.add_slots(round_, _slots(task, asked, where, reports, plan))
    deadline_ns = task.terms.upload_deadline_ns
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
        selected=len(plan.schedule),
        distribution_ns=plan.schedule.distribution_ns,
        elapsed_ns=plan.schedule.elapsed_ns,
        upper_bound=plan.most_clients,
    )


def _terms(store: Store, task: Task) -> RoundTerms:
    assert task.model_version is not None
    size_bytes = task.terms.model_size_bytes or store.models.get(task.serial, task.model_version).size_bytes
    return RoundTerms(
        work=LocalWork(size_bytes, task.terms.local_epochs, task.terms.resource_blocks),
        round_deadline_s=task.terms.round_deadline_s,
        selection_s=task.terms.selection_s,
        aggregation_s=task.terms.aggregation_s,
    )


def _candidates(
    asked: Asked, where: Serials, reports: ResourceReports, plan: RoundPlan | None
) -> list[Candidate]:
    """Each that was drawn; ``where`` says which of them have reported."""
    client_ids = [*asked.client_ids, *asked.removed]
    outcomes: list[CandidateOutcome] = [CandidateOutcome.NO_REPORT] * len(client_ids)
    costs_ns: list[int | None] = [None] * len(client_ids)
    places = where.tolist()
    if plan is not None:
        for left_out in plan.left_out:
            outcomes[places[left_out.position]] = _OUTCOMES[left_out.reason]
            costs_ns[places[left_out.position]] = left_out.cost_ns
        for position in plan.schedule.positions.tolist():
            outcomes[places[position]] = CandidateOutcome.SELECTED
    known = (reports.throughput_bps, reports.compute_samples_per_s, reports.data_samples)
    estimated = () if plan is None else (plan.times.update_ns, plan.times.upload_ns)
    columns: list[list[Any]] = [[None] * len(client_ids) for _ in range(5)]
    for column, values in zip(columns, (*known, *estimated), strict=False):
        for place, value in zip(places, values.tolist(), strict=True):
            column[place] = value
    return list(map(Candidate, range(len(client_ids)), client_ids, outcomes, *columns, costs_ns))


def _slots(task: Task, asked: Asked, where: Serials, reports: ResourceReports, plan: RoundPlan) -> list[Slot]:
    uploads_begin_ns = to_ns(task.terms.selection_s) + plan.schedule.distribution_ns
    return [
        Slot(
            client_id=asked.client_ids[int(where[slot.position])],
            order=order,
            data_samples=int(reports.data_samples[slot.position]),
            update_ns=slot.update_ns,
            upload_ns=slot.upload_ns,
            upload_start_ns=slot.upload_start_ns,
            upload_end_ns=slot.upload_end_ns,
            window_start_ns=uploads_begin_ns + slot.upload_start_ns,
            window_end_ns=uploads_begin_ns + slot.upload_end_ns,
            time_slot_first=slot.time_slot_first,
            time_slot_count=slot.time_slot_count,
        )
        for order, slot in enumerate(plan.schedule.slots(), start=1)
    ]
