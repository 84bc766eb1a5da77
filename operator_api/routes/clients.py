"""``/clients``: enrolment, and what is known of each client."""

import secrets
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic.json_schema import SkipJsonSchema

from operator_api.client_view import client_response, client_responses
from operator_api.dependencies import (
    PAGED,
    IdempotentRequestDep,
    PagingDep,
    PrincipalDep,
    ServiceDep,
    answer_page,
)
from operator_api.openapi import GUARDED, JSON_BODY, links, problems, together
from operator_api.routes.cells import require_cells
from operator_api.routes.keys import new_key_response
from operator_api.security import (
    Access,
    AuthenticatedRoute,
    access,
    created_at,
    require_client,
    unauthenticated,
)
from services.access import ApiKey, Scope, make_key
from services.contract.clients import (
    ClientChangeRequest,
    ClientKeyRequest,
    ClientResponse,
    EnrolmentBatchRequest,
    EnrolmentBatchResponse,
    EnrolmentRequest,
    EnrolmentResponse,
    NewKeyResponse,
)
from services.contract.common import CellId, ClientId
from services.contract.reports import ReportResponse
from services.errors import (
    ClientExistsError,
    ClientNotFoundError,
    IdempotencyKeyReusedError,
    TooManyKeysError,
)
from services.key_management import add_client_key, revoke_client_keys, rotate_key
from services.protocol.aggregation import drop_client
from services.storage.clients import Client
from services.storage.database import UnitOfWork
from services.storage.sql import Page

router = APIRouter(tags=["clients"], route_class=AuthenticatedRoute)

ClientPath = Annotated[ClientId, Path(description="The id of a client.")]

_THIS_CLIENT = {"client_id": "$response.body#/client_id"}


@router.post(
    "/clients",
    summary="Enrol a client",
    status_code=201,
    response_model=EnrolmentResponse,
    openapi_extra=access(Access.MANAGE) | created_at("/clients/{client_id}"),
    responses=together(
        problems(*GUARDED, *JSON_BODY, ClientExistsError, IdempotencyKeyReusedError),
        links(
            201,
            ("GET /clients/{client_id}", _THIS_CLIENT),
            ("GET /clients/{client_id}/reports", _THIS_CLIENT),
            ("PATCH /clients/{client_id}", _THIS_CLIENT),
            ("POST /clients/{client_id}/keys", _THIS_CLIENT),
            ("DELETE /clients/{client_id}/keys", _THIS_CLIENT),
            ("DELETE /keys/{key_id}", {"key_id": "$response.body#/key_id"}),
            ("DELETE /clients/{client_id}", _THIS_CLIENT),
        ),
    ),
)
def enrol_client(body: EnrolmentRequest, idempotent: IdempotentRequestDep) -> Response:
    """Let a client take part. Its key is shown in this answer only."""

    def enrol(uow: UnitOfWork, now: datetime) -> EnrolmentResponse:
        require_cells(uow, [(("cell_id",), body.cell_id)])
        return enrol_all(uow, [body], now)[0]

    return idempotent.answer(201, enrol)


@router.post(
    "/clients/batch",
    summary="Enrol many clients",
    status_code=201,
    response_model=EnrolmentBatchResponse,
    openapi_extra=access(Access.MANAGE) | created_at("/clients"),
    responses=problems(*GUARDED, *JSON_BODY, ClientExistsError, IdempotencyKeyReusedError),
)
def enrol_clients(body: EnrolmentBatchRequest, idempotent: IdempotentRequestDep) -> Response:
    """Enrol up to 10,000 clients: all of them, or none."""

    def enrol(uow: UnitOfWork, now: datetime) -> EnrolmentBatchResponse:
        named = [(("clients", place, "cell_id"), client.cell_id) for place, client in enumerate(body.clients)]
        require_cells(uow, named)
        return EnrolmentBatchResponse(clients=enrol_all(uow, body.clients, now))

    return idempotent.answer(201, enrol)


@router.get(
    "/clients",
    summary="List clients",
    openapi_extra=access(Access.READ),
    responses=PAGED | problems(*GUARDED),
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
    cell_id: Annotated[CellId | SkipJsonSchema[None], Query(description="Only those in this cell.")] = None,
) -> Sequence[ClientResponse]:
    """The enrolled clients, in the order of their enrolment."""
    asked = {text.partition("=")[::2] for text in label or ()}
    labels = dict(asked)
    with service.database.reading() as store:
        has_two_values = len(labels) < len(asked)  # which no client has
        found = Page[Client]([], 0) if has_two_values else store.clients.page(paging, labels, cell_id)
        shown = client_responses(store, found.items)
        return answer_page(request, response, paging, found, lambda client: shown[client.client_id])


@router.get(
    "/clients/{client_id}",
    summary="Show a client",
    openapi_extra=access(Access.READ),
    responses=problems(*GUARDED, ClientNotFoundError),
)
def get_client(client_id: ClientPath, service: ServiceDep) -> ClientResponse:
    """A client, with the accuracy of its past reports and its share in running tasks."""
    with service.database.reading() as store:
        return client_response(store, store.clients.get(client_id))


