"""``/dashboard/what-if``: plans a round on the latest reports and stores nothing."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import numpy as np
from fastapi import APIRouter, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import Field, ValidationError

from operator_api.dashboard.page_route import DataRoute, FormDep, PageRoute, as_number
from operator_api.dashboard.rendering import render, send_json
from operator_api.dashboard.setup import FRESH
from operator_api.dashboard.wording import as_share, explain, label_with_unit, policy_name, policy_options
from operator_api.dependencies import ServiceDep
from operator_api.planning import clients_by_deadline, plan_round
from operator_api.security import Access, access
from operator_api.service import Service
from services.contract.common import CellId, Fraction
from services.contract.plans import Candidate, PlanRequest, PlanResponse
from services.domain.cells import CellConfig
from services.domain.radio import PAPER_MODEL_SIZE_BYTES, PAPER_REQUEST_FRACTION
from services.domain.resources import REPORT_RESOURCE_BLOCKS, count_candidates, draw_candidates
from services.storage.database import Database
from services.storage.reports import NO_TASK


@dataclass(frozen=True)
class NumberField:
    """A number of the form, and what its slider spans; other numbers can be typed."""

    name: str
    label: str
    default: str
    """The paper's setting; empty for an optional number."""
    low: float
    high: float
    step: float
    hint: str = ""


NUMBERS = (
    NumberField("round_deadline_s", "Round deadline (s)", "180", 10, 600, 1, "Not used by every policy."),
    NumberField("resource_blocks", "Resource blocks", str(REPORT_RESOURCE_BLOCKS), 1, 100, 1),
    NumberField(
        "model_size_bytes",
        "Model size (bytes)",
        str(PAPER_MODEL_SIZE_BYTES["cifar10"]),
        100_000,
        100_000_000,
        100_000,
    ),
    NumberField(
        "upload_size_bytes", "Upload size (bytes)", "", 100_000, 100_000_000, 100_000, "Empty: the model's."
    ),
    NumberField(
        "download_size_bytes",
        "Download size (bytes)",
        "",
        100_000,
        100_000_000,
        100_000,
        "Empty: the model's.",
    ),
    NumberField("local_epochs", "Local epochs", "5", 1, 50, 1),
    NumberField("selection_s", "Time for selection (s)", "0", 0, 60, 0.5),
    NumberField("aggregation_s", "Time for aggregation (s)", "0", 0, 60, 0.5),
    NumberField(
        "request_fraction",
        label_with_unit("request_fraction"),
        f"{PAPER_REQUEST_FRACTION * 100:g}",
        1,
        100,
        1,
        "Of the enrolled clients.",
    ),
    NumberField(
        "seed", "Seed", "0", 0, 100, 1, "For the draw of candidates, and for policies with a random order."
    ),
)
_DEFAULTS = {"policy": "fedcs", "cell_id": ""} | {number.name: number.default for number in NUMBERS}


class WhatIf(PlanRequest):
    """A plan whose candidates are drawn from the clients that are enrolled."""

    request_fraction: Fraction
    cell_id: CellId | None = None
    """Whose clients are drawn; none: those of all cells, as if they were one."""
    candidates: list[Candidate] = Field(default_factory=list)


@dataclass(frozen=True)
class WhatIfForm:
    """The form as it is shown."""

    values: Mapping[str, str] = field(default_factory=lambda: MappingProxyType(_DEFAULTS))
    errors: Mapping[str, str] = field(default_factory=dict)
    """What is wrong, by field."""


def read_what_if(given: Mapping[str, str]) -> tuple[WhatIf | None, WhatIfForm]:
    """What is asked for, if nothing is wrong with it, and the form to show; what is missing is as first."""
    values = {name: given.get(name, default).strip() for name, default in _DEFAULTS.items()}
    numbers = {
        number.name: as_share(number.name, as_number(values[number.name]))
        for number in NUMBERS
        if number.default or values[number.name]
    }
    try:
        chosen = {"policy": values["policy"], "cell_id": values["cell_id"] or None}
        return WhatIf.model_validate(chosen | numbers), WhatIfForm(values)
    except ValidationError as error:
        reasons = {
            str(item["loc"][0]): explain(str(item["loc"][0]), item) for item in reversed(error.errors())
        }
        return None, WhatIfForm(values, reasons)


