"""``GET /assignments``: what a client has to do now."""

import time
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic.json_schema import SkipJsonSchema

from operator_api.dependencies import PrincipalDep, ServiceDep, etag_of, matches_etag
from operator_api.openapi import GUARDED, Responses, problems
from operator_api.round_view import planned_slot
from operator_api.security import Access, AuthenticatedRoute, access, unauthenticated
from operator_api.service import Service
from services.contract.assignments import AssignmentsResponse, ReportAssignment, TrainAssignment
from services.domain.nanoseconds import to_seconds
from services.domain.rounds import Round, RoundState
from services.domain.tasks import Clock, Dispatch
from services.protocol.channel import channel_state
from services.storage.database import Store

router = APIRouter(tags=["devices"], route_class=AuthenticatedRoute)

_TIMES_LEFT = {"assignments": {"__all__": {"starts_in_s", "ends_in_s"}}}
"""Fields that differ from one answer to the next although nothing has changed."""
_ETAG = {"ETag": {"description": "Names this state.", "schema": {"type": "string"}}}
_CONDITIONAL: Responses = {
    200: {"headers": _ETAG},
    304: {"description": "Nothing has changed.", "headers": _ETAG},
}


@router.get(
    "/assignments",
    summary="What to do now",
    response_model=AssignmentsResponse,
    openapi_extra=access(Access.CLIENT),
    responses=_CONDITIONAL | problems(*GUARDED),
)
async def get_assignments(
    request: Request,
    service: ServiceDep,
    principal: PrincipalDep,
    wait_s: Annotated[
        float,
        Query(
            ge=0, le=60, allow_inf_nan=False, description="With `If-None-Match`: wait so long for a change."
        ),
    ] = 0.0,
    if_none_match: Annotated[
        str | SkipJsonSchema[None],
        Header(description="The `ETag` of the answer before: 304 if there is no other."),
    ] = None,
) -> Response:
    """Rounds that ask this client for its resources, or wait for its update.

    A long poll: send the `ETag` of the answer before as `If-None-Match`, and `wait_s`. The answer comes as
    soon as something has changed; 304 if nothing has. Without `If-None-Match` the answer comes at once.
    """
    client_id = principal.client_id
    assert client_id is not None, "a client's key"
    until = time.monotonic() + wait_s
    with service.hub.waiting(client_id) as waiting:
        while True:
            waiting.begin()
            found = await run_in_threadpool(_assignments, service, client_id)
            etag = etag_of(found.model_dump_json(exclude=_TIMES_LEFT).encode())
            headers = {"ETag": etag, "Cache-Control": "private, no-cache"}
            if not matches_etag(if_none_match, etag):
                return Response(found.model_dump_json(), headers=headers, media_type="application/json")
            left_s = until - time.monotonic()
            if left_s <= 0 or service.hub.is_closed:
                return Response(status_code=304, headers=headers)
            await waiting.for_change({assignment.round_id for assignment in found.assignments}, left_s)
            if not await service.authenticator.is_still_admitted(request):
                raise unauthenticated()


def _assignments(service: Service, client_id: str) -> AssignmentsResponse:
    with service.database.reading() as store:
        now = service.database.now()
        rounds = [
            round_
            for round_ in store.rounds.open_for(client_id)
            if round_.upload_deadline_at is None or now < round_.upload_deadline_at
        ]
        return AssignmentsResponse(
            assignments=[_assignment(store, round_, client_id, now) for round_ in rounds]
        )


def _assignment(
    store: Store, round_: Round, client_id: str, now: datetime
) -> ReportAssignment | TrainAssignment:
    if round_.state is RoundState.REQUESTING:
        assert round_.window_ends_at is not None, "it asks for reports"
        return ReportAssignment(
            task_id=round_.task_id,
            round_id=round_.round_id,
            until=round_.window_ends_at,
            starts_in_s=0.0,
            ends_in_s=(round_.window_ends_at - now).total_seconds(),
        )
    terms = store.tasks.get(round_.task_id).terms
    slot = store.rounds.slot(round_.serial, client_id)
    assert slot is not None, "it waits for this client's update"
    assert round_.started_at is not None, "it has slots"
    model = store.models.get(round_.task_serial, round_.model_version)
    passed_s = (now - round_.started_at).total_seconds() if terms.clock is Clock.WALL else None
    deadline_ns = round_.terms.upload_deadline_ns
    return TrainAssignment(
        task_id=round_.task_id,
        round_id=round_.round_id,
        local_epochs=terms.local_epochs,
        batch_size=terms.batch_size,
        learning_rate=round_.learning_rate(terms),
        gradient_clip_norm=terms.gradient_clip_norm,
        local_momentum=terms.local_momentum,
        weight_decay=terms.weight_decay,
        proximal_mu=terms.proximal_mu,
        calibrated_loss=terms.calibrated_loss,
        slot=planned_slot(slot, store.rounds.cell(round_.serial, slot.cell_id)),
        started_at=round_.started_at,
        upload_deadline_s=None if deadline_ns is None else to_seconds(deadline_ns),
        starts_in_s=None if passed_s is None else to_seconds(slot.window_start_ns) - passed_s,
        ends_in_s=None if passed_s is None else to_seconds(slot.window_end_ns) - passed_s,
        model_version=model.version,
        model_size_bytes=model.download.size_bytes,
        model_digest=model.download.digest,
        model_encoding=round_.terms.model_encoding,
        update_encoding=round_.terms.update_encoding,
        topk_fraction=round_.terms.topk_fraction,
        channel=channel_state(slot) if round_.terms.dispatch is Dispatch.ON_READY else None,
    )
