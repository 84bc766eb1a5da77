"""Who is calling, and what they may do: keys, or tokens for them, in the ``Authorization: Bearer`` header.

Every route says with ``access`` who may call it; the same words are in the OpenAPI document. It is enforced
by the route's class, before the body is read: FastAPI would read and parse up to the limit of megabytes for
anyone, and only then ask the dependencies. A route that says nothing cannot be built.
"""

import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from enum import StrEnum
from typing import Any

import structlog
from fastapi import HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.routing import APIRoute

from operator_api.access_tokens import AccessTokens, looks_like_token
from operator_api.body_limit import with_body_limit
from operator_api.event_hub import EventHub
from operator_api.failed_attempts import FailedAttempts
from operator_api.rate_limit import RateLimit
from services.access import ApiKey, Principal, Scope, digest_of, key_id_of, same_key
from services.errors import NotAllowedError
from services.settings import Settings
from services.storage.database import Database

_KNOWN_FOR_S = 1.0
"""A key is not looked up again while events are known up to so long ago, and tell of no key that has ended:
one that another process revoked still works for so long at the most.
"""
_ENDING_KEYS = {"key.revoked", "client.removed"}
_MOST_KNOWN = 100_000
_MOST_CLIENT_JSON_BYTES = 64 * 1024
"""Of those who are no operators: a report is small, and JSON takes many times its size to read."""

SECURITY_SCHEME = "ApiKey"
OAUTH_SCHEME = "OAuth2"
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


_LEAST_SCOPE = {
    Access.READ: Scope.READ,
    Access.MANAGE: Scope.MANAGE,
    Access.CLIENT: Scope.CLIENT,
}


def access(*who: Access) -> dict[str, Any]:
    """Say who may call a route, as its ``openapi_extra``."""
    security: list[dict[str, list[str]]] = []
    if Access.OPEN not in who:
        security = [{SECURITY_SCHEME: []}, *({OAUTH_SCHEME: [_LEAST_SCOPE[one].value]} for one in who)]
    return {"x-access": [one.value for one in who], "security": security}


_OPERATOR = Principal("operator", Scope.MANAGE)
"""The holder of ``FEDCS_OPERATOR_KEY``."""


class Guard:
    """Checks keys and tokens, what they are good for, and how often they come."""

    def __init__(self, settings: Settings, database: Database, hub: EventHub) -> None:
        self.tokens = AccessTokens(settings.operator_key)
        self.failures = FailedAttempts()
        self._operator_digest = digest_of(settings.operator_key.get_secret_value())
        self._database = database
        self._client_limit, self._operator_limit = map(RateLimit, settings.rate_limits)
        self._known: dict[str, ApiKey] = {}
        self._hub = hub
        hub.when_any(_ENDING_KEYS, self.forget)

    async def identify(self, request: Request) -> Principal:
        """The holder of the key that came with a request, or that the token stands for that came."""
        text = bearer_text(request)
        principal = await self.holder(text) or await self._holder_by_token(text)
        if principal is None:
            raise HTTPException(401, UNAUTHENTICATED_DETAIL, headers={"WWW-Authenticate": "Bearer"})
        self.count(principal)
        return principal

    async def holder(self, text: str) -> Principal | None:
        """The holder of a key; none if there is no such key, or it was revoked."""
        if same_key(text, self._operator_digest):
            return _OPERATOR
        key = await self._valid_key(key_id_of(text))
        return _holder(key) if key is not None and same_key(text, key.digest) else None

    async def holder_of_id(self, key_id: str) -> Principal | None:
        """The holder of a key whose text was seen earlier; none if it was revoked since."""
        if key_id == _OPERATOR.key_id:
            return _OPERATOR
        key = await self._valid_key(key_id)
        return None if key is None else _holder(key)

    def sealing_text(self, request: Request, principal: Principal) -> str:
        """What is the same for every request of a caller, and is not kept: its key.

        The key of a token is not at hand, and the next token is another text; so it is what they share.
        """
        text = bearer_text(request)
        return self.tokens.lasting_secret(principal.key_id) if looks_like_token(text) else text

    def count(self, principal: Principal) -> None:
        """Note that a key asks for something, and refuse one that asks too often."""
        limit = self._client_limit if principal.scope is Scope.CLIENT else self._operator_limit
        limit.count(principal.key_id)

    def forget(self) -> None:
        """Look every key up again: one was revoked."""
        self._known = {}

    async def _holder_by_token(self, text: str) -> Principal | None:
        claims = self.tokens.read(text)
        holder = None if claims is None else await self.holder_of_id(claims.key_id)
        if claims is None or holder is None or claims.scope not in holder.scope.included:
            return None
        return replace(holder, scope=claims.scope)

    async def _valid_key(self, key_id: str | None) -> ApiKey | None:
        if key_id is None:
            return None
        key = self._known.get(key_id)
        if key is None or time.monotonic() >= self._hub.looked_at + _KNOWN_FOR_S:
            key = await run_in_threadpool(self._look_up, key_id)
        return key

    def _look_up(self, key_id: str) -> ApiKey | None:
        known = self._known  # if it is forgotten while the key is read, so is what was read
        with self._database.reading() as store:
            key = store.keys.find(key_id)
        if key is not None:
            if len(known) >= _MOST_KNOWN:
                known.clear()
            known[key_id] = key
        return key


def _holder(key: ApiKey) -> Principal:
    return Principal(key.key_id, key.scope, key.client_id)


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
            max_json_bytes = min(settings.max_json_bytes, _MOST_CLIENT_JSON_BYTES)
            if Access.OPEN not in allowed:
                principal = await request.app.state.service.guard.identify(request)
                log_caller(principal)
                authorise(principal, allowed)
                request.state.principal = principal
                if principal.scope is not Scope.CLIENT:
                    max_json_bytes = settings.max_json_bytes
            max_bytes = settings.max_model_bytes if self.takes_models else max_json_bytes
            return await handle(with_body_limit(request, max_bytes))

        return guarded


def log_caller(principal: Principal) -> None:
    """Name the caller in every line that is logged about the request."""
    client = {} if principal.client_id is None else {"client_id": principal.client_id}
    structlog.contextvars.bind_contextvars(caller=principal.key_id, **client)


class ModelRoute(GuardedRoute):
    """A guarded route whose body is a model."""

    takes_models = True


def require_client(principal: Principal, client_id: str) -> None:
    """Refuse a client's key for anything of another client."""
    if principal.scope is Scope.CLIENT and principal.client_id != client_id:
        raise NotAllowedError(f"This key acts for the client {principal.client_id!r} only.")
