"""``/keys``: keys for operators, and the end of any key."""

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response

from operator_api.dependencies import OnceDep, PagingDep, ServiceDep
from operator_api.openapi import GUARDED, INVALID_REQUEST, JSON_BODY, links, problems, together
from operator_api.paging import PAGED, answer_page
from operator_api.security import Access, GuardedRoute, access
from services.access import ApiKey, Scope, make_key
from services.contract.clients import KeyRequest, KeyResponse, NewKeyResponse
from services.contract.fields import KeyId
from services.errors import IdempotencyKeyReusedError, KeyNotFoundError
from services.storage.database import UnitOfWork

router = APIRouter(tags=["keys"], route_class=GuardedRoute)


@router.post(
    "/keys",
    summary="Make an operator key",
    status_code=201,
    response_model=NewKeyResponse,
    openapi_extra=access(Access.MANAGE),
    responses=together(
        problems(*GUARDED, *JSON_BODY, IdempotencyKeyReusedError),
        links(201, ("DELETE /keys/{key_id}", {"key_id": "$response.body#/key_id"})),
    ),
)
def make_operator_key(body: KeyRequest, once: OnceDep) -> Response:
    """A key that may look (`read`) or also act (`manage`). Its text is shown in this answer only."""

    def make(uow: UnitOfWork, now: datetime) -> NewKeyResponse:
        new = make_key()
        scope = Scope(body.scope)
        uow.keys.add([ApiKey(new.key_id, new.digest, scope, body.name, now)], {})
        return NewKeyResponse(
            key_id=new.key_id,
            name=body.name,
            scope=scope,
            client_id=None,
            created_at=now,
            revoked_at=None,
            api_key=new.text,
        )

    return once.answer(201, make)


@router.get(
    "/keys",
    summary="List keys",
    openapi_extra=access(Access.MANAGE),
    responses=PAGED | problems(*GUARDED, INVALID_REQUEST),
)
def list_keys(
    request: Request, response: Response, service: ServiceDep, paging: PagingDep
) -> Sequence[KeyResponse]:
    """All keys of operators and clients, newest first; never their text."""
    with service.database.reading() as store:
        found = store.keys.page(paging)
    return answer_page(
        request, response, paging, found, lambda key: KeyResponse.model_validate(key, from_attributes=True)
    )


@router.delete(
    "/keys/{key_id}",
    summary="Revoke a key",
    status_code=204,
    openapi_extra=access(Access.MANAGE),
    responses=problems(*GUARDED, INVALID_REQUEST, KeyNotFoundError),
)
def revoke_key(key_id: Annotated[KeyId, Path()], service: ServiceDep) -> None:
    """From now on the key is good for nothing. The one in `FEDCS_OPERATOR_KEY` can only be changed there."""
    now = service.database.now()
    with service.database.unit_of_work() as uow:
        uow.keys.revoke(key_id, now)
        uow.events.record("key.revoked", now, key_id=key_id)
        uow.commit()
    service.guard.forget()
