"""Field types of the wire format: strict JSON numbers with their limits, and identifiers."""

from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from services.domain.selection import POLICIES

MAX_DURATION_S = 1e9
MAX_MODEL_BYTES = 10**13
MAX_RESOURCE_BLOCKS = 1000


def _whole_if_integral(value: object) -> object:
    """JSON knows one kind of number: 200.0 is the whole number 200."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _known_policy(name: str) -> str:
    if name not in POLICIES:
        raise ValueError(f"unknown policy; choose one of {', '.join(POLICIES)}")
    return name


_INTEGRAL = BeforeValidator(_whole_if_integral)

ClientId = Annotated[
    str, Field(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]+$", examples=["c1"])
]
PolicyName = Annotated[
    str,
    AfterValidator(_known_policy),
    WithJsonSchema({"type": "string", "enum": list(POLICIES)}),
]
Duration = Annotated[float, Field(ge=0, le=MAX_DURATION_S, allow_inf_nan=False)]
PositiveDuration = Annotated[float, Field(gt=0, le=MAX_DURATION_S, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, le=1e15, allow_inf_nan=False)]
DataSamples = Annotated[int, Field(ge=0, le=10**12), _INTEGRAL]
ResourceBlocks = Annotated[int, Field(ge=1, le=MAX_RESOURCE_BLOCKS), _INTEGRAL]
ModelSize = Annotated[int, Field(ge=1, le=MAX_MODEL_BYTES), _INTEGRAL]
LocalEpochs = Annotated[int, Field(ge=1, le=100_000), _INTEGRAL]
Seed = Annotated[int, Field(ge=0, le=2**53 - 1), _INTEGRAL]  # every JSON parser keeps it exact
