"""``/dashboard/login`` and ``/dashboard/logout``: a session for an operator's key."""

import math
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse

from operator_api.dashboard.page_route import FormDep, PageRoute
from operator_api.dashboard.rendering import render
from operator_api.dependencies import ServiceDep
from operator_api.security import Access, access
from services.access import Scope
from services.errors import NotAllowedError, TooManyRequestsError

router = APIRouter(route_class=PageRoute, include_in_schema=False)

_WRONG_KEY = "There is no such key, or it was revoked."
_CLIENT_KEY = "This is the key of a client. Log in with an operator's key."


@router.get("/dashboard/login", openapi_extra=access(Access.OPEN))
async def show_login(request: Request, next_path: Annotated[str, Query(alias="next")] = "") -> Response:
    """The form to log in with."""
    return _form(request, 200, next_path)


@router.post("/dashboard/login", openapi_extra=access(Access.OPEN))
async def log_in(request: Request, form: FormDep, service: ServiceDep) -> Response:
    """Begin a session, and go on to where the operator wanted to go."""
    _refuse_other_sites(request)
    dashboard = request.app.state.dashboard
    address = request.client.host if request.client else ""
    next_path = form.get("next", "")
    try:
        dashboard.failures.check(address)
    except TooManyRequestsError as error:
        response = _form(request, 429, next_path, str(error))
        response.headers["Retry-After"] = str(max(math.ceil(error.retry_after_s), 1))
        return response
    principal = await service.guard.holder(form.get("key", "").strip())
    if principal is None or principal.scope is Scope.CLIENT:
        dashboard.failures.note_failure(address)
        return (
            _form(request, 401, next_path, _WRONG_KEY)
            if principal is None
            else _form(request, 403, next_path, _CLIENT_KEY)
        )
    going_on = RedirectResponse(local_path(next_path, dashboard.root), 303)
    dashboard.sessions.begin(request, going_on, principal)
    return going_on


@router.post("/dashboard/logout", openapi_extra=access(Access.READ))
async def log_out(request: Request) -> Response:
    """End the session."""
    dashboard = request.app.state.dashboard
    response = RedirectResponse(dashboard.templates.url("/dashboard/login"), 303)
    dashboard.sessions.end(response)
    return response


def local_path(path: str, root: str) -> str:
    """Where to go after the log-in: a path of this service, else the overview."""
    overview = f"{root}/"
    # Browsers take a second slash for the start of a host, a backslash for a slash, and leave tabs out.
    names_a_host = path.startswith("//") or "\\" in path or not path.isprintable()
    return path if path.startswith(overview) and not names_a_host else overview


def _form(request: Request, status: int, next_path: str, error: str = "") -> Response:
    response = render(request, "login.html", status=status, next=next_path, error=error)
    if status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    return response


def _refuse_other_sites(request: Request) -> None:
    """There is no session yet whose token a form could send; browsers say from where a form comes."""
    if request.headers.get("Sec-Fetch-Site", "same-origin") not in {"same-origin", "none"}:
        raise NotAllowedError("This form was on another site.")
