"""``/tasks``: what is trained, on which terms, and how it goes."""

from typing import Annotated, Any, Self, cast

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from services.aggregators import AGGREGATORS, make_aggregator
from services.contract.common import (
    AggregatorName,
    BatchSize,
    CellId,
    ClipFactor,
    Count,
    Duration,
    Fraction,
    ImportName,
    Labels,
    LearningRate,
    LocalEpochs,
    ModelEncoding,
    ModelSize,
    Momentum,
    Name,
    Penalty,
    PlanningFactor,
    PolicyName,
    PositiveDuration,
    Priority,
    ResourceBlocks,
    RoundId,
    Seed,
    Slack,
    TaskId,
    Timestamp,
    UpdateEncoding,
    UpdateNorm,
    known_dataset,
    known_network,
    random_seed,
)
from services.contract.registries import (
    AggregationParameters,
    PolicyParameters,
    check_aggregation_parameters,
    check_deadline_mode,
    check_policy_parameters,
)
from services.domain.resources import REPORT_RESOURCE_BLOCKS
from services.domain.tasks import (
    Clock,
    DeadlineMode,
    Dispatch,
    PartitionScheme,
    SlotEnforcement,
    TargetMetric,
    TaskOutcome,
    TaskState,
    TaskTerms,
    TermsChange,
)
from services.tensors.encodings import ENCODINGS

_HOUR_S = 3600.0
ADAPTIVE_DECAY_S = 180.0
"""In which time the learning rate decays once, if deadlines are adaptive and nothing else is said."""


_EXAMPLE: dict[str, Any] = {
    "name": "lane markings",
    "model": "paper-cnn",
    "round_deadline_s": 180,
    "final_deadline_s": 24000,
    "request_fraction": 0.1,
    "clock": "wall",
    "labels": {"vehicle": "bus"},
}


