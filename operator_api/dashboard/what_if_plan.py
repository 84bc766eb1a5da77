"""What would be, if a round were opened now on these terms: with the reports at hand, and nothing stored."""

from collections import Counter
from typing import Any

import numpy as np

from operator_api.dashboard.vitals import FRESH
from operator_api.dashboard.what_if_form import WhatIf
from operator_api.planning import clients_by_deadline, plan_round
from services.contract.plans import Candidate, PlanResponse
from services.domain.candidates import count_candidates, draw_candidates
from services.errors import ScheduleTooLongError
from services.storage.database import Database
from services.storage.reports import NO_TASK

MOST_CANDIDATES = 10_000
"""More would keep one waiting at every move of a slider."""
MOST_SLOTS = 200
"""That are drawn; the counts are of all."""
_FIRST_ROUND = 1
_STEPS_TO_DEADLINE = 12
_STEPS = 25


class NotPossibleError(Exception):
    """There is no such plan; it says at which field, and why."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(reason)
        self.name = name


def plan_what_if(database: Database, what_if: WhatIf) -> dict[str, Any]:
    """The plan, in columns, and how many clients other deadlines would get in; none without a candidate."""
    asked, candidates = _draw(database, what_if)
    drawn = {"asked": asked, "candidates": len(candidates)}
    if not candidates:
        return drawn | {"plan": None}
    request = what_if.model_copy(update={"candidates": candidates})
    try:
        plan = plan_round(request)
    except ScheduleTooLongError as error:
        raise NotPossibleError("policy", str(error)) from error
    step_s = request.round_deadline_s / _STEPS_TO_DEADLINE
    deadlines_s = [
        request.round_deadline_s if number == _STEPS_TO_DEADLINE else number * step_s
        for number in range(1, _STEPS + 1)
    ]
    curve = {"deadline_s": deadlines_s, "clients": clients_by_deadline(request, deadlines_s)}
    return drawn | {"plan": _plan(request, plan), "curve": curve}


def _draw(database: Database, what_if: WhatIf) -> tuple[int, list[Candidate]]:
    """As a task with this seed draws for its first round: how many, and those with a fresh report."""
    with database.reading() as store:
        clients = store.clients.serials_with({})
        if count_candidates(len(clients), what_if.request_fraction) > MOST_CANDIDATES:
            raise NotPossibleError(
                "request_fraction",
                f"of {len(clients):,} clients that is more than the {MOST_CANDIDATES:,} that are drawn here",
            )
        dice = np.random.default_rng([what_if.seed, _FIRST_ROUND])
        asked = clients[draw_candidates(len(clients), what_if.request_fraction, dice)]
        where, reports = store.reports.newest(
            asked, NO_TASK, observed_since=database.now() - FRESH, received_since=None
        )
        ids = store.clients.ids_of(asked[where])
    columns = (reports.throughput_bps, reports.compute_samples_per_s, reports.data_samples)
    return len(asked), [
        # They have been checked when they were reported.
        Candidate.model_construct(
            client_id=ids[serial],
            throughput_bps=throughput_bps,
            compute_samples_per_s=compute_samples_per_s,
            data_samples=data_samples,
        )
        for serial, throughput_bps, compute_samples_per_s, data_samples in zip(
            asked[where].tolist(), *(column.tolist() for column in columns), strict=True
        )
    ]


def _plan(request: WhatIf, plan: PlanResponse) -> dict[str, Any]:
    shown = plan.slots[:MOST_SLOTS]
    return {
        "policy": plan.policy,
        "selected": len(plan.slots),
        "upper_bound": plan.upper_bound,
        "total_s": plan.total_s,
        "distribution_s": plan.distribution_s,
        "updates_begin_s": request.selection_s + plan.distribution_s,
        "round_deadline_s": None if plan.policy == "fl" else request.round_deadline_s,
        "selection_s": request.selection_s,
        "aggregation_s": request.aggregation_s,
        "left_out": dict(Counter(one.reason.value for one in plan.not_selected)),
        "slots": {
            name: [getattr(slot, name) for slot in shown]
            for name in ("client_id", "update_s", "upload_s", "window_start_s", "window_end_s")
        },
    }
