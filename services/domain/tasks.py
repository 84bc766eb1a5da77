"""A training task: its terms, its states, and the evaluation of its models."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, TypedDict

from services.domain.cells import BlockDemand
from services.domain.nanoseconds import to_ns
from services.domain.selection import POLICIES


class TaskState(StrEnum):
    """The state of a task."""

    INITIALIZING = "initializing"
    READY = "ready"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"


TASK_TRANSITIONS: Mapping[TaskState, frozenset[TaskState]] = {
    TaskState.INITIALIZING: frozenset({TaskState.READY, TaskState.FAILED, TaskState.CANCELLED}),
    TaskState.READY: frozenset(
        {TaskState.RUNNING, TaskState.FINISHED, TaskState.FAILED, TaskState.CANCELLED}
    ),
    TaskState.RUNNING: frozenset({TaskState.FINISHED, TaskState.FAILED, TaskState.CANCELLED}),
    TaskState.FINISHED: frozenset(),
    TaskState.FAILED: frozenset(),
    TaskState.CANCELLED: frozenset(),
}
"""Allowed transitions from each state."""


class TaskOutcome(StrEnum):
    """Why a task ended."""

    TARGET_ACCURACY = "TARGET_ACCURACY"
    FINAL_DEADLINE = "FINAL_DEADLINE"
    MAX_ROUNDS = "MAX_ROUNDS"
    FINISHED_BY_OPERATOR = "FINISHED_BY_OPERATOR"
    CANCELLED_BY_OPERATOR = "CANCELLED_BY_OPERATOR"
    INITIALIZATION_FAILED = "INITIALIZATION_FAILED"
    EVALUATION_FAILED = "EVALUATION_FAILED"


OUTCOME_DETAILS: Mapping[TaskOutcome, str] = {
    TaskOutcome.TARGET_ACCURACY: "The target accuracy is reached.",
    TaskOutcome.FINAL_DEADLINE: "The final deadline leaves no time for a round.",
    TaskOutcome.MAX_ROUNDS: "The task has had its max_rounds rounds.",
    TaskOutcome.FINISHED_BY_OPERATOR: "An operator finished the task.",
    TaskOutcome.CANCELLED_BY_OPERATOR: "An operator cancelled the task.",
}
"""What is said of each outcome; of a failure, the error is said."""


class TargetMetric(StrEnum):
    """Which accuracy a task's target is compared with."""

    SERVER = "server"
    """On the validation data of the task's data set, measured by workers."""
    DEVICE = "device"
    """On the devices' own data, measured by devices."""


class Clock(StrEnum):
    """The clock of a task's deadlines."""

    WALL = "wall"
    """The clock of the service."""
    SIMULATED = "simulated"
    """The clock of the simulator, which sends the elapsed time with each request."""


class DeadlineMode(StrEnum):
    """How the deadline of a round is found."""

    FIXED = "fixed"
    """The task's."""
    ADAPTIVE = "adaptive"
    """Chosen for each round, from the reports and the noise of the updates."""


class SlotEnforcement(StrEnum):
    """When a selected client may upload."""

    DEADLINE = "deadline"
    """Any time before the upload deadline."""
    STRICT = "strict"
    """Only in its own window, extended by the grace period."""


class Dispatch(StrEnum):
    """Who uploads next."""

    SCHEDULED = "scheduled"
    """The next client of the planned order."""
    ON_READY = "on_ready"
    """A client whose update is ready, as soon as the channel is free."""


class PartitionScheme(StrEnum):
    """How the samples of a simulated device are drawn from the data set."""

    IID = "iid"
    """From all classes."""
    NON_IID = "non_iid"
    """From two classes."""


