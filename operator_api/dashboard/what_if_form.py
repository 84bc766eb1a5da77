"""The form of the what-if page: a plan on the latest reports, checked by the rules of ``POST /plans``."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from pydantic import Field, ValidationError

from operator_api.dashboard.task_form import as_number
from services.contract.fields import Fraction
from services.contract.plans import Candidate, PlanRequest
from services.domain.cell import PAPER_MODEL_SIZE_BYTES, PAPER_REQUEST_FRACTION
from services.domain.radio import REPORT_RESOURCE_BLOCKS


@dataclass(frozen=True)
class NumberField:
    """A number of the form, and what its slider spans; other numbers can be typed."""

    name: str
    label: str
    first: str
    """What the form says at first: the paper's settings."""
    low: float
    high: float
    step: float
    hint: str = ""


NUMBERS = (
    NumberField("round_deadline_s", "Round deadline (s)", "180", 10, 600, 1, "The policy fl ignores it."),
    NumberField("resource_blocks", "Resource blocks", str(REPORT_RESOURCE_BLOCKS), 1, 100, 1),
    NumberField(
        "model_size_bytes",
        "Model size (bytes)",
        str(PAPER_MODEL_SIZE_BYTES["cifar10"]),
        100_000,
        100_000_000,
        100_000,
    ),
    NumberField("local_epochs", "Local epochs", "5", 1, 50, 1),
    NumberField("selection_s", "Client Selection takes (s)", "0", 0, 60, 0.5),
    NumberField("aggregation_s", "Aggregation takes (s)", "0", 0, 60, 0.5),
    NumberField(
        "request_fraction",
        "Request fraction",
        str(PAPER_REQUEST_FRACTION),
        0.01,
        1,
        0.01,
        "How many of the enrolled clients are asked.",
    ),
    NumberField("seed", "Seed", "0", 0, 100, 1, "Of the draw, and of random orders: another cast."),
)
_FIRST = {"policy": "fedcs"} | {one.name: one.first for one in NUMBERS}


class WhatIf(PlanRequest):
    """A plan whose candidates are drawn from the clients that are enrolled."""

    request_fraction: Fraction
    candidates: list[Candidate] = Field(default_factory=list)


@dataclass(frozen=True)
class WhatIfForm:
    """The form as it is shown."""

    values: Mapping[str, str] = field(default_factory=lambda: MappingProxyType(_FIRST))
    errors: Mapping[str, str] = field(default_factory=dict)
    """What is wrong, by field."""


def read_what_if(given: Mapping[str, str]) -> tuple[WhatIf | None, WhatIfForm]:
    """What is asked for, if nothing is wrong with it, and the form to show; what is missing is as first."""
    values = {name: given.get(name, first).strip() for name, first in _FIRST.items()}
    numbers = {one.name: as_number(values[one.name]) for one in NUMBERS}
    try:
        return WhatIf.model_validate({"policy": values["policy"]} | numbers), WhatIfForm(values)
    except ValidationError as error:
        reasons = {str(one["loc"][0]): one["msg"] for one in reversed(error.errors())}
        return None, WhatIfForm(values, reasons)
