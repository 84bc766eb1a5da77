"""Authentication and authorisation: API keys or tokens in the ``Authorization: Bearer`` header.

Every route declares with ``access`` which keys it accepts; the OpenAPI document has the same values. The
route's class checks the key before the body is read: FastAPI would read and parse the body before it resolves
dependencies. A route without ``access`` raises at start-up.
"""

import json
import time
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from enum import StrEnum
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import structlog
from fastapi import HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.dependencies.utils import get_flat_params
from fastapi.exceptions import RequestValidationError
from fastapi.params import Query as QueryParameter
from fastapi.routing import APIRoute

from operator_api.access_tokens import AccessTokens, looks_like_token
from operator_api.event_stream import EventHub
from operator_api.request_limits import AUTHENTICATED, RateLimit, failed_login_limit, with_body_limit
from services.access import ApiKey, Principal, Scope, digest_of, key_id_of, verify_key
from services.errors import NotAllowedError
from services.key_management import KEY_REVOKED, complete_rotation
from services.settings import Settings
from services.storage.database import Database
from services.storage.events import Event

_KNOWN_FOR_S = 1.0
"""Keys are cached while the event hub is at most this far behind. A key that another process revoked works no
longer than this.
"""
_ENDING_KEYS = {KEY_REVOKED, "client.removed"}
_MAX_CACHED_KEYS = 100_000
_MAX_CLIENT_JSON_BYTES = 64 * 1024
"""For clients: their bodies are small, and parsed JSON takes many times its size."""

_CLIENT_KEYS_ONLY = "Fedcs-Client-Keys-Only"
"""A header that a proxy sets on the port for devices; it only restricts the caller."""
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


_REQUIRED_SCOPE = {
    Access.READ: Scope.READ,
    Access.MANAGE: Scope.MANAGE,
    Access.CLIENT: Scope.CLIENT,
}


def access(*who: Access) -> dict[str, Any]:
    """Say who may call a route, as its ``openapi_extra``."""
    security: list[dict[str, list[str]]] = []
    if Access.OPEN not in who:
        security = [{SECURITY_SCHEME: []}, *({OAUTH_SCHEME: [_REQUIRED_SCOPE[kind].value]} for kind in who)]
    return {"x-access": [kind.value for kind in who], "security": security}


LOCATION = "x-location"


def created_at(template: str) -> dict[str, Any]:
    """Where what a route creates is found, as part of its ``openapi_extra``: the header ``Location``.

    Names in braces are fields of the answer.
    """
    return {LOCATION: template}


_OPERATOR = Principal("operator", Scope.MANAGE)
"""The holder of ``FEDCS_OPERATOR_KEY``."""


class Authenticator:
    """Checks keys, tokens, scopes and rate limits."""

    def __init__(self, settings: Settings, database: Database, hub: EventHub) -> None:
        self.tokens = AccessTokens(settings.operator_key)
        self.failures = failed_login_limit()
        self._operator_digest = digest_of(settings.operator_key.get_secret_value())
        self._database = database
        self._client_limit, self._operator_limit = map(RateLimit, settings.rate_limits)
        self._known: dict[str, ApiKey] = {}
        self._generation = object()
        """Replaced when a key is revoked: keys read before are not cached."""
        self._hub = hub
        hub.when_any(_ENDING_KEYS, self._forget_ended)

    async def identify(self, request: Request) -> Principal:
        """The principal of the key or token in a request."""
        principal = await self._caller(request)
        if principal is None:
            raise unauthenticated()
        note_authenticated(request)
        self.count(principal)
        refuse_operators_among_devices(request, principal)
        return principal

    async def is_still_admitted(self, request: Request) -> bool:
        """Whether the key or token of a request that goes on for long is still valid."""
        return await self._caller(request) is not None

    async def holder(self, text: str) -> Principal | None:
        """The holder of a key; none if there is no such key, or it was revoked."""
        if verify_key(text, self._operator_digest):
            return _OPERATOR
        key = await self._valid_key(key_id_of(text))
        if key is None or not verify_key(text, key.digest):
            return None
        if key.replaces is not None:
            key = await run_in_threadpool(self._complete_rotation, key)
        return None if key is None else _holder(key)

    async def holder_of_id(self, key_id: str) -> Principal | None:
        """The holder of a key whose text was seen earlier; none if it was revoked since."""
        if key_id == _OPERATOR.key_id:
            return _OPERATOR
        key = await self._valid_key(key_id)
        return None if key is None else _holder(key)

    def sealing_text(self, request: Request, principal: Principal) -> str:
        """The secret that seals the saved responses of a caller: its key, which is not stored.

        For a token it is a secret that all tokens of the key share.
        """
        text = bearer_text(request)
        return self.tokens.lasting_secret(principal.key_id) if looks_like_token(text) else text

    def count(self, principal: Principal) -> None:
        """Count a request against the limit of the client, or of the operator key."""
        if principal.client_id is not None:
            self._client_limit.count(principal.client_id)
        else:
            self._operator_limit.count(principal.key_id)

    def forget(self, key_ids: Iterable[str]) -> None:
        """Remove revoked keys from the cache."""
        self._generation = object()
        for key_id in key_ids:
            self._known.pop(key_id, None)

    def forget_all(self) -> None:
        """Empty the cache: a client was removed with its keys."""
        self._generation = object()
        self._known = {}

    def _forget_ended(self, events: list[Event]) -> None:
        if all(event.kind == KEY_REVOKED for event in events):
            self.forget(event.data["key_id"] for event in events)
        else:
            self.forget_all()

    async def _caller(self, request: Request) -> Principal | None:
        text = bearer_text(request)
        return await self.holder(text) or await self._holder_by_token(text)

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
            generation = self._generation
            key = await run_in_threadpool(self._look_up, key_id)
            if key is not None and generation is self._generation:
                if len(self._known) >= _MAX_CACHED_KEYS:
                    self._known.clear()
                self._known[key_id] = key
        return key

    def _look_up(self, key_id: str) -> ApiKey | None:
        with self._database.reading() as store:
            return store.keys.find(key_id)

    def _complete_rotation(self, key: ApiKey) -> ApiKey | None:
        with self._database.unit_of_work() as uow:
            current = complete_rotation(uow, key, self._database.now())
            uow.commit()
        self.forget([key.key_id, *([] if key.replaces is None else [key.replaces])])
        return current


