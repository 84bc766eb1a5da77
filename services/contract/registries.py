"""``GET /policies``, ``/aggregators``, ``/networks``, ``/datasets``, and their fields in plans and tasks."""

from typing import Annotated, Any, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, WithJsonSchema
from pydantic_core import PydanticCustomError

from services.aggregators import AGGREGATORS, make_aggregator
from services.contract.common import response_config
from services.domain.builtins import DATASETS, NETWORKS
from services.domain.parameters import ParameterError, parameters_of
from services.domain.selection import POLICIES, make_policy
from services.domain.tasks import DeadlineMode

_POLICY_NAMES = sorted({parameter.name for kind in POLICIES.values() for parameter in parameters_of(kind)})

PolicyParameters = Annotated[
    dict[str, Any],
    WithJsonSchema(
        {"type": "object", "properties": {name: {} for name in _POLICY_NAMES}, "additionalProperties": False}
    ),
    Field(description="Parameters of the policy, as `GET /policies` lists them; the others have defaults."),
]


def check_policy_parameters(parameters: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
    """Refuse what the policy does not take; a validator of a field that comes after ``policy``."""
    policy = info.data.get("policy")  # missing: it is wrong itself, and an error says so
    if policy is not None:
        try:
            make_policy(policy, parameters)
        except ParameterError as error:
            raise PydanticCustomError(
                "policy_parameter", "{reason}", {"reason": error.reason, "within": (error.name,)}
            ) from error
    return parameters


def deadline_of(policy: str, round_deadline_s: float) -> float | None:
    """The deadline of a round, if its policy honours it."""
    return round_deadline_s if POLICIES[policy].honours_deadline else None


class DeadlineTerms(Protocol):
    """The fields of a task or a plan that say how deadlines are found."""

    @property
    def policy(self) -> str:
        """The name of the policy."""

    @property
    def deadline_mode(self) -> DeadlineMode:
        """How the deadline of a round is found."""

    @property
    def round_deadline_s(self) -> float:
        """The deadline, or the longest."""

    @property
    def min_round_deadline_s(self) -> float:
        """The shortest."""


def check_deadline_mode(terms: DeadlineTerms) -> None:
    """Refuse an adaptive deadline that cannot be."""
    if terms.deadline_mode is DeadlineMode.FIXED:
        return
    if not POLICIES[terms.policy].honours_deadline:
        raise PydanticCustomError(
            "no_deadline", "The policy has no deadline to adapt", {"within": ("deadline_mode",)}
        )
    if terms.min_round_deadline_s > terms.round_deadline_s:
        raise PydanticCustomError(
            "no_deadline", "It is longer than round_deadline_s", {"within": ("min_round_deadline_s",)}
        )


class ParameterResponse(BaseModel):
    """A parameter, and its value if it is not given."""

    model_config = ConfigDict(from_attributes=True)

    name: str
    default: float | int | None
    description: str


class PolicyResponse(BaseModel):
    """A selection policy."""

    model_config = response_config(
        {
            "name": "fedcs",
            "summary": POLICIES["fedcs"].summary,
            "honours_deadline": True,
            "parameters": [],
        }
    )

    name: str
    summary: str
    honours_deadline: bool = Field(
        description="Whether a round ends before `round_deadline_s`; else it waits for all selected clients."
    )
    parameters: list[ParameterResponse] = Field(description="What `policy_parameters` may have.")


def list_policies() -> list[PolicyResponse]:
    """Every policy."""
    return [
        PolicyResponse(
            name=name,
            summary=kind.summary,
            honours_deadline=kind.honours_deadline,
            parameters=[ParameterResponse.model_validate(parameter) for parameter in parameters_of(kind)],
        )
        for name, kind in POLICIES.items()
    ]


_AGGREGATOR_NAMES = sorted(
    {parameter.name for kind in AGGREGATORS.values() for parameter in parameters_of(kind)}
)

AggregationParameters = Annotated[
    dict[str, Any],
    WithJsonSchema(
        {
            "type": "object",
            "properties": {name: {"type": ["number", "null"]} for name in _AGGREGATOR_NAMES},
            "additionalProperties": False,
        }
    ),
    Field(
        description="Parameters of the aggregator, as `GET /aggregators` lists them; others have defaults."
    ),
]


def check_aggregation_parameters(parameters: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
    """Refuse what the aggregator does not take; a validator of a field that comes after ``aggregation``."""
    aggregation = info.data.get("aggregation")  # missing: it is wrong itself, and an error says so
    if aggregation is not None:
        try:
            make_aggregator(aggregation, parameters)
        except ParameterError as error:
            raise PydanticCustomError(
                "aggregation_parameter", "{reason}", {"reason": error.reason, "within": (error.name,)}
            ) from error
    return parameters


class AggregatorResponse(BaseModel):
    """An aggregator."""

    model_config = response_config(
        {"name": "uniform", "summary": AGGREGATORS["uniform"].summary, "parameters": []}
    )

    name: str
    summary: str
    parameters: list[ParameterResponse] = Field(description="What `aggregation_parameters` may have.")


def list_aggregators() -> list[AggregatorResponse]:
    """Every aggregator."""
    return [
        AggregatorResponse(
            name=name,
            summary=kind.summary,
            parameters=[ParameterResponse.model_validate(parameter) for parameter in parameters_of(kind)],
        )
        for name, kind in AGGREGATORS.items()
    ]


class BuiltinResponse(BaseModel):
    """A network or a data set that workers know by name. It has no parameters."""

    model_config = response_config({"name": "paper-cnn", "summary": NETWORKS["paper-cnn"], "parameters": []})

    name: str
    summary: str
    parameters: list[ParameterResponse] = []


def list_networks() -> list[BuiltinResponse]:
    """Every network that comes with the service."""
    return [BuiltinResponse(name=name, summary=summary) for name, summary in NETWORKS.items()]


def list_datasets() -> list[BuiltinResponse]:
    """Every data set that comes with the service."""
    return [BuiltinResponse(name=name, summary=summary) for name, summary in DATASETS.items()]
