"""``/clients``: enrolment, and what is known of each client."""

import secrets
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic.json_schema import SkipJsonSchema

from operator_api.dependencies import OnceDep, PagingDep, PrincipalDep, ServiceDep
from operator_api.openapi import GUARDED, INVALID_REQUEST, JSON_BODY, links, problems, together
from operator_api.paging import PAGED, answer_page
from operator_api.security import Access, GuardedRoute, access, require_client
from services.access import ApiKey, Scope, make_key
from services.contract.clients import (
    ClientKeyRequest,
    ClientResponse,
    EnrolmentBatchRequest,
    EnrolmentBatchResponse,
    EnrolmentRequest,
    EnrolmentResponse,
    NewKeyResponse,
    TrackRecordResponse,
)
from services.contract.fields import ClientId
from services.contract.reports import ReportResponse
from services.errors import ClientExistsError, ClientNotFoundError, IdempotencyKeyReusedError
from services.protocol.aggregation import drop_client
from services.storage.clients import Client, TrackRecord
from services.storage.database import UnitOfWork
from services.storage.rows import Page

router = APIRouter(tags=["clients"], route_class=GuardedRoute)

ClientPath = Annotated[ClientId, Path()]

_THIS_CLIENT = {"client_id": "$response.body#/client_id"}


@router.post(
    "/clients",
    summary="Enrol a client",
    status_code=201,
    response_model=EnrolmentResponse,
    openapi_extra=access(Access.MANAGE),
    responses=together(
        problems(*GUARDED, *JSON_BODY, ClientExistsError, IdempotencyKeyReusedError),
        links(
            201,
            ("GET /clients/{client_id}", _THIS_CLIENT),
            ("GET /clients/{client_id}/reports", _THIS_CLIENT),
            ("POST /clients/{client_id}/keys", _THIS_CLIENT),
            ("POST /reports", {"body.client_id": "$response.body#/client_id"}),
            ("DELETE /keys/{key_id}", {"key_id": "$response.body#/key_id"}),
            ("DELETE /clients/{client_id}", _THIS_CLIENT),
        ),
    ),
)
def enrol_client(body: EnrolmentRequest, once: OnceDep) -> Response:
    """Let a client take part. Its key is shown in this answer only."""
    return once.answer(201, lambda uow, now: _enrol(uow, [body], now)[0])


@router.post(
    "/clients/batch",
    summary="Enrol many clients",
    status_code=201,
    response_model=EnrolmentBatchResponse,
    openapi_extra=access(Access.MANAGE),
    responses=problems(*GUARDED, *JSON_BODY, ClientExistsError, IdempotencyKeyReusedError),
)
def enrol_clients(body: EnrolmentBatchRequest, once: OnceDep) -> Response:
    """Enrol up to 10,000 clients: all of them, or none."""
    return once.answer(201, lambda uow, now: EnrolmentBatchResponse(clients=_enrol(uow, body.clients, now)))


@router.get(
    "/clients",
    summary="List clients",
    openapi_extra=access(Access.READ),
    responses=PAGED | problems(*GUARDED, INVALID_REQUEST),
)
def list_clients(
    request: Request,
    response: Response,
    service: ServiceDep,
    paging: PagingDep,
    label: Annotated[
        list[Annotated[str, Query(pattern=r"^[A-Za-z0-9_.-]{1,64}=[^\x00-\x1f\x7f]{0,128}$")]]
        | SkipJsonSchema[None],
        Query(
            description="Only those with this label, as `name=value`.",
            max_length=32,
            examples=[["vehicle=bus"]],
        ),
    ] = None,
) -> Sequence[ClientResponse]:
    """The enrolled clients, in the order of their enrolment."""
    asked = {one.partition("=")[::2] for one in label or ()}
    labels = dict(asked)
    with service.database.reading() as store:
        has_two_values = len(labels) < len(asked)  # which no client has
        found = Page[Client]([], 0) if has_two_values else store.clients.page(paging, labels)
        records = store.clients.track_records([client.client_id for client in found.items])
        return answer_page(
            request, response, paging, found, lambda client: _response(client, records[client.client_id])
        )


