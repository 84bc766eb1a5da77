"""``/tasks``: what is trained, on which terms, and how it goes."""

from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from services.contract.fields import (
    BatchSize,
    Count,
    Duration,
    Fraction,
    ImportName,
    Labels,
    LearningRate,
    LocalEpochs,
    ModelSize,
    Name,
    PolicyName,
    PositiveDuration,
    ResourceBlocks,
    RoundId,
    Seed,
    TaskId,
    Timestamp,
    UpdateNorm,
)
from services.domain.radio import REPORT_RESOURCE_BLOCKS
from services.domain.tasks import (
    AggregationRule,
    Clock,
    PartitionScheme,
    SlotEnforcement,
    TaskState,
    TaskTerms,
)

_HOUR_S = 3600.0


class TaskRequest(BaseModel):
    """A training task. The defaults are the paper's settings for CIFAR-10."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        json_schema_extra={
            "anyOf": [
                {"properties": {"target_accuracy": {"type": "null"}}},
                {"properties": {"dataset": {"type": "string"}}, "required": ["dataset"]},
            ],
            "examples": [
                {
                    "name": "lane markings",
                    "model": "paper-cnn",
                    "round_deadline_s": 180,
                    "final_deadline_s": 24000,
                    "request_fraction": 0.1,
                    "clock": "wall",
                    "labels": {"vehicle": "bus"},
                }
            ],
        },
    )

    name: Name = Field(default="", description="For people.")
    model: ImportName = Field(default="paper-cnn", description="The network that workers initialize.")
    dataset: ImportName | None = Field(
        default=None,
        description="Where workers find validation data, and that of simulated devices. Without one no "
        "accuracy is claimed.",
    )
    partition_scheme: Annotated[PartitionScheme, Field(strict=False)] = Field(
        default=PartitionScheme.IID, description="How simulated devices' data are drawn from the data set."
    )
    local_epochs: LocalEpochs = 5
    batch_size: BatchSize = 50
    learning_rate: LearningRate = 0.25
    learning_rate_decay: Fraction = Field(default=0.99, description="Factor from round to round.")
    aggregation: Annotated[AggregationRule, Field(strict=False)] = Field(
        default=AggregationRule.WEIGHTED, description="`weighted` by samples, or the `uniform` average."
    )
    policy: PolicyName = "fedcs"
    round_deadline_s: PositiveDuration = Field(
        description="A round has to end strictly before this. The policy `fl` ignores it."
    )
    final_deadline_s: PositiveDuration | None = Field(
        default=None, description="The task ends when no further round would end by this."
    )
    request_fraction: Fraction = Field(
        default=0.1, description="C: how many of the clients are asked in a round."
    )
    target_accuracy: Fraction | None = Field(
        default=None, description="The task ends with it; needs a `dataset`."
    )
    clock: Annotated[Clock, Field(strict=False)] = Clock.WALL
    report_max_age_s: PositiveDuration = Field(default=_HOUR_S, description="Older reports do not count.")
    report_window_s: Duration = Field(
        default=0.0,
        description="How long a round waits for reports before it selects; then only those count that came "
        "since it opened. 0: the reports at hand are taken.",
    )
    model_size_bytes: ModelSize | None = Field(
        default=None, description="What is scheduled for an upload; the model's real size if not given."
    )
    selection_s: Duration = Field(default=0.0, description="Time reserved for Client Selection.")
    aggregation_s: Duration = Field(default=0.0, description="Time reserved for Aggregation.")
    resource_blocks: ResourceBlocks = Field(
        default=REPORT_RESOURCE_BLOCKS, description="Resource blocks the task owns."
    )
    auto_advance: bool = Field(
        default=False, description="After the first round, the service opens the next."
    )
    seed: Seed = 0
    labels: Labels = Field(default={}, description="Only clients with all of these take part.")
    min_clients: Count = Field(
        default=1, description="With fewer selected, a round fails (`TOO_FEW_CLIENTS`)."
    )
    min_updates: Count = Field(
        default=1, description="With fewer received, a round fails (`TOO_FEW_UPDATES`)."
    )
    slot_enforcement: Annotated[SlotEnforcement, Field(strict=False)] = Field(
        default=SlotEnforcement.DEADLINE,
        description="`deadline`: upload any time before the upload deadline; `strict`: in one's own slot.",
    )
    slot_grace_s: Duration = Field(default=1.0, description="How much a strict slot is widened at both ends.")
    idle_timeout_s: PositiveDuration = Field(
        default=_HOUR_S,
        description="A round that has no deadline on the wall clock fails after such silence.",
    )
    max_update_norm: UpdateNorm | None = Field(
        default=None,
        description="A client's step, its update less the model it was given, is shortened to this Euclidean "
        "norm. Steps beyond all others' are left out in any case.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.target_accuracy is not None and self.dataset is None:
            raise PydanticCustomError(
                "needs_dataset",
                "Without a dataset no accuracy can be measured",
                {"within": ("target_accuracy",)},
            )
        if self.selection_s + self.aggregation_s >= self.round_deadline_s:
            raise PydanticCustomError(
                "no_time_left",
                "selection_s and aggregation_s leave no time in the round",
                {"within": ("round_deadline_s",)},
            )
        return self

    def terms(self) -> TaskTerms:
        """The same, for the protocol."""
        return TaskTerms(**{name: getattr(self, name) for name in type(self).model_fields})


_TERMS_EXAMPLE: dict[str, Any] = {
    "name": "lane markings",
    "model": "paper-cnn",
    "dataset": None,
    "partition_scheme": "iid",
    "local_epochs": 5,
    "batch_size": 50,
    "learning_rate": 0.25,
    "learning_rate_decay": 0.99,
    "aggregation": "weighted",
    "policy": "fedcs",
    "round_deadline_s": 180.0,
    "final_deadline_s": 24000.0,
    "request_fraction": 0.1,
    "target_accuracy": None,
    "clock": "wall",
    "report_max_age_s": 3600.0,
    "report_window_s": 0.0,
    "model_size_bytes": None,
    "selection_s": 0.0,
    "aggregation_s": 0.0,
    "resource_blocks": 10,
    "auto_advance": False,
    "seed": 0,
    "labels": {"vehicle": "bus"},
    "min_clients": 1,
    "min_updates": 1,
    "slot_enforcement": "deadline",
    "slot_grace_s": 1.0,
    "idle_timeout_s": 3600.0,
    "max_update_norm": None,
}


class TaskResponse(BaseModel):
    """A task: its terms, and how far it is."""

    model_config = ConfigDict(
        from_attributes=True,
        json_schema_extra={
            "examples": [
                {
                    "task_id": "task-8f14e45fceea167a",
                    "state": "running",
                    "created_at": "2026-01-01T12:00:00Z",
                    "ended_at": None,
                    "outcome": None,
                    "model_version": 3,
                    "rounds": 4,
                    "elapsed_s": 540.0,
                    **_TERMS_EXAMPLE,
                }
            ]
        },
    )

    task_id: TaskId
    state: TaskState
    created_at: Timestamp
    ended_at: Timestamp | None
    outcome: str | None = Field(description="Why it ended.")
    model_version: int | None = Field(description="The newest version of its model.")
    rounds: int = Field(description="How many have been opened.")
    elapsed_s: float = Field(description="Of its own clock, at the end of the newest round that is over.")
    name: str
    model: str
    dataset: str | None
    partition_scheme: PartitionScheme
    local_epochs: int
    batch_size: int
    learning_rate: float
    learning_rate_decay: float
    aggregation: AggregationRule
    policy: PolicyName
    round_deadline_s: float
    final_deadline_s: float | None
    request_fraction: float
    target_accuracy: float | None
    clock: Clock
    report_max_age_s: float
    report_window_s: float
    model_size_bytes: int | None
    selection_s: float
    aggregation_s: float
    resource_blocks: int
    auto_advance: bool
    seed: int
    labels: dict[str, str]
    min_clients: int
    min_updates: int
    slot_enforcement: SlotEnforcement
    slot_grace_s: float
    idle_timeout_s: float
    max_update_norm: float | None


class RoundMetrics(BaseModel):
    """One round of a task, and how good the model was after it."""

    round_id: RoundId
    number: int
    state: str
    asked: int
    selected: int
    received: int
    duration_s: float | None = Field(description="Until the model was aggregated, in round time.")
    elapsed_s: float | None = Field(
        description="Of the task's clock at the end of the round; a simulated round costs its whole deadline."
    )
    model_version: int | None = Field(description="The version it made.")
    accuracy: float | None
    loss: float | None


class TaskMetrics(BaseModel):
    """How a task goes, round by round."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "task_id": "task-8f14e45fceea167a",
                    "rounds": [
                        {
                            "round_id": "round-c9f0f895fb98ab91",
                            "number": 1,
                            "state": "aggregated",
                            "asked": 100,
                            "selected": 8,
                            "received": 8,
                            "duration_s": 171.4,
                            "elapsed_s": 180.0,
                            "model_version": 1,
                            "accuracy": 0.31,
                            "loss": 1.9,
                        }
                    ],
                }
            ]
        }
    )

    task_id: TaskId
    rounds: list[RoundMetrics]


class ModelVersionResponse(BaseModel):
    """A version of a task's model."""

    model_config = ConfigDict(
        from_attributes=True,
        json_schema_extra={
            "examples": [
                {
                    "version": 0,
                    "digest": "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae",
                    "size_bytes": 18_300_000,
                    "created_at": "2026-01-01T12:00:00Z",
                }
            ]
        },
    )

    version: int
    digest: str = Field(description="SHA-256 of the file, in hex.")
    size_bytes: int
    created_at: Timestamp
