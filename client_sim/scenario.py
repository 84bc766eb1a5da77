"""Scenarios: a cell of devices, their behaviour and a training task, read from TOML files."""

import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from services.contract.common import CellBlocks, CellId, Count, Name, Rate, Seed, whole_if_integral
from services.contract.tasks import TaskRequest
from services.domain.cells import DEFAULT_RESOURCE_BLOCKS
from services.domain.radio import PAPER_CLIENTS, Cell, Placement, RadioModel
from services.domain.resources import ResourceReports
from services.errors import FedCSError

MAX_CLIENTS = 1_000_000
MIN_MODEL_BYTES = 1024
MAX_MODEL_BYTES = 2**30

_PRESETS = Path(__file__).parent / "scenarios"
_PAPER = Cell()
_SCALED_TIMES = ("round_deadline_s", "final_deadline_s", "selection_s", "aggregation_s", "report_window_s")
_STRICT = ConfigDict(strict=True, extra="forbid", frozen=True)


class ScenarioError(FedCSError):
    """The scenario is not valid."""

    cause: ClassVar[str] = "BAD_SCENARIO"


def _ordered(limits: tuple[float, float]) -> tuple[float, float]:
    if limits[0] > limits[1]:
        raise PydanticCustomError(
            "not_ordered", "The first value is the lower limit, the second the upper one"
        )
    return limits


_INTEGRAL = BeforeValidator(whole_if_integral)
_Samples = Annotated[int, Field(ge=1, le=10**9), _INTEGRAL]
_Seconds = Annotated[float, Field(gt=0, le=86_400)]
_Pause = Annotated[float, Field(ge=0, le=86_400)]
_Speed = Annotated[float, Field(ge=0.01, le=1000)]
_Window = Annotated[int, Field(ge=1, le=3600), _INTEGRAL]


class CellSettings(BaseModel):
    """The devices of the cell: number, placement and resources. The defaults are the paper's."""

    model_config = _STRICT

    clients: Annotated[int, Field(ge=1, le=MAX_CLIENTS), _INTEGRAL] = PAPER_CLIENTS
    radius_m: Annotated[float, Field(ge=10, le=1e6)] = _PAPER.radius_m
    placement: Annotated[Placement, Field(strict=False)] = _PAPER.placement
    noise_figure_db: Annotated[float, Field(ge=0, le=100)] = _PAPER.radio.noise_figure_db
    shadow_fading_db: Annotated[float, Field(ge=0, le=30)] = _PAPER.radio.shadow_fading_db
    data_samples: Annotated[tuple[_Samples, _Samples], AfterValidator(_ordered)] = _PAPER.data_samples
    compute_samples_per_s: Annotated[tuple[Rate, Rate], AfterValidator(_ordered)] = (
        _PAPER.compute_samples_per_s
    )

    def cell(self) -> Cell:
        """Convert to the domain's cell."""
        return Cell(
            RadioModel(noise_figure_db=self.noise_figure_db, shadow_fading_db=self.shadow_fading_db),
            self.placement,
            self.radius_m,
            self.data_samples,
            self.compute_samples_per_s,
        )


class NetworkCell(BaseModel):
    """A cell of the service in which a part of the devices is."""

    model_config = _STRICT

    cell_id: CellId
    resource_blocks: CellBlocks = DEFAULT_RESOURCE_BLOCKS


class Behaviour(BaseModel):
    """How devices deviate from their reports."""

    model_config = _STRICT

    uncertainty: Annotated[float, Field(ge=0, le=1)] = 0.0
    """r: the standard deviation of throughput and computing speed, relative to the report."""
    dropout: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The probability that a selected device never uploads."""
    fresh_throughput: bool = True
    """With ``dispatch = "on_ready"``: devices send their throughput when their update is ready."""
    leaving: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The probability that a selected device leaves in the middle of the round and comes back."""
    away_s: Annotated[tuple[_Seconds, _Seconds], AfterValidator(_ordered)] = (10.0, 60.0)
    """How long it is away."""


class TraceSettings(BaseModel):
    """Recorded uplinks that the devices replay, each from its own offset."""

    model_config = _STRICT

    files: tuple[str, ...] = ()
    """Relative to the scenario's file; a directory stands for the traces in it."""
    phones: str | None = None
    """A file with the speeds of phones; the fastest has the upper limit of ``compute_samples_per_s``."""
    report_mean_s: _Window = 10
    """Devices report the mean throughput of so many seconds."""

    def paths(self) -> tuple[Path, ...]:
        """The files; raise `ScenarioError` if there are none."""
        if not self.files:
            raise ScenarioError("traces.files: required; name them in the scenario or by --traces")
        return tuple(map(Path, self.files))


