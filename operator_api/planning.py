"""A plan as the wire has it: asked for over HTTP or from a file, answered by Client Selection."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from services.contract.plans import NotSelected, PlanRequest, PlanResponse, Slot
from services.domain.nanoseconds import to_ns, to_seconds
from services.domain.resources import LocalWork, ResourceReports, estimate_times
from services.domain.selection import POLICIES
from services.protocol.client_selection import RoundPlan, RoundTerms, select_clients


def plan_round(request: PlanRequest) -> PlanResponse:
    """Select and schedule the candidates of the request."""
    plan = select_clients(_reports(request), _terms(request), POLICIES[request.policy], request.seed)
    distribution_ns = plan.schedule.distribution_ns
    elapsed_ns = plan.schedule.elapsed_ns
    overhead_ns = to_ns(request.selection_s) + to_ns(request.aggregation_s)
    return PlanResponse(
        policy=request.policy,
        distribution_s=to_seconds(distribution_ns),
        elapsed_s=to_seconds(elapsed_ns),
        total_s=to_seconds(overhead_ns + distribution_ns + elapsed_ns),
        upper_bound=plan.most_clients,
        upper_bound_exact=True,
        slots=_slots(request, plan),
        not_selected=_not_selected(request, plan),
    )


def clients_by_deadline(request: PlanRequest, deadlines_s: Sequence[float]) -> list[int]:
    """How many clients the policy of a request would select with each of these deadlines."""
    terms, reports, policy = _terms(request), _reports(request), POLICIES[request.policy]
    eligible = estimate_times(reports, terms.work).of(np.flatnonzero(reports.data_samples > 0))
    available_ns = [replace(terms, round_deadline_s=one).available_ns for one in deadlines_s]
    return [
        len(policy.select(eligible, one, np.random.default_rng(request.seed)).order) for one in available_ns
    ]


def _reports(request: PlanRequest) -> ResourceReports:
    candidates = request.candidates
    return ResourceReports(
        throughput_bps=np.array([c.throughput_bps for c in candidates]),
        compute_samples_per_s=np.array([c.compute_samples_per_s for c in candidates]),
        data_samples=np.array([c.data_samples for c in candidates], dtype=np.int64),
        resource_blocks=request.report_resource_blocks,
    )


def _terms(request: PlanRequest) -> RoundTerms:
    return RoundTerms(
        work=LocalWork(request.model_size_bytes, request.local_epochs, request.resource_blocks),
        round_deadline_s=request.round_deadline_s,
        selection_s=request.selection_s,
        aggregation_s=request.aggregation_s,
    )


def _slots(request: PlanRequest, plan: RoundPlan) -> list[Slot]:
    uploads_begin_ns = to_ns(request.selection_s) + plan.schedule.distribution_ns
    return [
        Slot(
            client_id=request.candidates[slot.position].client_id,
            order=order,
            update_s=to_seconds(slot.update_ns),
            upload_s=to_seconds(slot.upload_ns),
            upload_start_s=to_seconds(slot.upload_start_ns),
            upload_end_s=to_seconds(slot.upload_end_ns),
            window_start_s=to_seconds(uploads_begin_ns + slot.upload_start_ns),
            window_end_s=to_seconds(uploads_begin_ns + slot.upload_end_ns),
            resource_block_first=0,
            resource_block_count=request.resource_blocks,
            time_slot_first=slot.time_slot_first,
            time_slot_count=slot.time_slot_count,
        )
        for order, slot in enumerate(plan.schedule.slots(), start=1)
    ]


def _not_selected(request: PlanRequest, plan: RoundPlan) -> list[NotSelected]:
    return [
        NotSelected(
            client_id=request.candidates[left_out.position].client_id,
            reason=left_out.reason,
            cost_s=None if left_out.cost_ns is None else to_seconds(left_out.cost_ns),
        )
        for left_out in plan.left_out
    ]
