"""Access tokens: short-lived JWTs (RFC 7519) that stand for a key for some minutes.

Every process of the service can check them, because they share ``FEDCS_OPERATOR_KEY``; nothing about them is
stored. They name their key, which is looked up on every request as if it had come itself. See ADR 19.
"""

import hashlib
import hmac
import secrets
import time
from dataclasses import dataclass
from functools import cached_property

import jwt
from pydantic import SecretStr

from operator_api.operator_secret import derive_secret
from services.access import Principal, Scope

TOKEN_S = 600
"""How long a token lasts."""

_LEEWAY_S = 5
"""How far the clocks of two API processes may be apart."""
_ALGORITHM = "HS256"
_SERVICE = "fedcs-operator"
"""Who makes tokens, and for whom: both is the service itself."""
_CLAIMS = ["iss", "aud", "sub", "scope", "iat", "exp", "jti"]
_MOST_CHARACTERS = 2048
"""Ours have some 350; nothing larger is decoded."""


@dataclass(frozen=True)
class TokenClaims:
    """What a token says: the key that it stands for, and for what."""

    key_id: str
    scope: Scope


class AccessTokens:
    """Makes tokens and checks them."""

    def __init__(self, operator_key: SecretStr) -> None:
        self._operator_key = operator_key

    def issue(self, principal: Principal) -> str:
        """A token for the holder of a key, with the scope given there."""
        now = int(time.time())
        claims = {
            "iss": _SERVICE,
            "aud": _SERVICE,
            "sub": principal.key_id,
            "scope": principal.scope.value,
            "iat": now,
            "exp": now + TOKEN_S,
            "jti": secrets.token_urlsafe(16),
        }
        return jwt.encode(claims, self._secrets[:32], _ALGORITHM)

    def read(self, text: str) -> TokenClaims | None:
        """What a token says; none if it is not one of ours, or has expired."""
        if not looks_like_token(text):
            return None
        try:
            claims = jwt.decode(
                text,
                self._secrets[:32],
                algorithms=[_ALGORITHM],
                issuer=_SERVICE,
                audience=_SERVICE,
                leeway=_LEEWAY_S,
                options={"require": _CLAIMS, "strict_aud": True},
            )
        except jwt.PyJWTError:
            return None
        scopes = [scope for scope in Scope if scope.value == claims["scope"]]
        return TokenClaims(claims["sub"], scopes[0]) if scopes else None

    def lasting_secret(self, key_id: str) -> str:
        """What all tokens of a key have in common, and only the service knows."""
        return hmac.new(self._secrets[32:], key_id.encode(), hashlib.sha256).hexdigest()

    @cached_property
    def _secrets(self) -> bytes:
        return derive_secret(self._operator_key, "access token", 64)


def looks_like_token(text: str) -> bool:
    """Whether it could be a token: three parts, and not too long."""
    return text.count(".") == 2 and len(text) <= _MOST_CHARACTERS