class Mobility(BaseModel):
    """Devices that move from one random point of the cell to the next."""

    model_config = _STRICT

    speed_m_per_s: Annotated[tuple[_Speed, _Speed], AfterValidator(_ordered)] = (1.0, 15.0)
    pause_s: Annotated[tuple[_Pause, _Pause], AfterValidator(_ordered)] = (0.0, 60.0)
    """At each point."""
    shadow_correlation_m: Annotated[float, Field(ge=1, le=1e4)] = 50.0
    """The distance over which the correlation of shadow fading falls to 1/e."""
    report_mean_s: _Window = 10
    """Devices report the mean throughput of so many seconds."""


class SyntheticUpdateSettings(BaseModel):
    """Synthetic models and updates, used in runs without training."""

    model_config = _STRICT

    model_bytes: Annotated[int, Field(ge=MIN_MODEL_BYTES, le=MAX_MODEL_BYTES), _INTEGRAL] = 1_000_000


class Scenario(BaseModel):
    """A simulated cell and its task."""

    model_config = _STRICT

    name: Annotated[Name, Field(min_length=1)]
    seed: Seed = 0
    """For the devices and their behaviour; also for the task unless it sets its own."""
    rounds: Count | None = None
    """None: run until no further round fits before the task's final deadline."""
    cell: CellSettings = CellSettings()
    cells: list[NetworkCell] = []
    """The devices are divided among these cells, which are added to the service; none: the default cell."""
    behaviour: Behaviour = Behaviour()
    traces: TraceSettings | None = None
    mobility: Mobility | None = None
    task: TaskRequest
    synthetic_update: SyntheticUpdateSettings = SyntheticUpdateSettings()

    @model_validator(mode="after")
    def _has_cells_with_devices(self) -> Self:
        names = [cell.cell_id for cell in self.cells]
        for number, name in enumerate(names):
            if name in names[:number]:
                raise PydanticCustomError(
                    "same_cell", "The cell is named twice", {"within": ("cells", number, "cell_id")}
                )
        if len(names) > self.cell.clients:
            raise PydanticCustomError(
                "too_many_cells",
                "There are {cells} cells, but only {clients} clients",
                {"cells": len(names), "clients": self.cell.clients, "within": ("cells",)},
            )
        for name in self.task.cells or [] if names else []:
            if name not in names:
                raise PydanticCustomError(
                    "no_devices",
                    "The cell {name} is not in [[cells]], so it has no devices",
                    {"name": name, "within": ("task", "cells")},
                )
        return self

    @model_validator(mode="after")
    def _has_one_kind_of_uplink(self) -> Self:
        if self.traces is not None and self.mobility is not None:
            raise PydanticCustomError(
                "two_uplinks", "traces and mobility exclude each other: both give the throughput"
            )
        return self

    def require_limit(self) -> None:
        """Raise `ScenarioError` if the run would never end."""
        if self.rounds is None and self.task.final_deadline_s is None:
            raise ScenarioError(
                "rounds: required if the task has no final_deadline_s; set it in the scenario or by --rounds"
            )

    def changed(
        self,
        *,
        policy: str | None = None,
        clock: str | None = None,
        seed: int | None = None,
        rounds: int | None = None,
        clients: int | None = None,
        uncertainty: float | None = None,
        dropout: float | None = None,
        model_bytes: int | None = None,
        update_encoding: str | None = None,
        model_encoding: str | None = None,
        deadline_mode: str | None = None,
        dispatch: str | None = None,
        planning_factor: float | None = None,
        traces: Sequence[str] = (),
        until_minutes: float | None = None,
    ) -> Self:
        """A copy with the given values; ``seed`` applies to devices and task.

        ``until_minutes`` replaces the limits of rounds and time.
        """
        changes: dict[str, dict[str, object]] = {
            "cell": {"clients": clients},
            "behaviour": {"uncertainty": uncertainty, "dropout": dropout},
            "task": {
                "policy": policy,
                "clock": clock,
                "seed": seed,
                "update_encoding": update_encoding,
                "model_encoding": model_encoding,
                "deadline_mode": deadline_mode,
                "dispatch": dispatch,
                "planning_factor": planning_factor,
                "final_deadline_s": None if until_minutes is None else 60 * until_minutes,
            },
            "synthetic_update": {"model_bytes": model_bytes},
        }
        content = self.model_dump() | _without_none({"seed": seed, "rounds": rounds})
        if until_minutes is not None and rounds is None:
            content["rounds"] = None
        for part, values in changes.items():
            content[part] |= _without_none(values)
        if traces:
            content["traces"] = (content["traces"] or {}) | {"files": tuple(traces)}
        try:
            return type(self).model_validate(content)
        except ValidationError as error:
            raise ScenarioError(first_error(error)) from error

    def with_task(self, changes: Mapping[str, object]) -> Self:
        """A copy whose task has the given values."""
        try:
            task = TaskRequest.model_validate({**self.task.model_dump(), **changes})
        except ValidationError as error:
            raise ScenarioError(first_error(error)) from error
        return self.model_copy(update={"task": task})

    def with_value(self, path: Sequence[str], value: object) -> Self:
        """A copy with another value of the key at this path, such as ``("cell", "clients")``."""
        content = self.model_dump(mode="json")
        table = content if len(path) == 1 else content[path[0]]
        table[path[-1]] = None if value == math.inf else value
        try:
            return type(self).model_validate_json(json.dumps(content))
        except ValidationError as error:
            raise ScenarioError(first_error(error)) from error


