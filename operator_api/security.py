"""Who is calling, and what they may do: keys in the ``Authorization: Bearer`` header.

Every route says with ``access`` who may call it; the same words are in the OpenAPI document. It is enforced
by the route's class, before the body is read: FastAPI would read and parse up to the limit of megabytes for
anyone, and only then ask the dependencies. A route that says nothing cannot be built.
"""

import time
from collections.abc import Callable, Coroutine
from enum import StrEnum
from typing import Any

import structlog
from fastapi import HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.routing import APIRoute
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter

from operator_api.body_limit import with_body_limit
from services.access import ApiKey, Principal, Scope, digest_of, key_id_of, same_key
from services.errors import NotAllowedError, TooManyRequestsError
from services.settings import Settings
from services.storage.database import Database

_KNOWN_FOR_S = 1.0
"""How long a key is not looked up again: so long at the most one that another process revoked still works."""
_MOST_KNOWN = 100_000

SECURITY_SCHEME = "ApiKey"
UNAUTHENTICATED_DETAIL = "Send the header Authorization: Bearer KEY with a valid key."


class Access(StrEnum):
    """Who may call an operation."""

    OPEN = "open"
    """Anyone, without a key."""
    READ = "operator:read"
    """An operator key of any scope."""
    MANAGE = "operator:manage"
    """An operator key that may act."""
    CLIENT = "client"
    """A client's key, for what is its own."""


_ALLOWS = {
    Scope.READ: {Access.READ},
    Scope.MANAGE: {Access.READ, Access.MANAGE},
    Scope.CLIENT: {Access.CLIENT},
}


def access(*who: Access) -> dict[str, Any]:
    """Say who may call a route, as its ``openapi_extra``."""
    security: list[dict[str, list[str]]] = [] if Access.OPEN in who else [{SECURITY_SCHEME: []}]
    return {"x-access": [one.value for one in who], "security": security}


class Guard:
    """Checks keys, what they are good for, and how often they come."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._operator_digest = digest_of(settings.operator_key.get_secret_value())
        self._database = database
        self._limiter = FixedWindowRateLimiter(MemoryStorage())
        self._client_limit, self._operator_limit = settings.rate_limits
        self._known: dict[str, tuple[float, ApiKey]] = {}

    async def identify(self, request: Request) -> Principal:
        """The holder of the key that came with a request."""
        principal = await self._holder(bearer_text(request))
        if principal is None:
            raise HTTPException(401, UNAUTHENTICATED_DETAIL, headers={"WWW-Authenticate": "Bearer"})
        self._count(principal)
        return principal

    def forget(self) -> None:
        """Look every key up again: one was revoked here."""
        self._known = {}

    async def _holder(self, text: str) -> Principal | None:
        if same_key(text, self._operator_digest):
            return Principal("operator", Scope.MANAGE)
        key_id = key_id_of(text)
        if key_id is None:
            return None
        read_at, key = self._known.get(key_id, (0.0, None))
        if time.monotonic() >= read_at + _KNOWN_FOR_S:
            key = await run_in_threadpool(self._look_up, key_id)
        if key is None or not same_key(text, key.digest):
            return None
        return Principal(key.key_id, key.scope, key.client_id)

    def _look_up(self, key_id: str) -> ApiKey | None:
        read_at = time.monotonic()
        known = self._known  # if it is forgotten while the key is read, so is what was read
        with self._database.reading() as store:
            key = store.keys.find(key_id)
        if key is not None:
            if len(known) >= _MOST_KNOWN:
                known.clear()
            known[key_id] = (read_at, key)
        return key

    def _count(self, principal: Principal) -> None:
        limit = self._client_limit if principal.scope is Scope.CLIENT else self._operator_limit
        if not self._limiter.hit(limit, principal.key_id):
            left_s = self._limiter.get_window_stats(limit, principal.key_id).reset_time - time.time()
            raise TooManyRequestsError(f"This key may ask {limit}.", left_s)


def bearer_text(request: Request) -> str:
    """The text of the key that came with a request; empty if none did."""
    scheme, _, text = request.headers.get("Authorization", "").partition(" ")
    return text.strip() if scheme.lower() == "bearer" else ""


def authorise(principal: Principal, allowed: frozenset[str]) -> None:
    """Refuse a key that is not for this operation."""
    if not allowed & {one.value for one in _ALLOWS[principal.scope]}:
        raise NotAllowedError(f"This operation takes a key for {' or '.join(sorted(allowed))}.")


class GuardedRoute(APIRoute):
    """A route that says who may call it, and lets nobody else in."""

    takes_models = False
    """Whether its body is a model, streamed, rather than JSON."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Check the key and the size of the body, then do what any route does."""
        handle = super().get_route_handler()
        assert self.openapi_extra, f"{self.path} does not say who may call it"
        allowed = frozenset(self.openapi_extra["x-access"])

        async def guarded(request: Request) -> Response:
            settings: Settings = request.app.state.service.settings
            if Access.OPEN not in allowed:
                principal = await request.app.state.service.guard.identify(request)
                _log_caller(principal)
                authorise(principal, allowed)
                request.state.principal = principal
            max_bytes = settings.max_model_bytes if self.takes_models else settings.max_json_bytes
            return await handle(with_body_limit(request, max_bytes))

        return guarded


def _log_caller(principal: Principal) -> None:
    client = {} if principal.client_id is None else {"client_id": principal.client_id}
    structlog.contextvars.bind_contextvars(caller=principal.key_id, **client)


class ModelRoute(GuardedRoute):
    """A guarded route whose body is a model."""

    takes_models = True


def require_client(principal: Principal, client_id: str) -> None:
    """Refuse a client's key for anything of another client."""
    if principal.scope is Scope.CLIENT and principal.client_id != client_id:
        raise NotAllowedError(f"This key acts for the client {principal.client_id!r} only.")
