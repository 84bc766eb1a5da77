"""The runs of an experiment: every policy, with every value of a sweep, in every trial."""

import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from client_sim.scenario import Scenario, ScenarioError
from services.contract.tasks import TaskRequest

_OTHER_OPTIONS = {"policy": "--policy", "seed": "--trials"}
"""Fields that a sweep cannot change, and the option that does."""


@dataclass(frozen=True)
class Sweep:
    """A field of the scenario, and the values that it takes in turn."""

    path: tuple[str, ...]
    values: Sequence[Any]


@dataclass(frozen=True)
class PlannedRun:
    """A run of an experiment."""

    scenario: Scenario
    """With the policy, the value of the sweep and the seed of this run."""
    swept: str = ""
    """The value of the sweep, as ``field=value``."""

    @property
    def label(self) -> str:
        """What the trials of this policy and value have in common."""
        return label_of(self.scenario, self.swept)


def label_of(scenario: Scenario, swept: str) -> str:
    """The policy and the value of the sweep."""
    return f"{scenario.task.policy}, {swept}" if swept else scenario.task.policy


def parse_sweep(text: str) -> Sweep:
    """Parse ``field=a,b,c``: a field of the task, or a key of the scenario such as ``cell.clients``."""
    name, separator, values = text.partition("=")
    parts = [part.strip() for part in values.split(",")]
    if not (name and separator and all(parts)):
        raise ScenarioError(f"--sweep {text}: write a field and its values as round_deadline_s=60,120")
    if name.removeprefix("task.") in _OTHER_OPTIONS:
        raise ScenarioError(f"--sweep {name}: use {_OTHER_OPTIONS[name.removeprefix('task.')]}")
    if len(set(parts)) < len(parts):
        raise ScenarioError(f"--sweep {text}: a value is given twice")
    return Sweep(_path(name), [_value(part) for part in parts])


def _path(name: str) -> tuple[str, ...]:
    if "." not in name and name in TaskRequest.model_fields:
        return ("task", name)
    path = tuple(name.split("."))
    known = _keys()
    if path not in known:
        names = [".".join(key) for key in known]
        near = get_close_matches(name, [*names, *TaskRequest.model_fields], n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ScenarioError(f"--sweep {name}: neither a task nor a scenario has this field{hint}")
    return path


def _keys() -> set[tuple[str, ...]]:
    """All keys of a scenario that have a value."""
    keys: set[tuple[str, ...]] = set()
    for name, field in Scenario.model_fields.items():
        fields = getattr(field.annotation, "model_fields", None)
        keys |= {(name, inner) for inner in fields} if fields else {(name,)}
    return keys


def _value(text: str) -> Any:
    """A TOML value; text that is none stands for itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def planned_batches(
    scenario: Scenario, policies: Sequence[str], sweep: Sweep | None, trials: int
) -> Iterator[list[PlannedRun]]:
    """The runs: the policies of a batch run at the same time, the batches one after another.

    Trial n has the scenario's seed plus n.
    """
    swept = [("", scenario)] if sweep is None else [_swept(scenario, sweep, value) for value in sweep.values]
    for trial in range(trials):
        for label, varied in swept:
            yield [
                PlannedRun(varied.changed(policy=policy, seed=scenario.seed + trial), label)
                for policy in policies
            ]


def _swept(scenario: Scenario, sweep: Sweep, value: object) -> tuple[str, Scenario]:
    name = sweep.path[-1]
    return f"{name}={value}", scenario.with_value(sweep.path, value)