class TaskFields(BaseModel):
    """The fields of ``TaskTerms``, as the operator sets them and as they are shown.

    Tasks outlive versions of the service: limits may be widened, not narrowed.
    """

    name: Name = Field(default="", description="For people.")
    model: ImportName = Field(
        default="paper-cnn",
        description="The network that workers initialize: a name of `GET /networks`, or your own as "
        "`package.module:Name`.",
    )
    dataset: ImportName | None = Field(
        default=None,
        description="Where workers find validation data, and that of simulated devices: a name of "
        "`GET /datasets`, or your own as `package.module:name`. null: workers measure no accuracy.",
    )
    partition_scheme: Annotated[PartitionScheme, Field(strict=False)] = Field(
        default=PartitionScheme.IID, description="How simulated devices' data are drawn from the data set."
    )
    local_epochs: LocalEpochs = 5
    batch_size: BatchSize = 50
    learning_rate: LearningRate = 0.25
    learning_rate_decay: Fraction = Field(
        default=0.99, description="Factor of the learning rate per round, or per `learning_rate_decay_s`."
    )
    learning_rate_decay_s: PositiveDuration | None = Field(
        default=None,
        description="The learning rate decays once per so many seconds of the task's clock. null: once per "
        "round.",
    )
    aggregation: AggregatorName = Field(
        default="weighted", description="What turns updates into the next model; see `GET /aggregators`."
    )
    aggregation_parameters: AggregationParameters = {}
    policy: PolicyName = "fedcs"
    policy_parameters: PolicyParameters = {}
    round_deadline_s: PositiveDuration = Field(
        description="A round has to end strictly before this, if the policy honours deadlines."
    )
    final_deadline_s: PositiveDuration | None = Field(
        default=None, description="The task ends when no further round would end by this."
    )
    request_fraction: Fraction = Field(
        default=0.1, description="C: how many of the clients are asked in a round."
    )
    target_accuracy: Fraction | None = Field(
        default=None,
        description="The task ends when its model has this accuracy. Needs a `dataset`, or `device` as "
        "`target_metric`.",
    )
    target_metric: Annotated[TargetMetric, Field(strict=False)] = Field(
        default=TargetMetric.SERVER,
        description="`server`: `target_accuracy` is compared with what workers measure on the data set. "
        "`device`: with what at least 10 devices measure on their own data.",
    )
    evaluate_initial_model: bool = Field(
        default=False,
        description="Whether workers also measure version 0, when the first round opens. Needs a `dataset`.",
    )
    max_rounds: Count | None = Field(
        default=None, description="The task ends after so many rounds; failed ones count. null: no limit."
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
    cells: Annotated[list[CellId], Field(min_length=1, max_length=1000)] | None = Field(
        default=None,
        description="The cells whose clients take part; null: all cells that have `min_resource_blocks`.",
    )
    resource_blocks: ResourceBlocks = Field(
        default=REPORT_RESOURCE_BLOCKS, description="Resource blocks that a round wants in each cell."
    )
    min_resource_blocks: ResourceBlocks | None = Field(
        default=None,
        description="With fewer free in one of its cells, a round is not opened (`RESOURCE_BLOCKS_BUSY`). "
        "null: with fewer than `resource_blocks`.",
    )
    priority: Priority = Field(
        default=0,
        description="Of the tasks that wait for resource blocks, the one with the highest comes first.",
    )
    allow_busy_clients: bool = Field(
        default=False,
        description="Whether clients that have an open slot in a round of another task are selected too.",
    )
    auto_advance: bool = Field(
        default=False, description="After the first round, the service opens the next."
    )
    seed: Seed = Field(
        default_factory=random_seed,
        description="Of the draw of candidates, the initial model and hosted training; random if not given, "
        "so that clients cannot predict a draw. Equal seeds give equal results.",
    )
    labels: Labels = Field(default={}, description="Only clients with all of these take part.")
    min_clients: Count = Field(
        default=1, description="With fewer selected, a round fails (`TOO_FEW_CLIENTS`)."
    )
    min_updates: Count = Field(
        default=1,
        description="With fewer received, a round fails (`TOO_FEW_UPDATES`). The model of a round with one "
        "update is that client's update bit for bit, for every key that may download models: set 3 or more "
        "for real devices. `krum` and `multi-krum` need at least 2 × `byzantine` + 3.",
    )
    slot_enforcement: Annotated[SlotEnforcement, Field(strict=False)] = Field(
        default=SlotEnforcement.DEADLINE,
        description="`deadline`: upload any time before the upload deadline; `strict`: in one's own slot.",
    )
    slot_grace_s: Duration = Field(default=1.0, description="How much a strict slot is widened at both ends.")
    idle_timeout_s: PositiveDuration = Field(
        default=_HOUR_S,
        description="A round that has no deadline on the wall clock is closed after such silence: aggregated "
        "with at least `min_updates` updates, else it fails (`IDLE_TIMEOUT`).",
    )
    update_clip_factor: ClipFactor | None = Field(
        default=2.0,
        description="A client's step, its update less the model it was given, is shortened to this many "
        "times the median norm of the round's steps, which counts up to 1.5 times that of past rounds; "
        "running statistics by themselves likewise. null: no clipping.",
    )
    update_encoding: UpdateEncoding = Field(
        default="float32",
        description="How updates travel. `float16` carries the parameters; `int8` and `int8-topk` carry the "
        "difference to the model as the client received it.",
    )
    model_encoding: ModelEncoding = Field(default="float32", description="How clients download the model.")
    topk_fraction: Fraction = Field(
        default=0.1, description="Of each tensor's differences, how many `int8-topk` sends: the largest."
    )
    deadline_mode: Annotated[DeadlineMode, Field(strict=False)] = Field(
        default=DeadlineMode.FIXED,
        description="`adaptive`: each round has its own deadline, chosen from the reports and the measured "
        "noise scale; `round_deadline_s` is the longest allowed. Not with policies without a deadline.",
    )
    min_round_deadline_s: PositiveDuration = Field(
        default=10.0, description="The shortest deadline in adaptive mode."
    )
    deadline_slack: Slack = Field(
        default=0.1, description="In adaptive mode, by which share a deadline is longer than the schedule."
    )
    max_update_norm: UpdateNorm | None = Field(
        default=None,
        description="A client's step, its update less the model it was given, is shortened to this Euclidean "
        "norm. Steps beyond all others' are left out in any case.",
    )
    dispatch: Annotated[Dispatch, Field(strict=False)] = Field(
        default=Dispatch.SCHEDULED,
        description="`scheduled`: clients upload in the planned order. `on_ready`: whenever the channel of a "
        "cell is free, it is granted to a client whose update is ready (`POST /rounds/{round_id}/ready`); a "
        "client that fails is replaced by another candidate that still fits. Not with strict slots.",
    )
    planning_factor: PlanningFactor = Field(
        default=1.0,
        description="Estimated times are multiplied by it for selection: below 1, more clients are selected "
        "than would fit as estimated. Slots show the times as estimated. Other than 1 with `on_ready` only.",
    )
    correct_estimates: bool = Field(
        default=False,
        description="Whether estimates are corrected by how long clients took in past rounds of the task.",
    )
    cooldown: bool = Field(
        default=False,
        description="Whether a client that was selected and did not deliver twice in a row is not drawn for "
        "a growing number of rounds (`COOLDOWN`): 2/C at first, C being `request_fraction`.",
    )
    max_share: Fraction | None = Field(
        default=None,
        description="The largest share of the task's rounds that one client may be selected in, rounded up "
        "to whole rounds (`MAX_SHARE`). null: no limit.",
    )
    cap_reports: bool = Field(
        default=False,
        description="Whether rounds are planned with the highest plausible figure in place of an implausible "
        "one; see `implausible` of a client.",
    )
    gradient_clip_norm: UpdateNorm | None = Field(
        default=None,
        description="Local training shortens the gradient of each batch to this Euclidean norm. null: no "
        "clipping.",
    )
    local_momentum: Momentum = Field(
        default=0.0, description="Momentum of local training; it starts at zero in every round."
    )
    weight_decay: Penalty = Field(
        default=0.0, description="Local training adds this many times the parameters to the gradient."
    )
    proximal_mu: Penalty = Field(
        default=0.0,
        description="FedProx: local training adds this many times the difference to the received model to "
        "the gradient.",
    )
    calibrated_loss: bool = Field(
        default=False,
        description="Local training adds the logarithm of each class's share in the client's data to the "
        "network's outputs, so that classes that are rare on the client are not unlearned.",
    )


class TaskRequest(TaskFields):
    """A training task. The defaults are the paper's settings for CIFAR-10."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        json_schema_extra={
            "examples": [_EXAMPLE],
        },
    )

    _check_model = field_validator("model")(known_network)
    _check_dataset = field_validator("dataset")(known_dataset)
    _check_parameters = field_validator("policy_parameters")(check_policy_parameters)
    _check_aggregator = field_validator("aggregation_parameters")(check_aggregation_parameters)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if (
            self.target_accuracy is not None
            and self.dataset is None
            and self.target_metric is TargetMetric.SERVER
        ):
            raise PydanticCustomError(
                "needs_dataset",
                "Without a dataset no accuracy can be measured",
                {"within": ("target_accuracy",)},
            )
        if self.evaluate_initial_model and self.dataset is None:
            raise PydanticCustomError(
                "needs_dataset",
                "Without a dataset no accuracy can be measured",
                {"within": ("evaluate_initial_model",)},
            )
        check_deadline_mode(self)
        if ENCODINGS[self.update_encoding].is_sparse and not AGGREGATORS[self.aggregation].takes_sparse:
            raise PydanticCustomError(
                "sparse_updates",
                "The aggregator compares clients number by number, and this encoding leaves numbers out",
                {"within": ("update_encoding",)},
            )
        needed = make_aggregator(self.aggregation, self.aggregation_parameters).min_updates
        if self.min_updates < needed:
            raise PydanticCustomError(
                "too_few_updates",
                "The aggregator needs at least {needed} with these parameters",
                {"needed": needed, "within": ("min_updates",)},
            )
        if self.selection_s + self.aggregation_s >= self.round_deadline_s:
            raise PydanticCustomError(
                "no_time_left",
                "selection_s and aggregation_s leave no time in the round",
                {"within": ("round_deadline_s",)},
            )
        if self.min_resource_blocks is not None and self.min_resource_blocks > self.resource_blocks:
            raise PydanticCustomError(
                "more_than_wanted",
                "min_resource_blocks is more than resource_blocks",
                {"within": ("min_resource_blocks",)},
            )
        if self.dispatch is Dispatch.ON_READY and self.slot_enforcement is SlotEnforcement.STRICT:
            raise PydanticCustomError(
                "strict_slots", "With strict slots the order is fixed", {"within": ("dispatch",)}
            )
        if self.dispatch is Dispatch.SCHEDULED and self.planning_factor != 1:
            raise PydanticCustomError(
                "fixed_order",
                "The planned order needs the estimated times; set dispatch to on_ready",
                {"within": ("planning_factor",)},
            )
        if self.cells is not None and len(set(self.cells)) < len(self.cells):
            raise PydanticCustomError("duplicate_cell", "A cell is named twice", {"within": ("cells",)})
        return self

    def terms(self) -> TaskTerms:
        """The same, for the protocol."""
        values = {name: getattr(self, name) for name in type(self).model_fields}
        if self.deadline_mode is DeadlineMode.ADAPTIVE and self.learning_rate_decay_s is None:
            values["learning_rate_decay_s"] = ADAPTIVE_DECAY_S  # rounds have no common length
        return TaskTerms(**values | {"cells": None if self.cells is None else tuple(self.cells)})


class TaskChangeRequest(BaseModel):
    """Terms of a task to be changed; those that are not named stay. Of an ended task, the name."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        json_schema_extra={"examples": [{"name": "lane markings, night", "max_rounds": 200}]},
    )

    name: Name = Field(default="", description="For people.")
    final_deadline_s: PositiveDuration | None = Field(default=None, description="null: none.")
    max_rounds: Count | None = Field(default=None, description="null: no limit.")
    target_accuracy: Fraction | None = Field(default=None, description="null: none.")

    def changes(self) -> TermsChange:
        """What was named."""
        return cast(TermsChange, self.model_dump(include=self.model_fields_set))


