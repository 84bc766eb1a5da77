"""Who is calling: keys in the ``Authorization: Bearer`` header."""

import hashlib
import hmac
from typing import Annotated

from fastapi import Depends, HTTPException, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from operator_api.openapi import UNAUTHENTICATED
from services.settings import Settings

_bearer = HTTPBearer(auto_error=False, description="An operator key.", scheme_name="OperatorKey")


def require_operator(
    request: Request, given: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> None:
    """Let only operators pass."""
    settings: Settings = request.app.state.settings
    if given is None or not _same_key(given.credentials, settings.operator_key.get_secret_value()):
        raise HTTPException(401, detail=UNAUTHENTICATED.detail, headers={"WWW-Authenticate": "Bearer"})


def _same_key(given: str, expected: str) -> bool:
    """Compare digests, so that neither the time taken nor the length tells anything."""
    return hmac.compare_digest(
        hashlib.sha256(given.encode()).digest(), hashlib.sha256(expected.encode()).digest()
    )
