"""What is simulated: a cell of devices, how they behave, and the task they train; read from TOML."""

import json
import math
import tomllib
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
)
from pydantic_core import PydanticCustomError

from services.contract.fields import Count, Name, Rate, Seed, whole_if_integral
from services.contract.tasks import TaskRequest
from services.domain.cell import PAPER_CLIENTS, Cell
from services.domain.radio import Placement, RadioModel
from services.domain.resources import ResourceReports
from services.errors import FedCSError

MAX_CLIENTS = 1_000_000
LEAST_MODEL_BYTES = 1024
MOST_MODEL_BYTES = 2**30

_PRESETS = Path(__file__).parent / "scenarios"
_PAPER = Cell()
_DIVIDED = ("round_deadline_s", "final_deadline_s", "selection_s", "aggregation_s", "report_window_s")
_STRICT = ConfigDict(strict=True, extra="forbid", frozen=True)


class ScenarioError(FedCSError):
    """A scenario cannot be used."""

    cause: ClassVar[str] = "BAD_SCENARIO"


def _ordered(limits: tuple[float, float]) -> tuple[float, float]:
    if limits[0] > limits[1]:
        raise PydanticCustomError("not_ordered", "The first is the lower limit, the second the upper one")
    return limits


_INTEGRAL = BeforeValidator(whole_if_integral)
_Samples = Annotated[int, Field(ge=1, le=10**9), _INTEGRAL]


class CellSettings(BaseModel):
    """The devices of the cell: how many there are, where they lie, and what they have. As in the paper."""

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
        """The same, for the domain to draw from."""
        return Cell(
            RadioModel(noise_figure_db=self.noise_figure_db, shadow_fading_db=self.shadow_fading_db),
            self.placement,
            self.radius_m,
            self.data_samples,
            self.compute_samples_per_s,
        )


class Behaviour(BaseModel):
    """How far devices keep to what they reported."""

    model_config = _STRICT

    uncertainty: Annotated[float, Field(ge=0, le=1)] = 0.0
    """r: the standard deviation of throughput and capability, relative to what was reported."""
    dropout: Annotated[float, Field(ge=0, le=1)] = 0.0
    """How likely a selected device is never to upload."""


class StandIn(BaseModel):
    """What takes the place of a model in runs without training."""

    model_config = _STRICT

    model_bytes: Annotated[int, Field(ge=LEAST_MODEL_BYTES, le=MOST_MODEL_BYTES), _INTEGRAL] = 1_000_000


class Scenario(BaseModel):
    """A simulated cell and its task."""

    model_config = _STRICT

    name: Annotated[Name, Field(min_length=1)]
    seed: Seed = 0
    """For the devices and how they behave; for the task too, unless it has its own."""
    rounds: Count | None = None
    """Without it, until no further round fits before the task's final deadline."""
    cell: CellSettings = CellSettings()
    behaviour: Behaviour = Behaviour()
    task: TaskRequest
    stand_in: StandIn = StandIn()

    def require_end(self) -> None:
        """Refuse a run that would go on for ever."""
        if self.rounds is None and self.task.final_deadline_s is None:
            raise ScenarioError(
                "rounds: needed if the task has no final_deadline_s, in the scenario or as --rounds"
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
    ) -> Self:
        """The same but for what is given; a ``seed`` is for devices and task alike."""
        changes: dict[str, dict[str, object]] = {
            "cell": {"clients": clients},
            "behaviour": {"uncertainty": uncertainty, "dropout": dropout},
            "task": {"policy": policy, "clock": clock, "seed": seed},
            "stand_in": {"model_bytes": model_bytes},
        }
        content = self.model_dump() | _given({"seed": seed, "rounds": rounds})
        for part, values in changes.items():
            content[part] |= _given(values)
        try:
            return type(self).model_validate(content)
        except ValidationError as error:
            raise ScenarioError(_explain(error)) from error


def _given(values: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None}


def presets() -> list[str]:
    """The names of the scenarios that come with the simulator."""
    return sorted(path.stem for path in _PRESETS.glob("*.toml"))


def load_scenario(name_or_path: str) -> Scenario:
    """A preset by its name, or what a TOML file says."""
    if name_or_path in presets():
        return _read(_PRESETS / f"{name_or_path}.toml", name_or_path)
    path = Path(name_or_path)
    if path.suffix != ".toml" and len(path.parts) <= 1 and not path.is_file():
        known = ", ".join(presets())
        raise ScenarioError(f"there is no scenario {name_or_path!r}; there are {known}, or name a TOML file")
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
        # Validated as JSON, for complaints in words of JSON, not of Python. A date is only ever a mistake.
        return Scenario.model_validate_json(json.dumps(_inherited(content), default=str))
    except ValidationError as error:
        raise ScenarioError(f"{name}: {_explain(error)}") from error


def _inherited(content: dict[str, Any]) -> dict[str, Any]:
    """A task without a name or seed of its own has the scenario's."""
    task = content.get("task")
    if not isinstance(task, dict):
        return content
    own = {key: content[key] for key in ("name", "seed") if key in content}
    return content | {"task": own | task}


def _explain(error: ValidationError) -> str:
    """The first complaint, with the key it is about."""
    first = error.errors()[0]
    key = ".".join(map(str, [*first["loc"], *first.get("ctx", {}).get("within", ())]))
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    fault = "there is no such key" if first["type"] == "extra_forbidden" else first["msg"]
    return f"{key}: {fault}{more}"


def scaled_task(task: TaskRequest, time_scale: float) -> TaskRequest:
    """The task for a clock that runs ``time_scale`` times as fast: its deadlines come so much sooner."""
    _check_time_scale(time_scale)
    changed = {name: value / time_scale for name in _DIVIDED if (value := getattr(task, name)) is not None}
    try:
        return TaskRequest.model_validate(task.model_dump() | changed)
    except ValidationError as error:
        raise ScenarioError(f"with a time scale of {time_scale:g}, {_explain(error)}") from error


def scaled_reports(reports: ResourceReports, time_scale: float) -> ResourceReports:
    """The reports for such a clock: radio and processor are so much faster."""
    _check_time_scale(time_scale)
    return ResourceReports(
        throughput_bps=reports.throughput_bps * time_scale,
        compute_samples_per_s=reports.compute_samples_per_s * time_scale,
        data_samples=reports.data_samples,
        resource_blocks=reports.resource_blocks,
    )


def _check_time_scale(time_scale: float) -> None:
    if not (math.isfinite(time_scale) and time_scale > 0):
        raise ScenarioError(f"a time scale of {time_scale:g}: it has to be above 0")