class TaskProgress(BaseModel):
    """How far a task is."""

    task_id: TaskId
    state: TaskState
    created_at: Timestamp
    ended_at: Timestamp | None
    outcome: TaskOutcome | None = Field(
        description="Why it ended. `FINISHED_BY_OPERATOR` in the state `running`: it is finished as soon as "
        "its open round is over."
    )
    detail: str | None = Field(description="The same in a sentence; of a failure, the error.")
    model_version: int | None = Field(description="The newest version of its model.")
    rounds: int = Field(description="How many have been opened.")
    elapsed_s: float = Field(description="Of its own clock, at the end of the newest round that is over.")


class TaskResponse(TaskFields, TaskProgress):
    """A task: its terms, and how far it is."""

    model_config = ConfigDict(
        from_attributes=True,
        json_schema_serialization_defaults_required=True,
        json_schema_extra={
            "examples": [
                {
                    "task_id": "task-8f14e45fceea167a",
                    "state": "running",
                    "created_at": "2026-01-01T12:00:00Z",
                    "ended_at": None,
                    "outcome": None,
                    "detail": None,
                    "model_version": 3,
                    "rounds": 4,
                    "elapsed_s": 540.0,
                    **TaskRequest.model_validate(_EXAMPLE | {"seed": 0}).model_dump(mode="json"),
                }
            ]
        },
    )


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
    round_deadline_s: float | None = Field(description="Of this round; null without a deadline.")
    measured_noise_scale: float | None = Field(
        description="B after this round, in clients; null if it was not measured yet."
    )
    accuracy: float | None
    device_accuracy: float | None = Field(description="Measured by devices on their own data.")
    loss: float | None
    evaluation_error: str | None = Field(description="Why the version is not evaluated; null if none failed.")


