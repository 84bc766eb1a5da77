"""``/oauth2/token``: access tokens for keys (RFC 6749)."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from services.access import Scope


class TokenResponse(BaseModel):
    """An access token (RFC 6749, section 5.1)."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "access_token": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJvcGVyYXRvciJ9.bm90IG9uZQ",
                    "token_type": "Bearer",
                    "expires_in": 600,
                    "scope": "manage",
                }
            ]
        }
    )

    access_token: str = Field(description="To be sent as a key is: `Authorization: Bearer TOKEN`.")
    token_type: Literal["Bearer"] = "Bearer"  # noqa: S105 - a kind of token, not a token
    expires_in: int = Field(description="In seconds.")
    scope: Scope = Field(description="What the token is good for; `manage` includes `read`.")


class TokenErrorResponse(BaseModel):
    """Why there is no token (RFC 6749, section 5.2)."""

    error: Literal["invalid_request", "invalid_client", "unsupported_grant_type", "invalid_scope"]
    error_description: str
