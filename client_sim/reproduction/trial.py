"""A trial: its stop condition, its stored state, and how it is resumed."""

import math
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from client_sim.fleet import Fleet
from client_sim.reproduction.results_file import CURRENT_VERSION, ResultLine, ResultsFileError, TrialRun
from client_sim.reproduction.rows import FINAL_MINUTES, Trial, scenario_of
from client_sim.results import write_file
from client_sim.runs import fleet_task, start_task
from client_sim.scenario import Scenario
from client_sim.simulated_run import task_rounds
from fedcs_client import endpoints
from fedcs_client.api import AsyncApi
from services.errors import FedCSError


class UntilError(FedCSError):
    """The option ``--until`` is not valid."""

    cause: ClassVar[str] = "BAD_UNTIL"


@dataclass(frozen=True)
class Until:
    """The stop condition of a trial; a later run can continue from there."""

    minutes: float
    accuracy: float | None

    def reached(self, elapsed_s: float, best_accuracy: float | None, round_s: float) -> bool:
        """Whether the accuracy is reached, or another round would exceed the time."""
        if self.accuracy is not None and best_accuracy is not None and best_accuracy >= self.accuracy:
            return True
        return elapsed_s + round_s > 60.0 * self.minutes

    def __str__(self) -> str:
        by_time = f"{self.minutes:g} min"
        return by_time if self.accuracy is None else f"accuracy {self.accuracy:g} or {by_time}"


@dataclass(frozen=True)
class PlannedTrial:
    """A trial and where it stops."""

    trial: Trial
    until: Until

    def is_done(self, run: TrialRun | None) -> bool:
        """Whether a run has reached the stop condition."""
        if run is None:
            return False
        return self.until.reached(run.elapsed_s, run.best_accuracy, 60.0 * self.trial.row.round_minutes)


def parse_until(texts: Sequence[str]) -> Until:
    """Parse values such as ``120min`` and ``0.85``; at most one of each kind."""
    minutes = [_number(text, text.removesuffix("min")) for text in texts if text.endswith("min")]
    accuracies = [_number(text, text) for text in texts if not text.endswith("min")]
    if len(minutes) > 1 or len(accuracies) > 1:
        raise UntilError("--until can be given twice: once as a time and once as an accuracy")
    for accuracy in accuracies:
        if not 0 < accuracy <= 1:
            raise UntilError(
                f"--until {accuracy:g}: an accuracy must be above 0 and at most 1; write a time as 120min"
            )
    for time in minutes:
        if not 0 < time <= FINAL_MINUTES:
            raise UntilError(f"--until {time:g}min: a trial has at most {FINAL_MINUTES} simulated minutes")
    return Until(minutes[0] if minutes else FINAL_MINUTES, accuracies[0] if accuracies else None)


def _number(text: str, digits: str) -> float:
    try:
        number = float(digits)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UntilError(f"--until {text}: write a simulated time as 120min, or an accuracy as 0.85")
    return number


class _TrialState(BaseModel):
    """The stored state of a trial."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    fleet: str
    keys: list[str]
    """API keys of the devices; empty if they were removed."""
    task_id: str


@dataclass(frozen=True)
class TrialStore:
    """Stores the state of trials in a directory."""

    directory: Path

    def __post_init__(self) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    async def begin(
        self, api: AsyncApi, trial: Trial, scenario: Scenario, of_other_versions: Collection[str]
    ) -> tuple[Fleet, str]:
        """The devices and the task of a trial; created if it has no stored state of this version.

        ``of_other_versions`` are the tasks that other versions of the code ran.
        """
        if (stored := self._read(trial)) is not None:
            fleet = Fleet.draw(scenario, stored.fleet, keys=stored.keys)
        if stored is not None and stored.task_id in of_other_versions:
            await fleet.remove(api)
        elif stored is not None:
            if not fleet.keys:  # the trial had reached its stop condition; continue it
                await fleet.remove(api)
                await fleet.enrol(api)
                self._write(trial, fleet, stored.task_id)
            return fleet, stored.task_id
        fleet = Fleet.draw(scenario, f"trial-{secrets.token_hex(4)}")
        await fleet.enrol(api)
        task = fleet_task(fleet, scenario.task, training=True)
        task_id = await start_task(api, scenario, task, training=True)
        self._write(trial, fleet, task_id)
        return fleet, task_id

    async def end(self, api: AsyncApi, trial: Trial, fleet: Fleet, task_id: str) -> None:
        """Remove the devices of a trial; they are enrolled again if the trial continues."""
        fleet.keys.clear()
        self._write(trial, fleet, task_id)
        await fleet.remove(api)

    def _write(self, trial: Trial, fleet: Fleet, task_id: str) -> None:
        stored = _TrialState(fleet=fleet.name, keys=fleet.keys, task_id=task_id)
        write_file(self._path(trial), stored.model_dump_json().encode())

    def _read(self, trial: Trial) -> _TrialState | None:
        try:
            return _TrialState.model_validate_json(self._path(trial).read_bytes())
        except FileNotFoundError:
            return None

    def _path(self, trial: Trial) -> Path:
        return self.directory / f"{trial.slug}.json"


@asynccontextmanager
async def resume_trial(
    api: AsyncApi, store: TrialStore, trial: Trial, known: Sequence[TrialRun]
) -> AsyncIterator[tuple[TrialRun | None, AsyncGenerator[ResultLine]]]:
    """The recorded run of a trial, if any, and an iterator over its further rounds.

    The devices are removed at the end, but not after an error or an interruption.
    """
    scenario = scenario_of(trial)
    of_other_versions = {run.task_id for run in known if run.version != CURRENT_VERSION}
    fleet, task_id = await store.begin(api, trial, scenario, of_other_versions)
    before = next((run for run in known if run.task_id == task_id), None)
    after = 0 if before is None else len(before.rounds)
    await _check_complete(api, trial, task_id, after)
    async with task_rounds(api, scenario, fleet, task_id, training=True) as rounds:
        yield before, (ResultLine.of(trial, task_id, record) async for record in rounds.run(after))
    await store.end(api, trial, fleet, task_id)


async def _check_complete(api: AsyncApi, trial: Trial, task_id: str, after: int) -> None:
    """Check that the service is at most one round ahead of the results file: the interrupted round."""
    newest = await api.send(endpoints.newest_rounds(task_id, 1))
    completed = newest[0].number if newest else 0
    if completed not in (after, after + 1):
        raise ResultsFileError(
            f"{trial}: the work directory has {completed} rounds, but the results file has {after}; "
            "use the results file that belongs to it, or another work directory"
        )
