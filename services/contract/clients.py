"""``/clients`` and ``/keys``: who takes part, and with which keys."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from services.access import Scope
from services.contract.fields import ClientId, KeyId, Labels, Name, NewClientId, Timestamp

MAX_BATCH = 10_000

_REQUEST = ConfigDict(strict=True, extra="forbid", frozen=True)


class EnrolmentRequest(BaseModel):
    """A client to be enrolled."""

    model_config = _REQUEST | {
        "json_schema_extra": {"examples": [{"client_id": "c1", "labels": {"vehicle": "bus"}}]}
    }

    client_id: NewClientId | None = Field(default=None, description="Chosen by the service if not given.")
    labels: Labels = Field(default={}, description="What tasks can ask for.")


def _distinct_clients(enrolments: list[EnrolmentRequest]) -> list[EnrolmentRequest]:
    known: set[str] = set()
    for position, enrolment in enumerate(enrolments):
        if enrolment.client_id in known:
            raise PydanticCustomError(
                "duplicate_client_id",
                "An earlier client has the same client_id",
                {"within": (position, "client_id")},
            )
        if enrolment.client_id is not None:
            known.add(enrolment.client_id)
    return enrolments


class EnrolmentBatchRequest(BaseModel):
    """Clients to be enrolled: all of them, or none."""

    model_config = _REQUEST | {
        "json_schema_extra": {
            "examples": [
                {"clients": [{"client_id": "c1"}, {"client_id": "c2", "labels": {"vehicle": "bus"}}]}
            ]
        }
    }

    clients: Annotated[
        list[EnrolmentRequest],
        Field(min_length=1, max_length=MAX_BATCH),
        AfterValidator(_distinct_clients),
    ]


_ENROLLED: dict[str, Any] = {
    "client_id": "c1",
    "labels": {"vehicle": "bus"},
    "enrolled_at": "2026-01-01T12:00:00Z",
    "key_id": "d3d9446802a44259",
    "api_key": "fedcs_d3d9446802a44259_2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae",
}


class EnrolmentResponse(BaseModel):
    """An enrolled client. The key is shown this once; only its digest is kept."""

    model_config = ConfigDict(json_schema_extra={"examples": [_ENROLLED]})

    client_id: ClientId
    labels: Labels
    enrolled_at: Timestamp
    key_id: KeyId
    api_key: str


class EnrolmentBatchResponse(BaseModel):
    """The enrolled clients, in the order asked for."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"clients": [_ENROLLED]}]})

    clients: list[EnrolmentResponse]


class TrackRecordResponse(BaseModel):
    """How a client did in its slots so far."""

    slots: int = Field(description="How often it was selected.")
    received: int
    late: int
    rejected: int
    missed: int
    update_ratio: float | None = Field(
        description="How long its updates took, over what its reports promised; the mean of its slots."
    )
    upload_ratio: float | None = Field(
        description="The same of its uploads. Well above 1: its reports are wrong."
    )


class ClientResponse(BaseModel):
    """An enrolled client and how it did so far."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "client_id": "c1",
                    "labels": {"vehicle": "bus"},
                    "enrolled_at": "2026-01-01T12:00:00Z",
                    "record": {
                        "slots": 3,
                        "received": 2,
                        "late": 1,
                        "rejected": 0,
                        "missed": 0,
                        "update_ratio": 1.02,
                        "upload_ratio": 1.8,
                    },
                }
            ]
        }
    )

    client_id: ClientId
    labels: Labels
    enrolled_at: Timestamp
    record: TrackRecordResponse


class KeyRequest(BaseModel):
    """An operator key to be made."""

    model_config = _REQUEST | {"json_schema_extra": {"examples": [{"name": "grafana", "scope": "read"}]}}

    name: Name = Field(default="", description="For people: whose it is.")
    scope: Literal["read", "manage"] = Field(description="`read` looks, `manage` also acts.")


class ClientKeyRequest(BaseModel):
    """A further key for a client: make one, hand it over, revoke the old one."""

    model_config = _REQUEST | {"json_schema_extra": {"examples": [{"name": "rotated"}]}}

    name: Name = ""


class KeyResponse(BaseModel):
    """What is known of a key."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "key_id": "d3d9446802a44259",
                    "name": "grafana",
                    "scope": "read",
                    "client_id": None,
                    "created_at": "2026-01-01T12:00:00Z",
                    "revoked_at": None,
                }
            ]
        }
    )

    key_id: KeyId
    name: str
    scope: Scope
    client_id: ClientId | None
    created_at: Timestamp
    revoked_at: Timestamp | None


class NewKeyResponse(KeyResponse):
    """A new key. Its text is shown this once; only its digest is kept."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "key_id": "d3d9446802a44259",
                    "name": "grafana",
                    "scope": "read",
                    "client_id": None,
                    "created_at": "2026-01-01T12:00:00Z",
                    "revoked_at": None,
                    "api_key": _ENROLLED["api_key"],
                }
            ]
        }
    )

    api_key: str
