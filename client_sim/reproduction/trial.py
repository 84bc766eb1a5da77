"""One trial, from its first round or from where it was stopped.

What the service keeps of a trial is its task. What only the devices know, their keys, is kept in a file
beside the service's data, so that they can go on after a stop.
"""

import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from client_sim import calls
from client_sim.api_client import AsyncApi
from client_sim.fleet import Fleet
from client_sim.reproduction.results_file import Line, ResultsFileError, TrialRun
from client_sim.reproduction.rows import Trial, scenario_of
from client_sim.results import write_file
from client_sim.scenario import Scenario
from client_sim.simulated_rounds import rounds_of
from client_sim.task_start import begin_task, task_of


class _Begun(BaseModel):
    """A trial that was begun: its devices and its task."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    fleet: str
    keys: list[str]
    task_id: str


@dataclass(frozen=True)
class Workplace:
    """Where the trials of a service are remembered."""

    directory: Path

    def __post_init__(self) -> None:
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    async def begin(self, api: AsyncApi, trial: Trial, scenario: Scenario) -> tuple[Fleet, str]:
        """The devices and the task of a trial; new ones, if it was not begun here before."""
        if (begun := self._read(trial)) is not None:
            return Fleet.draw(scenario, begun.fleet, keys=begun.keys), begun.task_id
        fleet = Fleet.draw(scenario, f"trial-{secrets.token_hex(4)}")
        await fleet.enrol(api)
        task = task_of(fleet, scenario.task, training=True)
        task_id = await begin_task(api, scenario, task, training=True)
        begun = _Begun(fleet=fleet.name, keys=fleet.keys, task_id=task_id)
        write_file(self._path(trial), begun.model_dump_json().encode())
        return fleet, task_id

    def _read(self, trial: Trial) -> _Begun | None:
        try:
            return _Begun.model_validate_json(self._path(trial).read_bytes())
        except FileNotFoundError:
            return None

    def _path(self, trial: Trial) -> Path:
        return self.directory / f"{trial.slug}.json"


@asynccontextmanager
async def going_on(
    api: AsyncApi, workplace: Workplace, trial: Trial, known: Iterable[TrialRun]
) -> AsyncIterator[tuple[TrialRun | None, AsyncGenerator[Line]]]:
    """The run of a trial that was begun here, as far as it is ``known``, and its further rounds."""
    scenario = scenario_of(trial)
    fleet, task_id = await workplace.begin(api, trial, scenario)
    before = next((run for run in known if run.task_id == task_id), None)
    after = 0 if before is None else len(before.rounds)
    await _check_complete(api, trial, task_id, after)
    async with rounds_of(api, scenario, fleet, task_id, training=True) as rounds:
        yield before, (Line.of(trial, task_id, record) async for record in rounds.play(after))


async def _check_complete(api: AsyncApi, trial: Trial, task_id: str, after: int) -> None:
    """The service is one round ahead of the results at the most: the one in which a run was stopped."""
    newest = await api.send(calls.newest_rounds(task_id, 1))
    played = newest[0].number if newest else 0
    if played not in (after, after + 1):
        raise ResultsFileError(
            f"{trial}: {played} rounds were played in this work directory, and the results file has {after} "
            "of them; give the results file that belongs to it, or another work directory"
        )
