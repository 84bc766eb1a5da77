"""The experiments of the paper (section V, Tables I and II) and their published results."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from hashlib import sha256
from typing import Any, ClassVar

from client_sim.scenario import Scenario, load_scenario
from services.errors import FedCSError

FINAL_MINUTES = 400
"""T_final. The paper's section on metrics has 360; the report gives the accuracy at both."""
PAPER_TRIALS = 10
PAPER_POLICIES = ("fedcs", "fedlim")
_MAX_NAME = 128


class ExtensionError(FedCSError):
    """A change of the task is not valid."""

    cause: ClassVar[str] = "BAD_EXTENSION"


@dataclass(frozen=True)
class Row:
    """A setting, run with several seeds: a row of the paper's tables, or one with extensions."""

    dataset: str
    setting: str
    policy: str
    round_minutes: int
    """The deadline, or the longest if it is adaptive."""
    uncertainty: float
    deadline_mode: str = "fixed"
    update_encoding: str = "float32"
    model_encoding: str = "float32"
    dispatch: str = "scheduled"
    model: str = "paper-cnn"
    aggregation: str = "weighted"
    changes: tuple[str, ...] = ()
    """Other fields of the task that differ from the paper's experiments, as ``name=value``."""

    @property
    def name(self) -> str:
        """Its name within a data set and setting."""
        uncertain = f", r = {self.uncertainty:.0%}" if self.uncertainty else ""
        adaptive = "adaptive, at most " if self.deadline_mode == "adaptive" else ""
        encoded = ""
        if (self.update_encoding, self.model_encoding) != ("float32", "float32"):
            encoded = f", {self.update_encoding}/{self.model_encoding}"
        others = "".join(f", {change}" for change in self.other_changes)
        return f"{self.policy}, {adaptive}{self.round_minutes} min{uncertain}{encoded}{others}"

    @property
    def other_changes(self) -> list[str]:
        """All changes except the deadline mode and the encodings, as ``name=value``."""
        named = [f"{name}={getattr(self, name)}" for name in _NAMED if getattr(self, name) != _DEFAULTS[name]]
        return [*named, *self.changes]

    @property
    def paper_row(self) -> "Row":
        """The row of the paper without the extensions."""
        policy = self.policy if self.policy in PAPER_POLICIES else "fedcs"
        return Row(self.dataset, self.setting, policy, self.round_minutes, self.uncertainty)

    def with_changes(self, changes: Mapping[str, object]) -> "Row":
        """The same setting with other values of fields of the task; the deadline has whole minutes."""
        if "round_deadline_s" in changes:
            others_than_deadline = {name: changes[name] for name in changes if name != "round_deadline_s"}
            minutes = _whole_minutes(changes["round_deadline_s"])
            return replace(self, round_minutes=minutes).with_changes(others_than_deadline)
        for name in changes:
            if name in _FIXED:
                raise ExtensionError(f"{name}: this field is determined by the row")
        own: dict[str, Any] = {name: str(value) for name, value in changes.items() if name in _DEFAULTS}
        others = dict(map(parse_change, self.changes))
        others |= {name: value for name, value in changes.items() if name not in own}
        texts = tuple(sorted(f"{name}={_change_text(value)}" for name, value in others.items()))
        return replace(self, **own, changes=texts)

    def __str__(self) -> str:
        return f"{self.dataset}, {self.setting}, {self.name}"

    @property
    def extensions(self) -> str:
        """What it has beyond the paper, for file names."""
        adaptive = "-adaptive" if self.deadline_mode == "adaptive" else ""
        encodings = (self.update_encoding, self.model_encoding)
        encoded = "" if encodings == ("float32", "float32") else f"-{'-'.join(encodings)}"
        others = json.dumps(self.other_changes).encode()
        return adaptive + encoded + (f"-{sha256(others).hexdigest()[:8]}" if self.other_changes else "")


_NAMED = ("dispatch", "model", "aggregation")
_DEFAULTS = {
    name: field.default
    for field in fields(Row)
    if (name := field.name) in ("deadline_mode", "update_encoding", "model_encoding", *_NAMED)
}
_FIXED = ("dataset", "partition_scheme", "policy", "final_deadline_s", "seed", "clock")


def compared_row(row: Row) -> Row:
    """The row of the paper that a row with extensions is compared with: FedCS with a fixed deadline."""
    if (paper_row := row.paper_row) in PUBLISHED:
        return paper_row
    return replace(paper_row, policy="fedcs", round_minutes=5 if row.setting == "non-iid" else 3)


