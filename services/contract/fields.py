"""Field types of the wire format: strict JSON numbers with their limits, and identifiers."""

import re
from typing import Annotated

from pydantic import AfterValidator, AwareDatetime, BeforeValidator, Field, WithJsonSchema

from services.domain.selection import POLICIES

MAX_DURATION_S = 1e9
MAX_MODEL_BYTES = 10**13
MAX_RESOURCE_BLOCKS = 1000


def whole_if_integral(value: object) -> object:
    """JSON knows one kind of number: 200.0 is the whole number 200."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _known_policy(name: str) -> str:
    if name not in POLICIES:
        raise ValueError(f"unknown policy; choose one of {', '.join(POLICIES)}")
    return name


def _no_number(value: object) -> object:
    """RFC 3339 only: pydantic would also take seconds since 1970, as a number or in a text."""
    if isinstance(value, (int, float)) or (isinstance(value, str) and not _DATE.match(value)):
        raise ValueError("say when as in RFC 3339, such as 2026-01-01T12:00:00Z")
    return value


_DATE = re.compile(r"\d{4}-\d{2}-\d{2}[Tt ]")
_INTEGRAL = BeforeValidator(whole_if_integral)
_NAME = r"^[A-Za-z0-9_.-]+$"
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
TaskId = Annotated[str, Field(min_length=1, max_length=64, pattern=_NAME, examples=["task-8f14e45fceea167a"])]
RoundId = Annotated[
    str, Field(min_length=1, max_length=64, pattern=_NAME, examples=["round-c9f0f895fb98ab91"])
]
TrainingId = Annotated[
    str, Field(min_length=1, max_length=64, pattern=_NAME, examples=["training-45c48cce2e2d7fbd"])
]
KeyId = Annotated[str, Field(min_length=1, max_length=32, pattern=_NAME, examples=["d3d9446802a44259"])]
Name = Annotated[str, Field(max_length=128, pattern=_PRINTABLE)]
ImportName = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_.:/-]+$")]
Labels = Annotated[
    dict[
        Annotated[str, Field(pattern=r"^[A-Za-z0-9_.-]{1,64}$")],
        Annotated[str, Field(max_length=128, pattern=_PRINTABLE)],
    ],
    Field(max_length=32, examples=[{"vehicle": "bus"}], json_schema_extra={"additionalProperties": False}),
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
ModelSize = Annotated[int, Field(ge=1, le=MAX_MODEL_BYTES), _INTEGRAL]
LocalEpochs = Annotated[int, Field(ge=1, le=100_000), _INTEGRAL]
Fraction = Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=10**9), _INTEGRAL]
BatchSize = Annotated[int, Field(ge=1, le=1_000_000), _INTEGRAL]
UpdateNorm = Annotated[float, Field(gt=0, le=1e12, allow_inf_nan=False)]
LearningRate = Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]
PartitionIndex = Annotated[int, Field(ge=0, le=10**9), _INTEGRAL]
Seed = Annotated[int, Field(ge=0, le=2**53 - 1), _INTEGRAL]  # every JSON parser keeps it exact