MAX_CANDIDATES = 10_000
"""More would make the sliders slow."""
MAX_SLOTS = 200
"""The number of slots in the chart; the counts include all."""
_FIRST_ROUND = 1
_STEPS_TO_DEADLINE = 12
_STEPS = 25


class InvalidFieldError(Exception):
    """The plan cannot be computed, because of one field."""

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
    plan = plan_round(request)
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
        if what_if.cell_id is not None and store.cells.find(what_if.cell_id) is None:
            raise InvalidFieldError("cell_id", f"there is no cell {what_if.cell_id!r}")
        cells = None if what_if.cell_id is None else [what_if.cell_id]
        clients = store.clients.serials_with({}, cells).serials
        if count_candidates(len(clients), what_if.request_fraction) > MAX_CANDIDATES:
            raise InvalidFieldError(
                "request_fraction",
                f"of {len(clients):,} clients that is more than the {MAX_CANDIDATES:,} that are drawn here",
            )
        rng = np.random.default_rng([what_if.seed, _FIRST_ROUND])
        asked = clients[draw_candidates(len(clients), what_if.request_fraction, rng)]
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
    shown = plan.slots[:MAX_SLOTS]
    return {
        "policy": policy_name(plan.policy),
        "selected": len(plan.slots),
        "upper_bound": plan.upper_bound,
        "total_s": plan.total_s,
        "distribution_s": plan.distribution_s,
        "updates_begin_s": request.selection_s + plan.distribution_s,
        "round_deadline_s": request.deadline_s,
        "selection_s": request.selection_s,
        "aggregation_s": request.aggregation_s,
        "not_selected": dict(Counter(candidate.reason.value for candidate in plan.not_selected)),
        "slots": {
            name: [getattr(slot, name) for slot in shown]
            for name in ("client_id", "update_s", "upload_s", "window_start_s", "window_end_s")
        },
    }


router = APIRouter(route_class=PageRoute, include_in_schema=False)
data = APIRouter(route_class=DataRoute, include_in_schema=False)


@router.get("/dashboard/what-if", openapi_extra=access(Access.READ))
async def show_what_if(request: Request, service: ServiceDep) -> Response:
    """The form, which the script answers; without scripts it comes back here, and the page has the answer."""
    form, found = WhatIfForm(), None
    if request.query_params:
        form, found = await service.compute.run(_answer, service, request.query_params)
    cells = await run_in_threadpool(_cells, service)
    return render(
        request,
        "what_if.html",
        status=422 if form.errors else 200,
        plots=True,
        form=form,
        found=found,
        numbers=NUMBERS,
        policies=policy_options(),
        cells=cells,
        max_slots=MAX_SLOTS,
    )


@data.post("/dashboard/data/what-if", openapi_extra=access(Access.READ))
async def send_what_if(service: ServiceDep, given: FormDep) -> Response:
    """What the form asks for. What is wrong with it is an answer too: fields are wrong while one types."""
    form, found = await service.compute.run(_answer, service, given)
    return send_json({"errors": dict(form.errors), "found": found})


def _cells(service: Service) -> list[CellConfig]:
    with service.database.reading() as store:
        return store.cells.all()


def _answer(service: Service, given: Mapping[str, str]) -> tuple[WhatIfForm, dict[str, Any] | None]:
    what_if, form = read_what_if(given)
    if what_if is None:
        return form, None
    try:
        return form, plan_what_if(service.database, what_if)
    except InvalidFieldError as error:
        return replace(form, errors={error.name: str(error)}), None
