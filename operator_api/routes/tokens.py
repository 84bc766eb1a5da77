"""``POST /oauth2/token``: short-lived tokens for keys, by the client-credentials grant (RFC 6749, 4.4)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request, Response

from operator_api.access_tokens import TOKEN_S
from operator_api.client_credentials import (
    FORM_MEDIA_TYPE,
    TokenRefusedError,
    find_credentials,
    read_token_form,
)
from operator_api.dependencies import ServiceDep
from operator_api.openapi import NO_CONTENT_ENCODING, TOO_SLOW, Responses, problems
from operator_api.security import Access, GuardedRoute, access, log_caller
from operator_api.service import Service
from services.access import Principal, Scope
from services.contract.tokens import TokenErrorResponse, TokenResponse
from services.errors import TooLargeError, TooManyRequestsError

router = APIRouter(tags=["keys"], route_class=GuardedRoute)

_GRANT = "client_credentials"
_NOT_TO_BE_KEPT = {"Cache-Control": "no-store", "Pragma": "no-cache"}
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
    responses=_ERRORS | problems(TOO_SLOW, TooLargeError, NO_CONTENT_ENCODING, TooManyRequestsError),
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
        access_token=service.guard.tokens.issue(granted),
        expires_in=TOKEN_S,
        scope=granted.scope,
    )
    return Response(token.model_dump_json(), headers=_NOT_TO_BE_KEPT, media_type="application/json")


def _check_grant(form: Mapping[str, str]) -> None:
    if "grant_type" not in form:
        raise TokenRefusedError("invalid_request", f"Send grant_type={_GRANT}.")
    if form["grant_type"] != _GRANT:
        raise TokenRefusedError("unsupported_grant_type", f"There is one grant type, {_GRANT}.")


async def _authenticate(request: Request, service: Service, form: Mapping[str, str]) -> Principal:
    """The holder of the key that came; those who try too many are refused without a look at it."""
    credentials = find_credentials(request, form)
    address = request.client.host if request.client else ""
    service.guard.failures.check(address)
    for secret in credentials.secrets:
        principal = await service.guard.holder(secret)
        if principal is not None and principal.key_id == credentials.client_id:
            log_caller(principal)
            service.guard.count(principal)
            return principal
    service.guard.failures.note_failure(address)
    raise TokenRefusedError("invalid_client", "There is no such key, or it was revoked.")


def _grant(scope: Scope, asked: str | None) -> Scope:
    """The widest of the scopes asked for, if all are within that of the key."""
    if asked is None:
        return scope
    wanted = asked.split(" ")
    within = [one.value for one in Scope if one in scope.included]
    if not set(wanted) <= set(within):
        raise TokenRefusedError("invalid_scope", f"This key is good for: {', '.join(within)}.")
    return scope if scope.value in wanted else Scope(wanted[0])


def _refused(refusal: TokenRefusedError) -> Response:
    unknown = refusal.code == "invalid_client"
    return Response(
        TokenErrorResponse(error=refusal.code, error_description=str(refusal)).model_dump_json(),
        401 if unknown else 400,
        headers=_NOT_TO_BE_KEPT | (_CHALLENGE if unknown else {}),
        media_type="application/json",
    )