@router.get(
    "/clients/{client_id}",
    summary="Show a client",
    openapi_extra=access(Access.READ),
    responses=problems(*GUARDED, INVALID_REQUEST, ClientNotFoundError),
)
def get_client(client_id: ClientPath, service: ServiceDep) -> ClientResponse:
    """One client, with how well its reports told what it would do."""
    with service.database.reading() as store:
        return _response(store.clients.get(client_id), store.clients.track_records([client_id])[client_id])


@router.delete(
    "/clients/{client_id}",
    summary="Remove a client",
    status_code=204,
    openapi_extra=access(Access.MANAGE),
    responses=problems(*GUARDED, INVALID_REQUEST, ClientNotFoundError),
)
def remove_client(client_id: ClientPath, service: ServiceDep) -> None:
    """Forget a client, its keys and its reports. Rounds do not wait for it any more; their record stays."""
    now = service.database.now()
    with service.database.unit_of_work() as uow:
        for round_ in uow.rounds.open_for(client_id):
            drop_client(uow, client_id, round_.round_id, now)
        uow.clients.remove(client_id)
        uow.events.record("client.removed", now, client_id=client_id)
        uow.commit()
    service.guard.forget()


@router.get(
    "/clients/{client_id}/reports",
    summary="List a client's reports",
    openapi_extra=access(Access.READ, Access.CLIENT),
    responses=PAGED | problems(*GUARDED, INVALID_REQUEST, ClientNotFoundError),
)
def list_reports(
    client_id: ClientPath,
    request: Request,
    response: Response,
    service: ServiceDep,
    principal: PrincipalDep,
    paging: PagingDep,
) -> Sequence[ReportResponse]:
    """A client's resource reports, newest first."""
    require_client(principal, client_id)
    with service.database.reading() as store:
        found = store.reports.page(store.clients.get(client_id).serial, paging)
    return answer_page(
        request,
        response,
        paging,
        found,
        lambda report: ReportResponse.model_validate(report, from_attributes=True),
    )


@router.post(
    "/clients/{client_id}/keys",
    summary="Make a further key for a client",
    status_code=201,
    response_model=NewKeyResponse,
    openapi_extra=access(Access.MANAGE, Access.CLIENT),
    responses=together(
        problems(*GUARDED, *JSON_BODY, ClientNotFoundError, IdempotencyKeyReusedError),
        links(201, ("DELETE /keys/{key_id}", {"key_id": "$response.body#/key_id"})),
    ),
)
def make_client_key(
    client_id: ClientPath, body: ClientKeyRequest, once: OnceDep, principal: PrincipalDep
) -> Response:
    """To change a key: make a new one, use it, and revoke the old one."""
    require_client(principal, client_id)

    def make(uow: UnitOfWork, now: datetime) -> NewKeyResponse:
        client = uow.clients.get(client_id)
        new = make_key()
        kept = ApiKey(new.key_id, new.digest, Scope.CLIENT, body.name, now, client_id)
        uow.keys.add([kept], {client_id: client.serial})
        return NewKeyResponse(
            key_id=new.key_id,
            name=body.name,
            scope=Scope.CLIENT,
            client_id=client_id,
            created_at=now,
            revoked_at=None,
            api_key=new.text,
        )

    return once.answer(201, make)


def _enrol(uow: UnitOfWork, asked: Sequence[EnrolmentRequest], now: datetime) -> list[EnrolmentResponse]:
    labels = {one.client_id or f"client-{secrets.token_hex(8)}": one.labels for one in asked}
    serials = uow.clients.add(labels, now)
    keys = {client_id: make_key() for client_id in labels}
    kept = [
        ApiKey(key.key_id, key.digest, Scope.CLIENT, "", now, client_id) for client_id, key in keys.items()
    ]
    uow.keys.add(kept, serials)
    uow.events.record("clients.enrolled", now, number=len(labels))
    return [
        EnrolmentResponse(
            client_id=client_id,
            labels=own,
            enrolled_at=now,
            key_id=keys[client_id].key_id,
            api_key=keys[client_id].text,
        )
        for client_id, own in labels.items()
    ]


def _response(client: Client, record: TrackRecord) -> ClientResponse:
    return ClientResponse(
        client_id=client.client_id,
        labels=dict(client.labels),
        enrolled_at=client.enrolled_at,
        record=TrackRecordResponse.model_validate(record, from_attributes=True),
    )