@router.patch(
    "/clients/{client_id}",
    summary="Change a client",
    openapi_extra=access(Access.MANAGE),
    responses=problems(*GUARDED, *JSON_BODY, ClientNotFoundError),
)
def change_client(client_id: ClientPath, body: ClientChangeRequest, service: ServiceDep) -> ClientResponse:
    """Put a client into another cell, or give it other labels. Open rounds go on as planned."""
    with service.database.unit_of_work() as uow:
        if body.cell_id is not None:
            require_cells(uow, [(("cell_id",), body.cell_id)])
        client = uow.clients.change(client_id, cell_id=body.cell_id, labels=body.labels)
        answer = client_response(uow, client)
        uow.commit()
    return answer


@router.delete(
    "/clients/{client_id}",
    summary="Remove a client",
    status_code=204,
    openapi_extra=access(Access.MANAGE),
    responses=problems(*GUARDED, ClientNotFoundError),
)
def remove_client(client_id: ClientPath, service: ServiceDep) -> None:
    """Forget a client, its keys and its reports. Rounds do not wait for it any more; their record stays."""
    with service.database.unit_of_work() as uow:
        forget_client(uow, client_id, service.database.now())
        uow.commit()
    service.authenticator.forget_all()


@router.get(
    "/clients/{client_id}/reports",
    summary="List a client's reports",
    openapi_extra=access(Access.READ, Access.CLIENT),
    responses=PAGED | problems(*GUARDED, ClientNotFoundError),
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
    summary="Make a key for a client",
    status_code=201,
    response_model=NewKeyResponse,
    openapi_extra=access(Access.MANAGE, Access.CLIENT) | created_at("/keys/{key_id}"),
    responses=together(
        problems(*GUARDED, *JSON_BODY, ClientNotFoundError, TooManyKeysError, IdempotencyKeyReusedError),
        links(201, ("DELETE /keys/{key_id}", {"key_id": "$response.body#/key_id"})),
    ),
)
def make_client_key(
    client_id: ClientPath, body: ClientKeyRequest, idempotent: IdempotentRequestDep, principal: PrincipalDep
) -> Response:
    """For an operator: a further key, up to five for each client. For the client itself: its next key.

    A client rotates its key with this. The key it asks with works until the new one, named in the answer, is
    first used, and ends then; if the answer is lost, ask again. A key that is asked for again takes the place
    of the one before, if that one was not used.
    """
    require_client(principal, client_id)

    def make(uow: UnitOfWork, now: datetime) -> NewKeyResponse:
        if principal.scope is Scope.CLIENT:
            made = rotate_key(uow, client_id, principal.key_id, body.name, now)
        else:
            made = add_client_key(uow, client_id, body.name, now)
        if made is None:
            raise unauthenticated()
        return new_key_response(*made)

    return idempotent.answer(201, make)


@router.delete(
    "/clients/{client_id}/keys",
    summary="Revoke all keys of a client",
    status_code=204,
    openapi_extra=access(Access.MANAGE),
    responses=problems(*GUARDED, ClientNotFoundError),
)
def end_client_keys(client_id: ClientPath, service: ServiceDep) -> None:
    """End every key of a client, with their tokens and open requests. The client stays enrolled.

    This is what to do when a client's key has leaked: whoever had it may have rotated it. Then make a new key
    for the client. To call it again changes nothing.
    """
    with service.database.unit_of_work() as uow:
        ended = revoke_client_keys(uow, client_id, service.database.now())
        uow.commit()
    service.authenticator.forget(ended)


def forget_client(uow: UnitOfWork, client_id: str, now: datetime) -> None:
    """Delete a client; its open rounds do not wait for it any more."""
    for round_ in uow.rounds.open_for(client_id):
        drop_client(uow, client_id, round_.round_id, now)
    uow.clients.remove(client_id)
    uow.events.record("client.removed", now, client_id=client_id)


def enrol_all(
    uow: UnitOfWork, requests: Sequence[EnrolmentRequest], now: datetime
) -> list[EnrolmentResponse]:
    """Enrol clients, with a key each."""
    enrolments = {request.client_id or f"client-{secrets.token_hex(8)}": request for request in requests}
    labels = {client_id: request.labels for client_id, request in enrolments.items()}
    cell_ids = {client_id: request.cell_id for client_id, request in enrolments.items()}
    serials = uow.clients.add(labels, now, cell_ids)
    keys = {client_id: make_key() for client_id in labels}
    kept = [
        ApiKey(key.key_id, key.digest, Scope.CLIENT, "", now, client_id) for client_id, key in keys.items()
    ]
    uow.keys.add(kept, serials)
    uow.events.record("clients.enrolled", now, number=len(labels))
    return [
        EnrolmentResponse(
            client_id=client_id,
            labels=request.labels,
            cell_id=request.cell_id,
            enrolled_at=now,
            key_id=keys[client_id].key_id,
            api_key=keys[client_id].text,
        )
        for client_id, request in enrolments.items()
    ]