class TaskMetrics(BaseModel):
    """How a task goes, round by round."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "task_id": "task-8f14e45fceea167a",
                    "initial_accuracy": 0.1,
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
                            "round_deadline_s": 180.0,
                            "measured_noise_scale": 4.7,
                            "accuracy": 0.31,
                            "device_accuracy": 0.29,
                            "loss": 1.9,
                            "evaluation_error": None,
                        }
                    ],
                }
            ]
        }
    )

    task_id: TaskId
    initial_accuracy: float | None = Field(
        description="Of version 0, measured by workers; null if it is not known (`evaluate_initial_model`)."
    )
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
                    "accuracy": 0.62,
                    "device_accuracy": 0.6,
                    "loss": 1.08,
                    "evaluation_error": None,
                }
            ]
        },
    )

    version: int
    digest: str = Field(description="SHA-256 of the file, in hex.")
    size_bytes: int
    created_at: Timestamp
    accuracy: float | None = Field(description="Measured by workers; null until it is known.")
    device_accuracy: float | None = Field(description="Measured by devices on their own data.")
    loss: float | None
    evaluation_error: str | None = Field(description="Why it is not evaluated; null if nothing failed.")


class DeviceEvaluationRequest(BaseModel):
    """What a device measured of a model version on its own data."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        frozen=True,
        json_schema_extra={"examples": [{"accuracy": 0.58, "loss": 1.12, "samples": 200}]},
    )

    accuracy: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
    loss: Annotated[float, Field(ge=0, le=1e12, allow_inf_nan=False)] | None = Field(
        default=None, description="null: not measured, or not finite."
    )
    samples: Count = Field(description="How many samples it was measured on.")


class DeviceEvaluationResponse(BaseModel):
    """What all devices measured of the version."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"task_id": "task-8f14e45fceea167a", "version": 3, "device_accuracy": 0.6, "devices": 12}
            ]
        }
    )

    task_id: TaskId
    version: int
    device_accuracy: float = Field(
        description="The mean, weighted by samples; a device counts at most 3 times the median device."
    )
    devices: int = Field(description="How many devices evaluated it.")
