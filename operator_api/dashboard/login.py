"""``/dashboard/login`` and ``/dashboard/logout``, and the session cookie that they set and delete."""

import base64
import hashlib
import hmac
import math
from functools import cached_property
from typing import Annotated

from cryptography.fernet import Fernet, InvalidToken
from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import SecretStr

from operator_api.access_tokens import derive_secret
from operator_api.dashboard.page_route import FormDep, PageRoute
from operator_api.dashboard.rendering import render
from operator_api.dependencies import ServiceDep
from operator_api.security import Access, access
from services.access import Principal, Scope
from services.errors import NotAllowedError, TooManyRequestsError

COOKIE = "fedcs_session"
SESSION_S = 12 * 3600
"""How long a session lasts: a shift."""


class Sessions:
    """Begins sessions, recognises and ends them."""

    def __init__(self, operator_key: SecretStr, root: str) -> None:
        self._operator_key = operator_key
        self._path = root or "/"

    def begin(self, request: Request, response: Response, principal: Principal) -> None:
        """Give the browser a session for the holder of a key."""
        response.set_cookie(
            COOKIE,
            self._seal.encrypt(principal.key_id.encode()).decode(),
            max_age=SESSION_S,
            path=self._path,
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )

    def end(self, response: Response) -> None:
        """Have the browser forget its session."""
        response.delete_cookie(COOKIE, path=self._path, httponly=True, samesite="strict")

    def key_id(self, request: Request) -> str | None:
        """The id of the key with which the session of a request was begun; none without a valid session."""
        try:
            sealed = request.cookies.get(COOKIE, "").encode()
            return self._seal.decrypt(sealed, ttl=SESSION_S).decode()
        except InvalidToken:
            return None

    def csrf_token(self, request: Request) -> str:
        """What a form of this session has to send along: only our own pages know it."""
        cookie = request.cookies.get(COOKIE, "")
        return hmac.new(self._secrets[32:], cookie.encode(), hashlib.sha256).hexdigest()

    def is_csrf_token(self, request: Request, token: str) -> bool:
        """Whether a form comes from a page of this session."""
        return hmac.compare_digest(self.csrf_token(request).encode(), token.encode())

    @cached_property
    def _seal(self) -> Fernet:
        return Fernet(base64.urlsafe_b64encode(self._secrets[:32]))

    @cached_property
    def _secrets(self) -> bytes:
        return derive_secret(self._operator_key, "dashboard session", 64)


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
    principal = await service.authenticator.holder(form.get("key", "").strip())
    if principal is None or principal.scope is Scope.CLIENT:
        dashboard.failures.hit(address)
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