@dataclass(frozen=True)
class TaskTerms:
    """The terms of a task, as the operator sets them."""

    name: str
    model: str
    dataset: str | None
    partition_scheme: PartitionScheme
    local_epochs: int
    batch_size: int
    learning_rate: float
    learning_rate_decay: float
    aggregation: str
    """The name of an aggregator."""
    policy: str
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
    labels: Mapping[str, str]
    min_clients: int
    min_updates: int
    slot_enforcement: SlotEnforcement
    slot_grace_s: float
    idle_timeout_s: float
    max_update_norm: float | None
    """Updates with a larger norm are clipped to this norm."""
    aggregation_parameters: Mapping[str, float | int | None] = field(default_factory=dict)
    """Parameters of the aggregator."""
    update_clip_factor: float | None = 2.0
    """Updates with a norm above this multiple of the median are clipped; none: no clipping."""
    # New fields go here and need a default, which older tasks get.
    policy_parameters: Mapping[str, Any] = field(default_factory=dict)
    max_rounds: int | None = None
    learning_rate_decay_s: float | None = None
    """The learning rate decays once per so many seconds of the task's clock; none: once per round."""
    target_metric: TargetMetric = TargetMetric.SERVER
    cells: tuple[str, ...] | None = None
    """In which its rounds are; none: in all."""
    min_resource_blocks: int | None = None
    """With fewer in a cell no round is opened; none: it needs all that it wants."""
    priority: int = 0
    """Of waiting tasks the one with the highest is served first."""
    allow_busy_clients: bool = False
    """Whether it selects clients that have an open slot in a round of another task."""
    update_encoding: str = "float32"
    """The name of an encoding: how updates travel."""
    model_encoding: str = "float32"
    """How the model travels to the clients."""
    topk_fraction: float = 0.1
    """Of the numbers of a tensor, the share that a sparse encoding sends."""
    deadline_mode: DeadlineMode = DeadlineMode.FIXED
    min_round_deadline_s: float = 10.0
    """The shortest adaptive deadline; ``round_deadline_s`` is the longest."""
    evaluate_initial_model: bool = False
    """Whether workers measure version 0 too, when the first round opens."""
    deadline_slack: float = 0.1
    """The share by which an adaptive deadline is longer than the schedule."""
    dispatch: Dispatch = Dispatch.SCHEDULED
    planning_factor: float = 1.0
    """Estimated times are multiplied by it for selection."""
    correct_estimates: bool = False
    """Whether estimates are corrected by how long clients took in past rounds."""
    cooldown: bool = False
    """Whether clients that did not deliver are not drawn for some rounds."""
    max_share: float | None = None
    """The largest share of its rounds that one client may be selected in; none: no limit."""
    cap_reports: bool = False
    """Whether rounds are planned with the highest plausible figure in place of an implausible one."""
    gradient_clip_norm: float | None = None
    """The gradient of a batch with a larger norm is clipped to this norm."""
    local_momentum: float = 0.0
    weight_decay: float = 0.0
    proximal_mu: float = 0.0
    calibrated_loss: bool = False
    """Whether a client corrects its loss for the classes of its data."""

    def __post_init__(self) -> None:
        """Refuse invalid terms from any source."""
        if self.round_deadline_s <= 0:
            raise ValueError("round_deadline_s must be positive")
        if not 0 < self.request_fraction <= 1:
            raise ValueError("request_fraction must be above 0 and at most 1")
        if self.min_clients < 1 or self.min_updates < 1:
            raise ValueError("min_clients and min_updates must be at least 1")

    @property
    def block_demand(self) -> BlockDemand:
        """The resource blocks it wants in each of its cells."""
        least = self.resource_blocks if self.min_resource_blocks is None else self.min_resource_blocks
        return BlockDemand(self.cells, self.resource_blocks, least, self.priority)

    @property
    def has_deadline(self) -> bool:
        """Whether the policy honours the deadline; otherwise a round waits for all selected clients."""
        return POLICIES[self.policy].honours_deadline

    @property
    def needs_evaluation(self) -> bool:
        """Whether the task goes on only when workers have measured its newest model."""
        return self.target_accuracy is not None and self.target_metric is TargetMetric.SERVER

    def learning_rate_of(self, number: int, elapsed_s: float) -> float:
        """The learning rate of a round with this number that opens after so much of the task's time."""
        decays = number - 1 if self.learning_rate_decay_s is None else elapsed_s / self.learning_rate_decay_s
        return float(self.learning_rate * self.learning_rate_decay**decays)


