"""Schedules as the service answers them."""

import numpy as np

from operator_api.planning import plan_round
from services.contract.plans import Candidate, PlanRequest
from services.contract.rounds import RoundCellResponse, RoundSlot, ScheduleResponse
from services.domain.radio import Cell
from services.domain.rounds import SlotOutcome
from services.domain.tasks import Dispatch


def paper_schedule(
    policy: str = "fedcs", *, seed: int = 0, selection_s: float = 0.0, aggregation_s: float = 0.0
) -> ScheduleResponse:
    """A round of the paper's cell."""
    drawn = Cell().draw_reports(100, np.random.default_rng(seed))
    columns = (drawn.throughput_bps, drawn.compute_samples_per_s, drawn.data_samples)
    candidates = [
        Candidate(
            client_id=f"cell-{number}",
            throughput_bps=throughput_bps,
            compute_samples_per_s=compute_samples_per_s,
            data_samples=data_samples,
        )
        for number, (throughput_bps, compute_samples_per_s, data_samples) in enumerate(
            zip(*(column.tolist() for column in columns), strict=True)
        )
    ]
    request = PlanRequest(
        policy=policy,
        round_deadline_s=180,
        selection_s=selection_s,
        aggregation_s=aggregation_s,
        model_size_bytes=18_300_000,
        seed=seed,
        candidates=candidates,
    )
    plan = plan_round(request)
    slots = [
        RoundSlot(
            **slot.model_dump(),
            cell_id="default",
            data_samples=100,
            throughput_bps=None,
            expected_throughput_bps=None,
            compute_samples_per_s=None,
            expected_compute_samples_per_s=None,
            outcome=SlotOutcome.PENDING,
            elapsed_s=None,
            actual_update_s=None,
            actual_upload_s=None,
            rejections=0,
            last_rejection=None,
            weight=None,
            update_norm=None,
            statistics_norm=None,
            update_scale=None,
            statistics_scale=None,
            ready_s=None,
            granted_s=None,
            lapses=0,
            replaces=None,
        )
        for slot in plan.slots
    ]
    return ScheduleResponse(
        round_id="round-1",
        policy=policy,
        round_deadline_s=request.round_deadline_s,
        upload_size_bytes=request.model_size_bytes,
        noise_scale=None,
        deadline_tradeoff=None,
        update_encoding="float32",
        model_encoding="float32",
        topk_fraction=0.1,
        dispatch=Dispatch.SCHEDULED,
        planning_factor=1.0,
        download_size_bytes=request.model_size_bytes,
        selection_s=selection_s,
        aggregation_s=aggregation_s,
        distribution_s=plan.distribution_s,
        elapsed_s=plan.elapsed_s,
        total_s=plan.total_s,
        upper_bound=plan.upper_bound,
        upper_bound_exact=plan.upper_bound_exact,
        cells=[
            RoundCellResponse(
                cell_id="default",
                resource_block_first=0,
                resource_block_count=10,
                distribution_s=plan.distribution_s,
                elapsed_s=plan.elapsed_s,
            )
        ],
        slots=slots,
        not_selected=[],
    )
