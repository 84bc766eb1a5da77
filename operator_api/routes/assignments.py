"""``GET /assignments``: what a client has to do now."""

import time
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.concurrency import run_in_threadpool

from operator_api.dependencies import PrincipalDep, ServiceDep
from operator_api.openapi import GUARDED, INVALID_REQUEST, problems
from operator_api.round_view import planned_slot
from operator_api.security import Access, GuardedRoute, access
from operator_api.service import Service
from services.contract.rounds import AssignmentsResponse, ReportAssignment, TrainAssignment
from services.domain.nanoseconds import to_seconds
from services.domain.rounds import Round, RoundState
from services.storage.database import Store

router = APIRouter(tags=["rounds"], route_class=GuardedRoute)


@router.get(
    "/assignments",
    summary="What to do now",
    openapi_extra=access(Access.CLIENT),
    responses=problems(*GUARDED, INVALID_REQUEST),
)
async def get_assignments(
    service: ServiceDep,
    principal: PrincipalDep,
    wait_s: Annotated[
        float,
        Query(ge=0, le=60, allow_inf_nan=False, description="Wait so long for something to do."),
    ] = 0.0,
) -> AssignmentsResponse:
    """Rounds that ask this client for its resources, or wait for its update. With `wait_s` a long poll."""
    assert principal.client_id is not None, "a client's key"
    until = time.monotonic() + wait_s
    with service.hub.waiting(principal.client_id) as change:
        while True:
            change.clear()
            found = await run_in_threadpool(_assignments, service, principal.client_id)
            left_s = until - time.monotonic()
            if found.assignments or left_s <= 0 or service.hub.is_closed:
                return found
            await service.hub.wait(change, left_s)


def _assignments(service: Service, client_id: str) -> AssignmentsResponse:
    with service.database.reading() as store:
        rounds = store.rounds.open_for(client_id)
        return AssignmentsResponse(assignments=[_assignment(store, one, client_id) for one in rounds])


def _assignment(store: Store, round_: Round, client_id: str) -> ReportAssignment | TrainAssignment:
    if round_.state is RoundState.REQUESTING:
        assert round_.window_ends_at is not None, "it asks for reports"
        return ReportAssignment(task_id=round_.task_id, round_id=round_.round_id, until=round_.window_ends_at)
    terms = store.tasks.get(round_.task_id).terms
    slot = store.rounds.slot(round_.serial, client_id)
    assert slot is not None, "it waits for this client's update"
    assert round_.started_at is not None, "it has slots"
    deadline_ns = terms.upload_deadline_ns
    return TrainAssignment(
        task_id=round_.task_id,
        round_id=round_.round_id,
        local_epochs=terms.local_epochs,
        batch_size=terms.batch_size,
        learning_rate=terms.learning_rate * terms.learning_rate_decay ** (round_.number - 1),
        slot=planned_slot(slot, terms),
        started_at=round_.started_at,
        upload_deadline_s=None if deadline_ns is None else to_seconds(deadline_ns),
    )
