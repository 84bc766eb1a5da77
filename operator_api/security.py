"""Who is calling: keys in the ``Authorization: Bearer`` header.

A route of ours is authenticated by its class, before its body is read: FastAPI would read and parse up to the
limit of megabytes for anyone, and only then ask the dependencies.
"""

import hashlib
import hmac
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import HTTPException, Request, Response
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer

from operator_api.openapi import UNAUTHENTICATED
from services.settings import Settings

operator_key = HTTPBearer(description="An operator key.", scheme_name="OperatorKey")
"""As a dependency it documents the key; by then the route has checked it."""


class OperatorRoute(APIRoute):
    """A route for operators only."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Check the key, then do what any route does."""
        handle = super().get_route_handler()

        async def authenticate_and_handle(request: Request) -> Response:
            _require_operator(request)
            return await handle(request)

        return authenticate_and_handle


def _require_operator(request: Request) -> None:
    settings: Settings = request.app.state.settings
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not _same_key(given, settings.operator_key.get_secret_value()):
        raise HTTPException(401, UNAUTHENTICATED.detail, headers={"WWW-Authenticate": "Bearer"})


def _same_key(given: str, expected: str) -> bool:
    """Compare digests, so that neither the time taken nor the length tells anything."""
    return hmac.compare_digest(
        hashlib.sha256(given.encode()).digest(), hashlib.sha256(expected.encode()).digest()
    )
