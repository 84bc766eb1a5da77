"""What a request for a token says of its caller: an id and a key, by HTTP Basic or in the form (RFC 6749)."""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import parse_qsl, unquote_plus

from fastapi import Request
from starlette.requests import ClientDisconnect

from operator_api.body_limit import with_body_limit

FORM_MEDIA_TYPE = "application/x-www-form-urlencoded"

_MOST_FORM_BYTES = 8 * 1024
"""Anyone may send a form: no more than this is read."""
_MOST_FIELDS = 20

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
    """The fields of the form, none of them twice; those without a value count as left out."""
    if request.headers.get("Content-Type", "").partition(";")[0].strip().lower() != FORM_MEDIA_TYPE:
        raise TokenRefusedError(
            "invalid_request", f"Send a form, with the header Content-Type: {FORM_MEDIA_TYPE}."
        )
    try:
        body = await with_body_limit(request, _MOST_FORM_BYTES).body()
        fields = parse_qsl(body.decode(), errors="strict", max_num_fields=_MOST_FIELDS)
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