def _holder(key: ApiKey) -> Principal:
    return Principal(key.key_id, key.scope, key.client_id, key.name)


def refuse_operators_among_devices(request: Request, principal: Principal) -> None:
    """Refuse operator keys on the port for devices."""
    if request.headers.get(_CLIENT_KEYS_ONLY) and principal.scope is not Scope.CLIENT:
        raise NotAllowedError("Operator keys are not accepted here. Use the address for operators.")


def note_authenticated(request: Request) -> None:
    """Mark the connection of a request as authenticated."""
    if extension := request.scope.get("extensions", {}).get(AUTHENTICATED):
        extension["note"]()


def unauthenticated() -> HTTPException:
    """The answer to a request without a valid key."""
    return HTTPException(401, UNAUTHENTICATED_DETAIL, headers={"WWW-Authenticate": "Bearer"})


def bearer_text(request: Request) -> str:
    """The text of the key that came with a request; empty if none did."""
    scheme, _, text = request.headers.get("Authorization", "").partition(" ")
    return text.strip() if scheme.lower() == "bearer" else ""


def authorise(principal: Principal, allowed: frozenset[str]) -> None:
    """Refuse a key that is not for this operation."""
    if not allowed & {kind.value for kind in _ALLOWS[principal.scope]}:
        raise NotAllowedError(f"This operation takes a key for {' or '.join(sorted(allowed))}.")


class AuthenticatedRoute(APIRoute):
    """A route that checks the key before it reads the body."""

    takes_models = False
    """Whether its body is a model, streamed, rather than JSON."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Check the key and the size of the body, then do what any route does."""
        handle = super().get_route_handler()
        assert self.openapi_extra, f"{self.path} does not say who may call it"
        allowed = frozenset(self.openapi_extra["x-access"])
        location = self.openapi_extra.get(LOCATION)
        known_names = {
            field.alias
            for field in get_flat_params(self.dependant)
            if isinstance(field.field_info, QueryParameter)
        }

        async def guarded(request: Request) -> Response:
            settings: Settings = request.app.state.service.settings
            max_json_bytes = min(settings.max_json_bytes, _MAX_CLIENT_JSON_BYTES)
            if Access.OPEN not in allowed:
                principal = await request.app.state.service.authenticator.identify(request)
                log_caller(principal)
                authorise(principal, allowed)
                request.state.principal = principal
                if principal.scope is not Scope.CLIENT:
                    max_json_bytes = settings.max_json_bytes
            _refuse_unknown_parameters(request, known_names)
            max_bytes = settings.max_model_bytes if self.takes_models else max_json_bytes
            response = await handle(with_body_limit(request, max_bytes))
            if location is not None and response.status_code == HTTPStatus.CREATED:
                response.headers["Location"] = settings.api_root + _filled(location, response.body)
            return response

        return guarded


def _refuse_unknown_parameters(request: Request, known_names: set[str]) -> None:
    """Refuse a query parameter that the operation does not have: it may be misspelt."""
    known = f"known are {', '.join(sorted(known_names))}" if known_names else "there are none here"
    unknown = [
        {"type": "unknown_parameter", "loc": ("query", name), "msg": f"Unknown query parameter; {known}"}
        for name in dict.fromkeys(request.query_params)
        if name not in known_names
    ]
    if unknown:
        raise RequestValidationError(unknown)


def _filled(template: str, body: bytes | memoryview) -> str:
    """A template with fields of a JSON answer in it."""
    if "{" not in template:
        return template
    fields = json.loads(bytes(body))
    return template.format_map({name: quote(str(value), safe="") for name, value in fields.items()})


def log_caller(principal: Principal) -> None:
    """Add the caller to every log line of the request."""
    client = {} if principal.client_id is None else {"client_id": principal.client_id}
    structlog.contextvars.bind_contextvars(caller=principal.key_id, **client)


class ModelRoute(AuthenticatedRoute):
    """An authenticated route whose body is a model."""

    takes_models = True


def require_client(principal: Principal, client_id: str) -> None:
    """Refuse a client's key for anything of another client."""
    if principal.scope is Scope.CLIENT and principal.client_id != client_id:
        raise NotAllowedError(f"This key acts for the client {principal.client_id!r} only.")
