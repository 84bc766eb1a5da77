"""Plans a round from the candidates of a request, without storage."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from services.contract.plans import DeadlinePoint, NotSelected, PlanRequest, PlanResponse, Slot
from services.domain.deadlines import DeadlineChoice, DeadlineLimits, choose_deadline, round_deadline_s
from services.domain.nanoseconds import to_ns, to_seconds
from services.domain.resources import LocalWork, ResourceReports, estimate_times
from services.domain.selection import Candidates, SelectionPolicy, make_policy, policy_rng
from services.domain.tasks import DeadlineMode
from services.protocol.client_selection import RoundPlan, SelectionTerms, select_clients
from services.tensors.encodings import make_encoding, scheduled_size


def plan_round(request: PlanRequest) -> PlanResponse:
    """Select and schedule the candidates of the request."""
    terms, choice = _terms(request), None
    if request.deadline_mode is DeadlineMode.ADAPTIVE:
        choice = _choose_deadline(request)
        terms = replace(terms, round_deadline_s=to_seconds(choice.deadline_ns))
    plan = select_clients(_reports(request), terms, _policy(request), request.seed)
    distribution_ns = plan.schedule.distribution_ns
    elapsed_ns = plan.schedule.elapsed_ns
    overhead_ns = to_ns(request.selection_s) + to_ns(request.aggregation_s)
    upload_size_bytes, download_size_bytes = _sizes(request)
    deadline_s = request.deadline_s
    if choice is not None:
        spent_ns = distribution_ns + elapsed_ns
        deadline_s = round_deadline_s(
            overhead_ns + spent_ns if spent_ns else 0,
            request.deadline_slack,
            least_s=request.min_round_deadline_s,
            longest_s=request.round_deadline_s,
        )
    return PlanResponse(
        policy=request.policy,
        round_deadline_s=deadline_s,
        noise_scale=None if choice is None else request.noise_scale,
        deadline_tradeoff=None
        if choice is None
        else [DeadlinePoint.model_validate(point) for point in choice.points],
        distribution_s=to_seconds(distribution_ns),
        elapsed_s=to_seconds(elapsed_ns),
        total_s=to_seconds(overhead_ns + distribution_ns + elapsed_ns),
        upload_size_bytes=upload_size_bytes,
        download_size_bytes=download_size_bytes,
        upper_bound=plan.max_clients,
        upper_bound_exact=True,
        slots=_slots(request, plan),
        not_selected=_not_selected(request, plan),
    )


def clients_by_deadline(request: PlanRequest, deadlines_s: Sequence[float]) -> list[int]:
    """How many clients the policy of a request would select with each of these deadlines."""
    terms, policy, eligible = _terms(request), _policy(request), _eligible(request)
    available_ns = [replace(terms, round_deadline_s=deadline_s).available_ns for deadline_s in deadlines_s]
    return [len(policy.select(eligible, limit_ns, policy_rng(request.seed))) for limit_ns in available_ns]


def shortest_deadline_s(request: PlanRequest) -> float | None:
    """The deadline above which a round with one client fits; None if no candidate has data."""
    times = _eligible(request).times
    if not len(times):
        return None
    terms = _terms(request)
    alone_ns = int((times.download_ns + times.update_ns + times.upload_ns).min())
    return request.round_deadline_s - to_seconds(terms.available_ns - alone_ns)


def _choose_deadline(request: PlanRequest) -> DeadlineChoice:
    terms = _terms(request)
    longest_ns = to_ns(request.round_deadline_s)
    limits = DeadlineLimits(longest_ns - terms.available_ns, longest_ns)
    return choose_deadline(
        [[_eligible(request)]], _policy(request), request.noise_scale, limits, request.seed
    )


def _eligible(request: PlanRequest) -> Candidates:
    """The candidates that have data."""
    reports = _reports(request)
    with_data = reports.of(np.flatnonzero(reports.data_samples > 0))
    return Candidates(estimate_times(with_data, _terms(request).work), with_data)


def _policy(request: PlanRequest) -> SelectionPolicy:
    return make_policy(request.policy, request.policy_parameters)


def _reports(request: PlanRequest) -> ResourceReports:
    candidates = request.candidates
    return ResourceReports(
        throughput_bps=np.array([c.throughput_bps for c in candidates]),
        compute_samples_per_s=np.array([c.compute_samples_per_s for c in candidates]),
        data_samples=np.array([c.data_samples for c in candidates], dtype=np.int64),
        resource_blocks=request.report_resource_blocks,
    )


def _sizes(request: PlanRequest) -> tuple[int, int]:
    """Of an upload and of the download."""
    upload = make_encoding(request.update_encoding, request.topk_fraction)
    download = make_encoding(request.model_encoding, request.topk_fraction)
    return (
        request.upload_size_bytes or scheduled_size(upload, request.model_size_bytes),
        request.download_size_bytes or scheduled_size(download, request.model_size_bytes),
    )


def _terms(request: PlanRequest) -> SelectionTerms:
    upload_size_bytes, download_size_bytes = _sizes(request)
    return SelectionTerms(
        work=LocalWork(upload_size_bytes, request.local_epochs, request.resource_blocks, download_size_bytes),
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
            client_id=request.candidates[other.position].client_id,
            reason=other.reason,
            cost_s=None if other.cost_ns is None else to_seconds(other.cost_ns),
        )
        for other in plan.not_selected
    ]
