"""``GET /dashboard/rounds/{round_id}``: a round as planned and as it goes; closes it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from fastapi import APIRouter, Path, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse

from operator_api.dashboard.page_route import DataRoute, PageRoute
from operator_api.dashboard.rendering import as_duration, attachment_header, render, send_json
from operator_api.dashboard.round_table import (
    COLUMNS,
    DEFAULT_GROUPS,
    GROUPS,
    PER_PAGE,
    Row,
    candidate_row,
    load_chart,
    slot_row,
    state_text,
)
from operator_api.dependencies import PrincipalDep, ServiceDep
from operator_api.round_view import draw_schedule, read_schedule, schedule_csv
from operator_api.security import Access, access
from services.contract.common import RoundId
from services.domain.nanoseconds import to_seconds
from services.domain.rounds import UPLOAD_STATES, CandidateOutcome, Round, RoundCell, RoundState, SlotOutcome
from services.domain.tasks import Task
from services.protocol.aggregation import close_round
from services.storage.database import Database, Store
from services.storage.round_lists import DISCARDED

Shown: TypeAlias = SlotOutcome | CandidateOutcome | Literal["discarded"] | None
"""The outcome to filter by; none: all rows."""

_OUTCOMES = (*SlotOutcome, DISCARDED)


@dataclass(frozen=True)
class RoundPage:
    """All that the page of a round shows."""

    round_: Round
    task: Task
    previous_id: str | None
    next_id: str | None
    outcomes: Mapping[str, int]
    """How many slots have which."""
    reasons: Mapping[str, int]
    """How many candidates have no slot, by outcome."""
    shown: Shown
    page: int
    rows: Sequence[Row]
    cells: Sequence[RoundCell]

    @property
    def counts(self) -> Mapping[str, int]:
        """How many rows there are of which outcome: those with a slot first."""
        return {**self.outcomes, **self.reasons}

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
        longest_ns = max((cell.distribution_ns or 0) + (cell.elapsed_ns or 0) for cell in self.cells)
        return to_seconds(self.round_.terms.overhead_ns + longest_ns)

    @property
    def summary(self) -> str:
        """The chart in a sentence or two."""
        if self.planned_s is None:
            return f"{self.round_.asked} clients were asked."
        deadline_s = self.round_.terms.deadline_s
        deadline = "" if deadline_s is None else f" of {as_duration(deadline_s)}"
        so_far = ", ".join(f"{number} {outcome}" for outcome, number in self.outcomes.items())
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
        outcomes = store.round_lists.count_outcomes(round_)
        return RoundPage(
            round_=round_,
            task=task,
            previous_id=previous_id,
            next_id=next_id,
            outcomes={str(outcome): outcomes[outcome] for outcome in _OUTCOMES if outcome in outcomes},
            reasons=store.round_lists.count_without_slot(round_),
            shown=shown,
            page=page,
            rows=_rows(store, round_, shown, (page - 1) * PER_PAGE),
            cells=store.rounds.cells(round_.serial),
        )


def _rows(store: Store, round_: Round, shown: Shown, offset: int) -> list[Row]:
    """Slots in upload order first, then the others in the order they were drawn."""
    lists, rows = store.round_lists, list[Row]()
    if not isinstance(shown, CandidateOutcome):
        slots = lists.selected(round_, PER_PAGE, offset, shown)
        cells = {cell.cell_id: cell for cell in store.rounds.cells(round_.serial)}
        rows += [slot_row(slot, cells) for slot in slots]
    if isinstance(shown, CandidateOutcome):
        rows += map(candidate_row, lists.without_slot(round_, PER_PAGE, offset, shown))
    elif shown is None and len(rows) < PER_PAGE:
        after = max(offset - round_.selected, 0)
        rows += map(candidate_row, lists.without_slot(round_, PER_PAGE - len(rows), after))
    return rows


router = APIRouter(route_class=PageRoute, include_in_schema=False)
data = APIRouter(route_class=DataRoute, include_in_schema=False)

_RoundPath = Annotated[RoundId, Path()]
_ShownQuery = Annotated[Shown, Query(alias="outcome")]
_PageQuery = Annotated[int, Query(ge=1, le=1_000_000)]
_GroupsQuery = Annotated[
    list[Annotated[str, Query(max_length=32)]] | None, Query(alias="columns", max_length=32)
]


@router.get("/dashboard/rounds/{round_id}", openapi_extra=access(Access.READ))
def show_round(
    request: Request,
    round_id: _RoundPath,
    service: ServiceDep,
    shown: _ShownQuery = None,
    page: _PageQuery = 1,
    groups: _GroupsQuery = None,
) -> Response:
    """A round: how far it is, its chart, and for each client that was asked what became of it."""
    found = load_round(service.database, round_id, shown, page)
    return _render(request, "round.html", found, groups)


@data.get("/dashboard/data/rounds/{round_id}/parts", openapi_extra=access(Access.READ))
def refresh_round(
    request: Request,
    round_id: _RoundPath,
    service: ServiceDep,
    shown: _ShownQuery = None,
    page: _PageQuery = 1,
    groups: _GroupsQuery = None,
) -> Response:
    """The parts of the page that change, as the page has them."""
    found = load_round(service.database, round_id, shown, page)
    return _render(request, "round_parts.html", found, groups)


@data.get("/dashboard/data/rounds/{round_id}", openapi_extra=access(Access.READ))
def send_chart(round_id: _RoundPath, service: ServiceDep) -> Response:
    """What the chart is drawn from."""
    return send_json(load_chart(service.database, round_id))


@router.get("/dashboard/rounds/{round_id}/schedule.csv", openapi_extra=access(Access.READ))
def send_csv(round_id: _RoundPath, service: ServiceDep, principal: PrincipalDep) -> Response:
    """The schedule as a table, to be kept."""
    text = schedule_csv(read_schedule(service.database, round_id, principal))
    return _file(text.encode(), "text/csv", f"{round_id}.csv")


@router.get("/dashboard/rounds/{round_id}/schedule.svg", openapi_extra=access(Access.READ))
async def send_svg(round_id: _RoundPath, service: ServiceDep, principal: PrincipalDep) -> Response:
    """The schedule as a picture, to be kept."""
    schedule = await run_in_threadpool(read_schedule, service.database, round_id, principal)
    return _file(await service.compute.run(draw_schedule, schedule), "image/svg+xml", f"{round_id}.svg")


@router.post("/dashboard/rounds/{round_id}/close", openapi_extra=access(Access.MANAGE))
def close(request: Request, round_id: _RoundPath, service: ServiceDep) -> Response:
    """End collection now, and go back to the round."""
    with service.database.unit_of_work() as uow:
        close_round(uow, round_id, service.database.now())
        uow.commit()
    return RedirectResponse(request.app.state.dashboard.templates.url(f"/dashboard/rounds/{round_id}"), 303)


def _render(request: Request, template: str, found: RoundPage, groups: Sequence[str] | None) -> Response:
    chosen = DEFAULT_GROUPS if groups is None else groups
    places = [place for place, (group, _) in enumerate(COLUMNS) if group in (*chosen, "slot")]
    return render(
        request,
        template,
        plots=True,
        view=found,
        columns=[COLUMNS[place][1] for place in places],
        places=places,
        groups=GROUPS,
        chosen_groups=chosen,
        kept_groups={} if groups is None else {"columns": groups},
    )


def _file(content: bytes, media_type: str, name: str) -> Response:
    """A download: an SVG opened as a page would need its own content security policy."""
    return Response(content, media_type=media_type, headers=attachment_header(name))
