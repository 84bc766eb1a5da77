"""Routes of the dashboard: each says with ``access`` who may come, and lets nobody else in.

Without a session a page sends to the log-in; what scripts ask for answers 401. Whatever changes something has
to bring the token that only our own pages know (CSRF), in the field ``csrf_token`` or the header
``X-CSRF-Token``.
"""

from collections.abc import Callable, Coroutine, Mapping
from http import HTTPStatus
from typing import Annotated, Any
from urllib.parse import parse_qsl

from fastapi import Depends, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import RedirectResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from operator_api.dashboard.rendering import render
from operator_api.problems import status_of
from operator_api.request_limits import with_body_limit
from operator_api.security import Access, authorise, log_caller, note_authenticated
from services.errors import FedCSError, NotAllowedError

_MAX_FORM_BYTES = 64 * 1024
_MAX_FIELDS = 200
_MAX_NUMBER_LENGTH = 32
_SAFE_METHODS = {"GET", "HEAD"}


class SessionNeededError(HTTPException):
    """The request has no valid session."""

    def __init__(self) -> None:
        detail = "The session has ended, or there was none: log in to the dashboard."
        super().__init__(401, detail, headers={"WWW-Authenticate": "Bearer"})


class DataRoute(APIRoute):
    """What a page's script or style asks for; refusals are problems, as in the API."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Check the session and the token, then do what any route does."""
        handle = super().get_route_handler()
        assert self.openapi_extra, f"{self.path} does not say who may call it"
        allowed = frozenset(self.openapi_extra["x-access"])

        async def guarded(request: Request) -> Response:
            limited = with_body_limit(request, _MAX_FORM_BYTES)
            await _admit(limited, allowed)
            return await handle(limited)

        return guarded


class PageRoute(DataRoute):
    """A page, or what its forms are sent to; refusals are pages too."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Do what a guarded route does, and show what goes wrong to a person."""
        handle = super().get_route_handler()

        async def shown(request: Request) -> Response:
            try:
                return await handle(request)
            except SessionNeededError:
                return _to_login(request)
            except FedCSError as error:
                return _error_page(request, status_of(type(error)), str(error))
            except HTTPException as error:
                page = _error_page(request, HTTPStatus(error.status_code), error.detail)
                page.headers.update(error.headers or {})
                return page
            except RequestValidationError as error:
                first = error.errors()[0]
                field = next(part for part in reversed(first["loc"]) if isinstance(part, str))
                text = f"{field}: {first['msg']}."
                return _error_page(request, HTTPStatus.UNPROCESSABLE_ENTITY, text)

        return shown


async def admit_session(request: Request) -> None:
    """Set the principal of the session; refuse an expired session or a revoked key."""
    key_id = request.app.state.dashboard.sessions.key_id(request)
    principal = None if key_id is None else await request.app.state.service.authenticator.holder_of_id(key_id)
    if principal is None:
        raise SessionNeededError
    note_authenticated(request)
    request.state.principal = principal


async def read_form(request: Request) -> Mapping[str, str]:
    """The fields of a form; of those that came twice, the last."""
    try:
        return dict(
            parse_qsl(
                (await request.body()).decode(errors="replace"),
                keep_blank_values=True,
                max_num_fields=_MAX_FIELDS,
            )
        )
    except ValueError as error:
        raise HTTPException(400, "The form has too many fields.") from error


def as_number(text: str) -> int | float | str:
    """A number if it is one; what is none is for the contract to refuse."""
    if len(text) > _MAX_NUMBER_LENGTH:
        return text
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


FormDep = Annotated[Mapping[str, str], Depends(read_form)]


async def _admit(request: Request, allowed: frozenset[str]) -> None:
    if Access.OPEN in allowed:
        return
    await admit_session(request)
    principal = request.state.principal
    log_caller(principal)
    request.app.state.service.authenticator.count(principal)
    authorise(principal, allowed)
    if request.method not in _SAFE_METHODS:
        await _check_token(request)


async def _check_token(request: Request) -> None:
    token = request.headers.get("X-CSRF-Token") or (await read_form(request)).get("csrf_token", "")
    if not request.app.state.dashboard.sessions.is_csrf_token(request, token):
        raise NotAllowedError("This did not come from a page of your session. Load the page again.")


def _to_login(request: Request) -> Response:
    """Back to the page afterwards, unless it was a form: what was entered there is lost."""
    query = {}
    if request.method in _SAFE_METHODS:
        path, search = request.url.path, request.url.query
        query["next"] = f"{path}?{search}" if search else path
    return RedirectResponse(request.app.state.dashboard.templates.url("/dashboard/login", **query), 303)


def _error_page(request: Request, status: HTTPStatus, text: str) -> Response:
    return render(request, "error.html", status=status, title=status.phrase, text=text)