@dataclass(frozen=True)
class Task:
    """A task."""

    serial: int
    task_id: str
    state: TaskState
    terms: TaskTerms
    created_at: datetime
    ended_at: datetime | None
    outcome: TaskOutcome | None
    """Why it ended, or ends as soon as its open round is over."""
    detail: str | None
    """The same in a sentence."""
    model_version: int | None
    """The newest version of its model."""
    rounds: int
    """Number of opened rounds."""
    elapsed_s: float
    """Elapsed time by the task's clock at the end of the last round."""
    first_round_at: datetime | None

    @property
    def is_over(self) -> bool:
        """Whether the task has ended."""
        return not TASK_TRANSITIONS[self.state]

    def ending_after(self, elapsed_s: float) -> TaskOutcome | None:
        """Why no further round may start after ``elapsed_s`` of the task's time; none: one may."""
        if self.outcome is not None:
            return self.outcome
        if self.terms.max_rounds is not None and self.rounds >= self.terms.max_rounds:
            return TaskOutcome.MAX_ROUNDS
        if self.terms.final_deadline_s is not None:
            needed_s = self.terms.round_deadline_s if self.terms.has_deadline else 0.0
            if self.terms.deadline_mode is DeadlineMode.ADAPTIVE:
                needed_s = self.terms.min_round_deadline_s
            if to_ns(elapsed_s) + to_ns(needed_s) > to_ns(self.terms.final_deadline_s):
                return TaskOutcome.FINAL_DEADLINE
        return None


class TaskChange(TypedDict, total=False):
    """Fields of a task to be set."""

    state: TaskState
    terms: TaskTerms
    ended_at: datetime | None
    outcome: TaskOutcome | None
    detail: str | None
    model_version: int
    rounds: int
    elapsed_s: float
    first_round_at: datetime


PARTS = 4
"""An evaluation has this many jobs, which run in parallel on free worker processes."""


@dataclass(frozen=True)
class Score:
    """The score of a model on one part of the validation data."""

    samples: int
    correct: int
    loss_sum: float | None
    """None if it is not finite: the model has diverged."""


@dataclass(frozen=True)
class Evaluation:
    """The evaluation of a model version on the task's validation data."""

    version: int
    accuracy: float
    loss: float | None
    """None if it is not finite: the model has diverged."""
    samples: int
    evaluated_at: datetime


def combine_scores(version: int, scores: Sequence[Score], now: datetime) -> Evaluation:
    """Combine the scores of all parts into one evaluation."""
    samples = sum(score.samples for score in scores)
    losses = [score.loss_sum for score in scores if score.loss_sum is not None]
    return Evaluation(
        version,
        accuracy=sum(score.correct for score in scores) / samples,
        loss=math.fsum(losses) / samples if len(losses) == len(scores) else None,
        samples=samples,
        evaluated_at=now,
    )


@dataclass(frozen=True)
class DeviceEvaluation:
    """What one device measured of a model version on its own data."""

    accuracy: float
    loss: float | None
    samples: int


@dataclass(frozen=True)
class DeviceScore:
    """What all devices measured of a model version."""

    accuracy: float
    devices: int


MIN_TARGET_DEVICES = 10
"""With fewer devices their accuracy ends no task."""
_DEVICE_WEIGHT_CAP = 3.0
"""A device counts at most this many times the median device."""


def combine_device_evaluations(evaluations: Sequence[DeviceEvaluation]) -> DeviceScore:
    """The mean accuracy, weighted by samples; a device that claims many samples counts 3 medians at most."""
    cap = _DEVICE_WEIGHT_CAP * statistics.median(evaluation.samples for evaluation in evaluations)
    weights = [min(float(evaluation.samples), cap) for evaluation in evaluations]
    weighted = math.fsum(
        weight * evaluation.accuracy for weight, evaluation in zip(weights, evaluations, strict=True)
    )
    return DeviceScore(weighted / math.fsum(weights), len(evaluations))


class TermsChange(TypedDict, total=False):
    """Terms of a task that can be changed while it runs."""

    name: str
    final_deadline_s: float | None
    max_rounds: int | None
    target_accuracy: float | None