def _without_none(values: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None}


def presets() -> list[str]:
    """The names of the built-in scenarios."""
    return sorted(path.stem for path in _PRESETS.glob("*.toml"))


def load_scenario(name_or_path: str) -> Scenario:
    """Load a built-in scenario by name, or a TOML file by path."""
    if name_or_path in presets():
        return _read(_PRESETS / f"{name_or_path}.toml", name_or_path)
    path = Path(name_or_path)
    if path.suffix != ".toml" and len(path.parts) <= 1 and not path.is_file():
        known = ", ".join(presets())
        raise ScenarioError(f"there is no scenario {name_or_path!r}; choose {known}, or a TOML file")
    return _read(path, name_or_path)


def _read(path: Path, name: str) -> Scenario:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise ScenarioError(f"{name}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ScenarioError(f"{name}: not a text file ({error.reason})") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ScenarioError(f"{name}: not TOML: {error}") from error
    try:
        # Validate as JSON, so that error messages use JSON types. Dates become strings, which no field takes.
        scenario = Scenario.model_validate_json(json.dumps(_with_defaults(content), default=str))
    except ValidationError as error:
        raise ScenarioError(f"{name}: {first_error(error)}") from error
    if scenario.traces is None:
        return scenario
    return scenario.model_copy(update={"traces": _relative_to(path.parent, scenario.traces)})


def _relative_to(directory: Path, traces: TraceSettings) -> TraceSettings:
    """The traces with paths relative to the scenario's file."""
    phones = None if traces.phones is None else str(directory / traces.phones)
    return traces.model_copy(
        update={"files": tuple(str(directory / file) for file in traces.files), "phones": phones}
    )


def _with_defaults(content: dict[str, Any]) -> dict[str, Any]:
    """Copy the scenario's name and seed to the task where it has none; turn ``inf`` into null.

    TOML has no null: ``inf`` switches a limit off.
    """
    if "stand_in" in content and "synthetic_update" not in content:  # the name in version 0.1.0
        content = content | {"synthetic_update": content["stand_in"]}
        del content["stand_in"]
    task = content.get("task")
    if not isinstance(task, dict):
        return content
    inherited = {key: content[key] for key in ("name", "seed") if key in content}
    own = {key: None if value == math.inf else value for key, value in task.items()}
    return content | {"task": {"seed": 0} | inherited | own}


def first_error(error: ValidationError) -> str:
    """The first validation error, with its key."""
    first = error.errors()[0]
    key = ".".join(map(str, [*first["loc"], *first.get("ctx", {}).get("within", ())]))
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    message = "there is no such key" if first["type"] == "extra_forbidden" else first["msg"]
    return f"{key}: {message}{more}" if key else f"{message}{more}"


def scaled_task(task: TaskRequest, time_scale: float) -> TaskRequest:
    """The task with its times divided by ``time_scale``."""
    _check_time_scale(time_scale)
    changed = {
        name: value / time_scale for name in _SCALED_TIMES if (value := getattr(task, name)) is not None
    }
    try:
        return TaskRequest.model_validate(task.model_dump() | changed)
    except ValidationError as error:
        raise ScenarioError(f"with a time scale of {time_scale:g}, {first_error(error)}") from error


def scaled_behaviour(behaviour: Behaviour, time_scale: float) -> Behaviour:
    """The behaviour with its times divided by ``time_scale``."""
    shortest_s, longest_s = behaviour.away_s
    return behaviour.model_copy(update={"away_s": (shortest_s / time_scale, longest_s / time_scale)})


def scaled_reports(reports: ResourceReports, time_scale: float) -> ResourceReports:
    """The reports with throughput and computing speed multiplied by ``time_scale``."""
    _check_time_scale(time_scale)
    return ResourceReports(
        throughput_bps=reports.throughput_bps * time_scale,
        compute_samples_per_s=reports.compute_samples_per_s * time_scale,
        data_samples=reports.data_samples,
        resource_blocks=reports.resource_blocks,
    )


def _check_time_scale(time_scale: float) -> None:
    if not (math.isfinite(time_scale) and time_scale > 0):
        raise ScenarioError(f"the time scale is {time_scale:g}: it must be above 0")