def parse_change(text: str) -> tuple[str, object]:
    """Parse ``name=value``; the value is JSON or a string."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ExtensionError(f"{text!r}: write NAME=VALUE, for example dispatch=on_ready")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def _whole_minutes(seconds: object) -> int:
    if not isinstance(seconds, int | float) or seconds < 60 or seconds % 60:
        raise ExtensionError("round_deadline_s: a row's deadline has whole minutes")
    return int(seconds // 60)


def _change_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


@dataclass(frozen=True)
class Trial:
    """A run of a row with a seed."""

    row: Row
    seed: int

    def __str__(self) -> str:
        return f"{self.row}, seed {self.seed}"

    @property
    def slug(self) -> str:
        """A file name."""
        row = self.row
        return (
            f"{row.dataset}-{row.setting}-{row.policy}-{row.round_minutes}min"
            f"-r{row.uncertainty * 100:.0f}{row.extensions}-seed{self.seed}"
        )


@dataclass(frozen=True)
class Published:
    """Published results of a row: means of ten trials."""

    minutes_to: Mapping[float, float | None]
    """Minutes until an accuracy was first reached; None: never."""
    final_accuracy: float
    clients_per_round: float | None = None


def _row(dataset: str, policy: str, minutes: int, r: float = 0.0, setting: str = "iid") -> Row:
    return Row(dataset, setting, policy, minutes, r)


_CIFAR, _FASHION = "cifar-10", "fashion-mnist"

PUBLISHED: Mapping[Row, Published] = {
    _row(_CIFAR, "fedlim", 3): Published({0.5: 38.1, 0.75: 209.2}, 0.77, 3.3),
    _row(_CIFAR, "fedcs", 3): Published({0.5: 25.8, 0.75: 132.7}, 0.79, 7.7),
    _row(_CIFAR, "fedcs", 3, 0.1): Published({0.5: 27.9, 0.75: 138.1}, 0.78),
    _row(_CIFAR, "fedcs", 3, 0.2): Published({0.5: 31.1, 0.75: 178.3}, 0.78),
    _row(_CIFAR, "fedcs", 1): Published({0.5: None, 0.75: None}, 0.50),
    _row(_CIFAR, "fedcs", 5): Published({0.5: 41.0, 0.75: 166.6}, 0.79),
    _row(_CIFAR, "fedcs", 10): Published({0.5: 75.7, 0.75: 281.7}, 0.76),
    _row(_FASHION, "fedlim", 3): Published({0.5: 10.4, 0.85: 66.8}, 0.90),
    _row(_FASHION, "fedcs", 3): Published({0.5: 10.6, 0.85: 33.5}, 0.91),
    _row(_FASHION, "fedcs", 3, 0.1): Published({0.5: 11.3, 0.85: 32.1}, 0.92),
    _row(_FASHION, "fedcs", 3, 0.2): Published({0.5: 12.7, 0.85: 37.0}, 0.91),
    _row(_FASHION, "fedcs", 1): Published({0.5: 3.0, 0.85: 73.7}, 0.89),
    _row(_FASHION, "fedcs", 5): Published({0.5: 18.1, 0.85: 48.8}, 0.92),
    _row(_FASHION, "fedcs", 10): Published({0.5: 42.0, 0.85: 93.3}, 0.91),
    _row(_CIFAR, "fedlim", 5, setting="non-iid"): Published({0.35: None, 0.5: None}, 0.31),
    _row(_CIFAR, "fedcs", 5, setting="non-iid"): Published({0.35: 91.7, 0.5: 213.7}, 0.54),
    _row(_FASHION, "fedlim", 5, setting="non-iid"): Published({0.5: None, 0.7: None}, 0.46),
    _row(_FASHION, "fedcs", 5, setting="non-iid"): Published({0.5: 82.4, 0.7: 187.7}, 0.71),
}


def choose_rows(
    *,
    dataset: Collection[str] = (),
    setting: Collection[str] = (),
    policy: Collection[str] = (),
    round_minutes: Collection[int] = (),
    uncertainty: Collection[float] = (),
) -> list[Row]:
    """The rows that match all filters; an empty filter matches any value.

    A policy that the paper does not have takes the settings of its FedCS rows.
    """
    others = [name for name in policy if name not in PAPER_POLICIES]
    rows = [
        *PUBLISHED,
        *(replace(row, policy=name) for name in others for row in PUBLISHED if row.policy == "fedcs"),
    ]
    filters = {
        "dataset": dataset,
        "setting": setting,
        "policy": policy,
        "round_minutes": round_minutes,
        "uncertainty": uncertainty,
    }
    return [
        row
        for row in rows
        if all(not values or getattr(row, name) in values for name, values in filters.items())
    ]


def trials_of(rows: Sequence[Row], seeds: Collection[int]) -> list[Trial]:
    """The trials, ordered by seed, so that an interrupted run covers all rows."""
    return [Trial(row, seed) for seed in seeds for row in rows]


def scenario_of(trial: Trial) -> Scenario:
    """The scenario of a trial; `ScenarioError` if this version does not have its settings."""
    row = trial.row
    preset = load_scenario(f"paper-{row.dataset}").changed(
        policy=row.policy, seed=trial.seed, uncertainty=row.uncertainty
    )
    changed = {name: getattr(row, name) for name in _DEFAULTS if getattr(row, name) != _DEFAULTS[name]}
    if "aggregation" in changed:  # the preset's parameters are for the paper's aggregation
        changed["aggregation_parameters"] = {}
    return preset.with_task(
        {
            "name": str(trial)[:_MAX_NAME],
            "partition_scheme": row.setting.replace("-", "_"),
            "round_deadline_s": 60.0 * row.round_minutes,
            "final_deadline_s": 60.0 * FINAL_MINUTES,
            # An interrupted run resumes its open round later.
            "idle_timeout_s": preset.task.report_max_age_s,
            **changed,
            **dict(map(parse_change, row.changes)),
        }
    )
