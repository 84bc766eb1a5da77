"""Rounds on the wire: JSON, CSV and a Gantt chart."""

import csv
import io

from services.access import Principal, Scope
from services.contract.plans import Slot
from services.contract.rounds import (
    LeftOutCandidate,
    RoundResponse,
    RoundSlot,
    RoundSummary,
    ScheduleResponse,
)
from services.domain.nanoseconds import to_ns, to_seconds
from services.domain.rounds import Candidate, CandidateOutcome, Round
from services.domain.rounds import Slot as StoredSlot
from services.domain.tasks import TaskTerms
from services.errors import NotSelectedError
from services.storage.database import Store


def round_summary(round_: Round) -> RoundSummary:
    """A round without its schedule."""
    return RoundSummary.model_validate(round_)


def round_response(store: Store, round_: Round, principal: Principal) -> RoundResponse:
    """A round with its schedule, as far as this caller may see it."""
    schedule = schedule_response(store, round_, principal)
    return RoundResponse.model_validate(vars(round_) | {"schedule": schedule})


def schedule_response(store: Store, round_: Round, principal: Principal) -> ScheduleResponse | None:
    """The schedule of a round, if it has one; of the slots, a client sees its own."""
    slots = store.rounds.slots(round_.serial)
    candidates = store.rounds.candidates(round_.serial) if principal.scope is not Scope.CLIENT else []
    if principal.scope is Scope.CLIENT:
        slots = [slot for slot in slots if slot.client_id == principal.client_id]
        if not slots:
            raise NotSelectedError(
                f"The client {principal.client_id!r} was not selected for the round {round_.round_id!r}."
            )
    if round_.started_at is None:
        return None
    terms = store.tasks.get(round_.task_id).terms
    distribution_ns, elapsed_ns = round_.distribution_ns or 0, round_.elapsed_ns or 0
    overhead_ns = to_ns(terms.selection_s) + to_ns(terms.aggregation_s)
    return ScheduleResponse(
        round_id=round_.round_id,
        policy=terms.policy,
        round_deadline_s=terms.round_deadline_s,
        selection_s=terms.selection_s,
        aggregation_s=terms.aggregation_s,
        distribution_s=to_seconds(distribution_ns),
        elapsed_s=to_seconds(elapsed_ns),
        total_s=to_seconds(overhead_ns + distribution_ns + elapsed_ns),
        upper_bound=round_.upper_bound or 0,
        upper_bound_exact=True,
        slots=[_round_slot(slot, terms) for slot in slots],
        not_selected=[_left_out(one) for one in candidates if one.outcome is not CandidateOutcome.SELECTED],
    )


def planned_slot(slot: StoredSlot, terms: TaskTerms) -> Slot:
    """A slot as planned."""
    return Slot(**_planned(slot, terms))


def schedule_csv(schedule: ScheduleResponse) -> str:
    """One line for each candidate: first the slots in order, then the others."""
    columns = ["selected", *dict.fromkeys([*RoundSlot.model_fields, *LeftOutCandidate.model_fields])]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="")
    writer.writeheader()
    writer.writerows({"selected": 1, **slot.model_dump()} for slot in schedule.slots)
    writer.writerows({"selected": 0, **one.model_dump()} for one in schedule.not_selected)
    return text.getvalue()


def _planned(slot: StoredSlot, terms: TaskTerms) -> dict[str, object]:
    return {
        "client_id": slot.client_id,
        "order": slot.order,
        "update_s": to_seconds(slot.update_ns),
        "upload_s": to_seconds(slot.upload_ns),
        "upload_start_s": to_seconds(slot.upload_start_ns),
        "upload_end_s": to_seconds(slot.upload_end_ns),
        "window_start_s": to_seconds(slot.window_start_ns),
        "window_end_s": to_seconds(slot.window_end_ns),
        "resource_block_first": 0,
        "resource_block_count": terms.resource_blocks,
        "time_slot_first": slot.time_slot_first,
        "time_slot_count": slot.time_slot_count,
    }


def _round_slot(slot: StoredSlot, terms: TaskTerms) -> RoundSlot:
    return RoundSlot(
        **_planned(slot, terms),
        data_samples=slot.data_samples,
        outcome=slot.outcome,
        elapsed_s=slot.elapsed_s,
        actual_update_s=slot.actual_update_s,
        actual_upload_s=slot.actual_upload_s,
        rejections=slot.rejections,
        last_rejection=slot.last_rejection,
    )


def _left_out(candidate: Candidate) -> LeftOutCandidate:
    return LeftOutCandidate.model_construct(
        client_id=candidate.client_id,
        reason=candidate.outcome,
        throughput_bps=candidate.throughput_bps,
        compute_samples_per_s=candidate.compute_samples_per_s,
        data_samples=candidate.data_samples,
        update_s=None if candidate.update_ns is None else to_seconds(candidate.update_ns),
        upload_s=None if candidate.upload_ns is None else to_seconds(candidate.upload_ns),
        cost_s=None if candidate.cost_ns is None else to_seconds(candidate.cost_ns),
    )
