"""The session of an operator who looks at pages: a sealed cookie that names the key it was begun with.

Every process of the service can open it, also after a restart, because they share ``FEDCS_OPERATOR_KEY``;
nothing about it is stored. See ADR 18.
"""

import base64
import hashlib
import hmac
from functools import cached_property

from cryptography.fernet import Fernet, InvalidToken
from fastapi import Request, Response
from pydantic import SecretStr

from operator_api.operator_secret import derive_secret
from services.access import Principal

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
