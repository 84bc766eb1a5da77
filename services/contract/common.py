"""Parts that all resources share: field types with their limits, problem details and events."""

import re
import secrets
from typing import Annotated, Any, Protocol, TypeVar, cast

from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from services.aggregators import AGGREGATORS
from services.domain.builtins import DATASETS, NETWORKS, is_import_path
from services.domain.selection import POLICIES
from services.tensors.encodings import ENCODINGS, MODEL_ENCODINGS

MAX_DURATION_S = 1e9
MAX_MODEL_BYTES = 10**13
MAX_RESOURCE_BLOCKS = 1000
MAX_CELL_BLOCKS = 10_000
MAX_PRIORITY = 1000


def whole_if_integral(value: object) -> object:
    """JSON knows one kind of number: 200.0 is the whole number 200."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def random_seed() -> int:
    """A seed that nobody can predict."""
    return secrets.randbelow(_MAX_SEED + 1)


def _known_policy(name: str) -> str:
    if name not in POLICIES:
        raise ValueError(f"unknown policy; choose one of {', '.join(POLICIES)}")
    return name


def _known_aggregator(name: str) -> str:
    if name not in AGGREGATORS:
        raise ValueError(f"unknown aggregator; choose one of {', '.join(AGGREGATORS)}")
    return name


def known_network(name: str) -> str:
    """Refuse a network that no worker can know; a validator for requests."""
    if name not in NETWORKS and not is_import_path(name):
        raise ValueError(f"unknown network; choose one of {', '.join(NETWORKS)}, or package.module:Name")
    return name


def known_dataset(name: str | None) -> str | None:
    """Refuse a data set that no worker can know; a validator for requests."""
    if name is not None and name not in DATASETS and not is_import_path(name):
        raise ValueError(f"unknown data set; choose one of {', '.join(DATASETS)}, or package.module:name")
    return name


def _known_encoding(name: str) -> str:
    if name not in ENCODINGS:
        raise ValueError(f"unknown encoding; choose one of {', '.join(ENCODINGS)}")
    return name


def _known_model_encoding(name: str) -> str:
    if name not in MODEL_ENCODINGS:
        raise ValueError(f"models travel as {' or '.join(MODEL_ENCODINGS)}")
    return name


def _no_number(value: object) -> object:
    """RFC 3339 only: pydantic would also take seconds since 1970, as a number or in a text."""
    if isinstance(value, (int, float)) or (isinstance(value, str) and not _DATE.match(value)):
        raise ValueError("must be a date and time as in RFC 3339, such as 2026-01-01T12:00:00Z")
    return value


_DATE = re.compile(r"\d{4}-\d{2}-\d{2}[Tt ]")
_MAX_SEED = 2**53 - 1
"""Every JSON parser keeps integers up to this exact."""
_INTEGRAL = BeforeValidator(whole_if_integral)
_NAME = r"^[A-Za-z0-9_.-]+$"
_LABEL_NAME = r"^[A-Za-z0-9_.-]{1,64}$"
_PRINTABLE = r"^[^\x00-\x1f\x7f]*$"

ClientId = Annotated[
    str, Field(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]+$", examples=["c1"])
]
NewClientId = Annotated[
    str,
    Field(
        min_length=1,
        max_length=128,
        pattern=r"^([^./C][^/C]*|\.[^./C][^/C]*|\.\.[^/C]+)$".replace("C", r"\x00-\x1f\x7f"),
        examples=["c1"],
    ),
]
"""One that fits into a path: without a slash, and neither ``.`` nor ``..``."""
PolicyName = Annotated[
    str,
    AfterValidator(_known_policy),
    WithJsonSchema({"type": "string", "enum": list(POLICIES)}),
]
AggregatorName = Annotated[
    str,
    AfterValidator(_known_aggregator),
    WithJsonSchema({"type": "string", "enum": list(AGGREGATORS)}),
]
UpdateEncoding = Annotated[
    str,
    AfterValidator(_known_encoding),
    WithJsonSchema({"type": "string", "enum": list(ENCODINGS)}),
]
ModelEncoding = Annotated[
    str,
    AfterValidator(_known_model_encoding),
    WithJsonSchema({"type": "string", "enum": list(MODEL_ENCODINGS)}),
]
TaskId = Annotated[str, Field(min_length=1, max_length=64, pattern=_NAME, examples=["task-8f14e45fceea167a"])]
RoundId = Annotated[
    str, Field(min_length=1, max_length=64, pattern=_NAME, examples=["round-c9f0f895fb98ab91"])
]
TrainingId = Annotated[
    str, Field(min_length=1, max_length=64, pattern=_NAME, examples=["training-45c48cce2e2d7fbd"])
]
CellId = Annotated[str, Field(min_length=1, max_length=64, pattern=_NAME, examples=["north"])]
KeyId = Annotated[str, Field(min_length=1, max_length=32, pattern=_NAME, examples=["d3d9446802a44259"])]
Name = Annotated[str, Field(max_length=128, pattern=_PRINTABLE)]
ImportName = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_.:/-]+$")]
Labels = Annotated[
    dict[
        Annotated[str, Field(pattern=_LABEL_NAME)],
        Annotated[str, Field(max_length=128, pattern=_PRINTABLE)],
    ],
    Field(max_length=32, examples=[{"vehicle": "bus"}]),
    WithJsonSchema(
        {
            "type": "object",
            "additionalProperties": {"type": "string", "maxLength": 128, "pattern": _PRINTABLE},
            "propertyNames": {"pattern": _LABEL_NAME},
            "maxProperties": 32,
            "examples": [{"vehicle": "bus"}],
        }
    ),
]
Timestamp = Annotated[
    AwareDatetime,
    Field(strict=False, examples=["2026-01-01T12:00:00Z"]),
    BeforeValidator(_no_number),
]
Duration = Annotated[float, Field(ge=0, le=MAX_DURATION_S, allow_inf_nan=False)]
PositiveDuration = Annotated[float, Field(gt=0, le=MAX_DURATION_S, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, le=1e15, allow_inf_nan=False)]
DataSamples = Annotated[int, Field(ge=0, le=10**12), _INTEGRAL]
ResourceBlocks = Annotated[int, Field(ge=1, le=MAX_RESOURCE_BLOCKS), _INTEGRAL]
CellBlocks = Annotated[int, Field(ge=1, le=MAX_CELL_BLOCKS), _INTEGRAL]
Priority = Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY), _INTEGRAL]
ModelSize = Annotated[int, Field(ge=1, le=MAX_MODEL_BYTES), _INTEGRAL]
LocalEpochs = Annotated[int, Field(ge=1, le=100_000), _INTEGRAL]
Fraction = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
PlanningFactor = Annotated[float, Field(ge=0.5, le=2, allow_inf_nan=False)]
Slack = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
NoiseScale = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=10**9), _INTEGRAL]
BatchSize = Annotated[int, Field(ge=1, le=1_000_000), _INTEGRAL]
UpdateNorm = Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)]
ClipFactor = Annotated[float, Field(ge=1, le=1e6, allow_inf_nan=False)]
Momentum = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Penalty = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
LearningRate = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
PartitionIndex = Annotated[int, Field(ge=0, le=10**9), _INTEGRAL]
Seed = Annotated[int, Field(ge=0, le=_MAX_SEED), _INTEGRAL]


class _WithClientId(Protocol):
    @property
    def client_id(self) -> str | None: ...


_C = TypeVar("_C", bound=_WithClientId)


def distinct_clients(items: list[_C]) -> list[_C]:
    """Refuse two items with the same client; a validator for lists."""
    known: set[str] = set()
    for position, item in enumerate(items):
        if item.client_id in known:
            raise PydanticCustomError(
                "duplicate_client_id",
                "An earlier entry has the same client_id",
                {"within": (position, "client_id")},
            )
        if item.client_id is not None:
            known.add(item.client_id)
    return items


def request_config(example: dict[str, Any]) -> ConfigDict:
    """The configuration of a request: no conversions, no unknown fields, and an example."""
    return ConfigDict(
        strict=True, extra="forbid", frozen=True, json_schema_extra={"examples": [cast(JsonValue, example)]}
    )


def response_config(example: dict[str, Any]) -> ConfigDict:
    """The configuration of a response: it can be built from an object, and has an example."""
    return ConfigDict(from_attributes=True, json_schema_extra={"examples": [cast(JsonValue, example)]})


PROBLEM_MEDIA_TYPE = "application/problem+json"


class InvalidParam(BaseModel):
    """An error in a request."""

    param: str = Field(description="A JSON pointer into the body, or the name of a parameter.")
    reason: str


class Problem(BaseModel):
    """Why a request was refused."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    cause: str = Field(description="The error code for programs; stable between releases.")
    invalid_params: list[InvalidParam] = Field(
        default=[], max_length=20, description="The errors in the request, at most 20."
    )


class EventResponse(BaseModel):
    """One event of the stream; its number is the id to resume after."""

    model_config = response_config(
        {
            "number": 42,
            "kind": "round.scheduled",
            "at": "2026-01-01T12:00:00Z",
            "task_id": "task-8f14e45fceea167a",
            "round_id": "round-c9f0f895fb98ab91",
            "client_id": None,
            "data": {"number": 4, "selected": 8, "received": 0},
        }
    )

    number: int
    kind: str = Field(
        description="`task.*` and `round.*` with the new state, `update.received`, `update.late`, "
        "`update.rejected`, `model.created`, `model.evaluated`, `model.not_evaluated`, `training.*`, "
        "`job.started`, `job.progress` (`done`, from 0 to 1), `job.handed_back`, `job.refused` (by a `host` "
        "that cannot do it), `job.failed`, `clients.enrolled`, `client.removed`, `key.revoked`, "
        "`cell.added`, `cell.changed`, `cell.removed` (with `cell_id`)."
    )
    at: Timestamp
    task_id: str | None
    round_id: str | None
    client_id: str | None
    data: dict[str, Any]
