"""Access tokens: short-lived JWTs (RFC 7519) for a key, and the credentials of a token request (RFC 6749)."""

import base64
import binascii
import hashlib
import hmac
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal
from urllib.parse import parse_qsl, unquote_plus

import jwt
from fastapi import Request
from pydantic import SecretStr
from starlette.requests import ClientDisconnect

from operator_api.request_limits import with_body_limit
from services.access import Principal, Scope


def derive_secret(operator_key: SecretStr, purpose: str, length: int) -> bytes:
    """A secret for one purpose; those of two purposes tell nothing of each other.

    Slow on purpose, so that nobody can find the operator key by trying keys on something that was sealed or
    signed with the secret. So slow that it should wait for the first use: many processes never see one.
    """
    key = operator_key.get_secret_value().encode()
    return hashlib.scrypt(key, salt=f"fedcs {purpose}".encode(), n=2**14, r=8, p=1, dklen=length)


TOKEN_S = 600
"""How long a token lasts."""

_LEEWAY_S = 5
"""How far the clocks of two API processes may be apart."""
_ALGORITHM = "HS256"
_SERVICE = "fedcs-operator"
"""Who makes tokens, and for whom: both is the service itself."""
_CLAIMS = ["iss", "aud", "sub", "scope", "iat", "exp", "jti"]
_MAX_TOKEN_LENGTH = 2048
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
    return text.count(".") == 2 and len(text) <= _MAX_TOKEN_LENGTH


FORM_MEDIA_TYPE = "application/x-www-form-urlencoded"

_MAX_FORM_BYTES = 8 * 1024
"""Anyone may send a form: no more than this is read."""
_MAX_FIELDS = 20

ErrorCode = Literal["invalid_request", "invalid_client", "unsupported_grant_type", "invalid_scope"]


class TokenRefusedError(Exception):
    """There is no token for this request; one of the errors of RFC 6749, section 5.2."""

    def __init__(self, code: ErrorCode, description: str) -> None:
        super().__init__(description)
        self.code: ErrorCode = code


@dataclass(frozen=True)
class Credentials:
    """Who the caller says it is; the secret may be meant in more than one way."""

    client_id: str
    secrets: tuple[str, ...]


async def read_token_form(request: Request) -> Mapping[str, str]:
    """The fields of the form, none of them twice; those without a value are ignored."""
    if request.headers.get("Content-Type", "").partition(";")[0].strip().lower() != FORM_MEDIA_TYPE:
        raise TokenRefusedError(
            "invalid_request", f"Send a form, with the header Content-Type: {FORM_MEDIA_TYPE}."
        )
    try:
        body = await with_body_limit(request, _MAX_FORM_BYTES).body()
        fields = parse_qsl(body.decode(), errors="strict", max_num_fields=_MAX_FIELDS)
    except (ClientDisconnect, ValueError) as error:
        raise TokenRefusedError("invalid_request", "This is no form, or it has too many fields.") from error
    form = dict(fields)
    if len(form) < len(fields):
        raise TokenRefusedError("invalid_request", "Send each field once.")
    return form


def find_credentials(request: Request, form: Mapping[str, str]) -> Credentials:
    """The id and the key that came with a request, in one of the two ways."""
    if "Authorization" not in request.headers:
        if "client_id" not in form or "client_secret" not in form:
            raise TokenRefusedError(
                "invalid_client", "Send client_id and client_secret, by HTTP Basic or in the form."
            )
        return Credentials(form["client_id"], (form["client_secret"],))
    credentials = _basic_credentials(request.headers["Authorization"])
    if "client_secret" in form or form.get("client_id", credentials.client_id) != credentials.client_id:
        raise TokenRefusedError("invalid_request", "Send client_id and client_secret in one way only.")
    return credentials


def _basic_credentials(header: str) -> Credentials:
    scheme, _, encoded = header.partition(" ")
    try:
        text = base64.b64decode(encoded.strip(), validate=True).decode()
    except (binascii.Error, ValueError):
        text = ""
    client_id, colon, secret = text.partition(":")
    if scheme.lower() != "basic" or not colon:
        raise TokenRefusedError("invalid_client", "The header Authorization is not that of HTTP Basic.")
    # RFC 6749 wants both encoded as in a form first, which many callers leave out, curl among them. It makes
    # no difference but for an operator key with a + or % in it.
    return Credentials(unquote_plus(client_id), (secret, unquote_plus(secret)))
