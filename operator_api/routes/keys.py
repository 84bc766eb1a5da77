"""``/keys`` and ``/oauth2/token``: API keys, and short-lived tokens for them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response

from operator_api.access_tokens import (
    FORM_MEDIA_TYPE,
    TOKEN_S,
    TokenRefusedError,
    find_credentials,
    read_token_form,
)
from operator_api.dependencies import PAGED, IdempotentRequestDep, PagingDep, ServiceDep, answer_page
from operator_api.openapi import (
    GUARDED,
    JSON_BODY,
    NO_CONTENT_ENCODING,
    TOO_SLOW,
    Responses,
    links,
    problems,
    together,
)
from operator_api.security import (
    Access,
    AuthenticatedRoute,
    access,
    created_at,
    log_caller,
    refuse_operators_among_devices,
)
from operator_api.service import Service
from services.access import ApiKey, NewKey, Principal, Scope
from services.contract.clients import (
    KeyRequest,
    KeyResponse,
    NewKeyResponse,
    TokenErrorResponse,
    TokenResponse,
)
from services.contract.common import KeyId
from services.errors import (
    IdempotencyKeyReusedError,
    KeyNotFoundError,
    NotAllowedError,
    TooLargeError,
    TooManyRequestsError,
)
from services.key_management import add_operator_key, revoke_key
from services.storage.database import UnitOfWork

router = APIRouter(tags=["keys"], route_class=AuthenticatedRoute)


@router.post(
    "/keys",
    summary="Make an operator key",
    status_code=201,
    response_model=NewKeyResponse,
    openapi_extra=access(Access.MANAGE) | created_at("/keys/{key_id}"),
    responses=together(
        problems(*GUARDED, *JSON_BODY, IdempotencyKeyReusedError),
        links(201, ("DELETE /keys/{key_id}", {"key_id": "$response.body#/key_id"})),
    ),
)
def make_operator_key(body: KeyRequest, idempotent: IdempotentRequestDep) -> Response:
    """A key that may look (`read`) or also act (`manage`). Its text is shown in this answer only."""

    def make(uow: UnitOfWork, now: datetime) -> NewKeyResponse:
        return new_key_response(*add_operator_key(uow, Scope(body.scope), body.name, now))

    return idempotent.answer(201, make)


@router.get(
    "/keys",
    summary="List keys",
    openapi_extra=access(Access.MANAGE),
    responses=PAGED | problems(*GUARDED),
)
def list_keys(
    request: Request, response: Response, service: ServiceDep, paging: PagingDep
) -> Sequence[KeyResponse]:
    """All keys of operators and clients, newest first; never their text."""
    with service.database.reading() as store:
        found = store.keys.page(paging)
    return answer_page(request, response, paging, found, KeyResponse.model_validate)


@router.delete(
    "/keys/{key_id}",
    summary="Revoke a key",
    status_code=204,
    openapi_extra=access(Access.MANAGE),
    responses=problems(*GUARDED, KeyNotFoundError),
)
def end_key(key_id: Annotated[KeyId, Path(description="The id of a key.")], service: ServiceDep) -> None:
    """End a key, its tokens and its open streams, and the key that was to replace it.

    The key in `FEDCS_OPERATOR_KEY` can only be changed there.
    """
    with service.database.unit_of_work() as uow:
        ended = revoke_key(uow, key_id, service.database.now())
        uow.commit()
    service.authenticator.forget(ended)


def new_key_response(new: NewKey, kept: ApiKey) -> NewKeyResponse:
    """A new key with its text."""
    return NewKeyResponse(**KeyResponse.model_validate(kept).model_dump(), api_key=new.text)


_GRANT = "client_credentials"
_NO_STORE = {"Cache-Control": "no-store", "Pragma": "no-cache"}
_CHALLENGE = {"WWW-Authenticate": 'Basic realm="fedcs", charset="UTF-8"'}

_FORM: dict[str, Any] = {
    "type": "object",
    "required": ["grant_type"],
    "properties": {
        "grant_type": {"type": "string", "enum": [_GRANT]},
        "client_id": {
            "type": "string",
            "description": "The id of a key; `operator` for `FEDCS_OPERATOR_KEY`. Unless sent by HTTP Basic.",
        },
        "client_secret": {"type": "string", "description": "The key; unless sent by HTTP Basic."},
        "scope": {
            "type": "string",
            "pattern": "^((read|manage|client)( (read|manage|client))*)?$",
            "description": "What the token is to be good for, of what the key is good for; all if not given.",
        },
    },
    "example": {
        "grant_type": _GRANT,
        "client_id": "d3d9446802a44259",
        "client_secret": "KEY",
        "scope": "read",
    },
}

_ERRORS: Responses = {
    400: {
        "model": TokenErrorResponse,
        "description": "Bad Request",
        "content": {
            "application/json": {
                "example": {"error": "invalid_scope", "error_description": "This key is good for: read."}
            }
        },
    },
    401: {
        "model": TokenErrorResponse,
        "description": "Unauthorized",
        "content": {
            "application/json": {
                "example": {
                    "error": "invalid_client",
                    "error_description": "There is no such key, or it was revoked.",
                }
            }
        },
    },
}


@router.post(
    "/oauth2/token",
    summary="Get a token for a key",
    response_model=TokenResponse,
    openapi_extra=access(Access.OPEN)
    | {"requestBody": {"required": True, "content": {FORM_MEDIA_TYPE: {"schema": _FORM}}}},
    responses=_ERRORS
    | problems(NotAllowedError, TOO_SLOW, TooLargeError, NO_CONTENT_ENCODING, TooManyRequestsError),
)
async def issue_token(request: Request, service: ServiceDep) -> Response:
    """A token that does what its key does, for ten minutes, or until the key is revoked.

    The OAuth 2.0 client-credentials grant: the id of the key and the key itself come by HTTP Basic, or as
    `client_id` and `client_secret` in the form.
    """
    try:
        form = await read_token_form(request)
        _check_grant(form)
        principal = await _authenticate(request, service, form)
        granted = replace(principal, scope=_grant(principal.scope, form.get("scope")))
    except TokenRefusedError as refusal:
        return _refused(refusal)
    token = TokenResponse(
        access_token=service.authenticator.tokens.issue(granted),
        expires_in=TOKEN_S,
        scope=granted.scope,
    )
    return Response(token.model_dump_json(), headers=_NO_STORE, media_type="application/json")


def _check_grant(form: Mapping[str, str]) -> None:
    if "grant_type" not in form:
        raise TokenRefusedError("invalid_request", f"Send grant_type={_GRANT}.")
    if form["grant_type"] != _GRANT:
        raise TokenRefusedError("unsupported_grant_type", f"There is one grant type, {_GRANT}.")


async def _authenticate(request: Request, service: Service, form: Mapping[str, str]) -> Principal:
    """The principal of the credentials; after too many failures no key is checked."""
    credentials = find_credentials(request, form)
    address = request.client.host if request.client else ""
    service.authenticator.failures.check(address)
    for secret in credentials.secrets:
        principal = await service.authenticator.holder(secret)
        if principal is not None and principal.key_id == credentials.client_id:
            log_caller(principal)
            service.authenticator.count(principal)
            refuse_operators_among_devices(request, principal)
            return principal
    service.authenticator.failures.hit(address)
    raise TokenRefusedError("invalid_client", "There is no such key, or it was revoked.")


def _grant(scope: Scope, asked: str | None) -> Scope:
    """The widest of the scopes asked for, if all are within that of the key."""
    if asked is None:
        return scope
    wanted = asked.split(" ")
    within = [kind.value for kind in Scope if kind in scope.included]
    if not set(wanted) <= set(within):
        raise TokenRefusedError("invalid_scope", f"This key is good for: {', '.join(within)}.")
    return scope if scope.value in wanted else Scope(wanted[0])


def _refused(refusal: TokenRefusedError) -> Response:
    unknown = refusal.code == "invalid_client"
    return Response(
        TokenErrorResponse(error=refusal.code, error_description=str(refusal)).model_dump_json(),
        401 if unknown else 400,
        headers=_NO_STORE | (_CHALLENGE if unknown else {}),
        media_type="application/json",
    )
