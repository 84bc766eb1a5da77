"""``/clients``, ``/keys`` and ``/oauth2/token``: clients, their keys and access tokens."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, Field

from services.access import Scope
from services.contract.common import (
    CellId,
    ClientId,
    KeyId,
    Labels,
    Name,
    NewClientId,
    TaskId,
    Timestamp,
    distinct_clients,
    request_config,
    response_config,
)
from services.domain.cells import DEFAULT_CELL
from services.domain.plausibility import ImplausibleReason

MAX_BATCH = 10_000


class EnrolmentRequest(BaseModel):
    """A client to be enrolled."""

    model_config = request_config({"client_id": "c1", "labels": {"vehicle": "bus"}})

    client_id: NewClientId | None = Field(default=None, description="Chosen by the service if not given.")
    labels: Labels = Field(default={}, description="Tasks can select clients by labels.")
    cell_id: CellId = Field(default=DEFAULT_CELL, description="The cell it is in.")


class EnrolmentBatchRequest(BaseModel):
    """Clients to be enrolled: all of them, or none."""

    model_config = request_config(
        {"clients": [{"client_id": "c1"}, {"client_id": "c2", "labels": {"vehicle": "bus"}}]}
    )

    clients: Annotated[
        list[EnrolmentRequest],
        Field(min_length=1, max_length=MAX_BATCH),
        AfterValidator(distinct_clients),
    ]


class ClientChangeRequest(BaseModel):
    """What is to be changed of a client; what is not given, or null, stays."""

    model_config = request_config({"cell_id": "north"})

    cell_id: CellId | None = Field(default=None, description="Its cell in rounds that open from now on.")
    labels: Labels | None = Field(default=None, description="All its labels.")


_ENROLLED: dict[str, Any] = {
    "client_id": "c1",
    "labels": {"vehicle": "bus"},
    "cell_id": "default",
    "enrolled_at": "2026-01-01T12:00:00Z",
    "key_id": "d3d9446802a44259",
    "api_key": "fedcs_d3d9446802a44259_2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae",
}


class EnrolmentResponse(BaseModel):
    """An enrolled client. The key is shown this once; only its digest is kept."""

    model_config = response_config(_ENROLLED)

    client_id: ClientId
    labels: Labels
    cell_id: CellId
    enrolled_at: Timestamp
    key_id: KeyId
    api_key: str


class EnrolmentBatchResponse(BaseModel):
    """The enrolled clients, in the order asked for."""

    model_config = response_config({"clients": [_ENROLLED]})

    clients: list[EnrolmentResponse]


class TrackRecordResponse(BaseModel):
    """How a client did in its slots so far."""

    slots: int = Field(description="How often it was selected.")
    received: int
    late: int
    rejected: int
    missed: int
    declined: int
    refused: int = Field(description="How often its update was ready too late to be uploaded in time.")
    update_ratio: float | None = Field(
        description="The mean ratio of the actual update time to the one that followed from its report, over "
        "the slots with a known `actual_update_s`."
    )
    upload_ratio: float | None = Field(
        description="The same ratio for uploads. Well above 1: its reports are wrong."
    )
    update_spread: float | None = Field(description="The standard deviation of the ratio of update times.")
    upload_spread: float | None = Field(description="The same for uploads.")


class ParticipationResponse(BaseModel):
    """How often a running task has selected a client, and whether it passes over the client."""

    task_id: TaskId
    rounds: int = Field(description="That the task has opened.")
    selected: int = Field(description="In how many of them the client was selected.")
    received: int = Field(description="How many of its updates were received in time.")
    share: float = Field(description="`selected` by `rounds`; compare the task's `max_share`.")
    cooldown_until_round: int | None = Field(
        description="The last round for which it is not drawn; null: it may be drawn for the next one."
    )


class ImplausibleFigureResponse(BaseModel):
    """A figure in the newest report of a client that is implausible."""

    figure: Literal["throughput_bps", "compute_samples_per_s"]
    reason: ImplausibleReason = Field(
        description="`PEAK_RATE`: above the peak rate of its cell for the resource blocks it refers to. "
        "`FLEET_RANGE`: far above what the other clients report."
    )
    reported: float = Field(description="Throughput per 10 resource blocks.")
    limit: float = Field(description="The highest plausible figure.")


class ClientResponse(BaseModel):
    """An enrolled client and how it did so far."""

    model_config = response_config(
        {
            "client_id": "c1",
            "labels": {"vehicle": "bus"},
            "cell_id": "default",
            "enrolled_at": "2026-01-01T12:00:00Z",
            "record": {
                "slots": 3,
                "received": 2,
                "late": 1,
                "rejected": 0,
                "missed": 0,
                "declined": 0,
                "refused": 0,
                "update_ratio": 1.02,
                "upload_ratio": 1.8,
                "update_spread": 0.1,
                "upload_spread": 0.3,
            },
            "tasks": [
                {
                    "task_id": "task-8f14e45fceea167a",
                    "rounds": 12,
                    "selected": 3,
                    "received": 2,
                    "share": 0.25,
                    "cooldown_until_round": None,
                }
            ],
            "implausible": [
                {
                    "figure": "throughput_bps",
                    "reason": "PEAK_RATE",
                    "reported": 864_000_000.0,
                    "limit": 8_640_000.0,
                }
            ],
        }
    )

    client_id: ClientId
    labels: Labels
    cell_id: CellId
    enrolled_at: Timestamp
    record: TrackRecordResponse
    tasks: list[ParticipationResponse] = Field(description="The running tasks that have selected it.")
    implausible: list[ImplausibleFigureResponse] = Field(
        description="Figures of its newest report that are implausible; a task with `cap_reports` plans with "
        "`limit` in their place."
    )


class KeyRequest(BaseModel):
    """An operator key to be made."""

    model_config = request_config({"name": "grafana", "scope": "read"})

    name: Name = Field(default="", description="A name for people.")
    scope: Literal["read", "manage"] = Field(description="`read` looks, `manage` also acts.")


class ClientKeyRequest(BaseModel):
    """A key for a client: a further one if an operator asks, the next one if the client itself asks."""

    model_config = request_config({"name": "rotated"})

    name: Name = ""


_KEY: dict[str, Any] = {
    "key_id": "d3d9446802a44259",
    "name": "grafana",
    "scope": "read",
    "client_id": None,
    "created_at": "2026-01-01T12:00:00Z",
    "revoked_at": None,
    "replaces": None,
}


class KeyResponse(BaseModel):
    """What is known of a key."""

    model_config = response_config(_KEY)

    key_id: KeyId
    name: str
    scope: Scope
    client_id: ClientId | None
    created_at: Timestamp
    revoked_at: Timestamp | None
    replaces: KeyId | None = Field(
        description="The client's key that ends when this one is first used; null from then on."
    )


class NewKeyResponse(KeyResponse):
    """A new key. Its text is shown this once; only its digest is kept."""

    model_config = response_config({**_KEY, "api_key": _ENROLLED["api_key"]})

    api_key: str


class TokenResponse(BaseModel):
    """An access token (RFC 6749, section 5.1)."""

    model_config = response_config(
        {
            "access_token": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJvcGVyYXRvciJ9.bm90IG9uZQ",
            "token_type": "Bearer",
            "expires_in": 600,
            "scope": "manage",
        }
    )

    access_token: str = Field(description="Send it like a key: `Authorization: Bearer TOKEN`.")
    token_type: Literal["Bearer"] = "Bearer"  # noqa: S105 - a kind of token, not a token
    expires_in: int = Field(description="In seconds.")
    scope: Scope = Field(description="The scope of the token; `manage` includes `read`.")


class TokenErrorResponse(BaseModel):
    """Why there is no token (RFC 6749, section 5.2)."""

    error: Literal["invalid_request", "invalid_client", "unsupported_grant_type", "invalid_scope"]
    error_description: str
