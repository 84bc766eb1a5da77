"""``fedcs reproduce``: read campaign files, list the trials, and run the remaining ones, two in parallel."""

import asyncio
import tomllib
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from rich.console import Console
from rich.progress import TaskID

from client_sim.connect import start_stack
from client_sim.reproduction.progress import PARALLEL_TRIALS, progress_table, trial_progress
from client_sim.reproduction.results_file import (
    ResultLine,
    ResultsFile,
    current_runs,
    open_results,
    read_runs,
)
from client_sim.reproduction.rows import Trial, choose_rows, scenario_of, trials_of
from client_sim.reproduction.trial import PlannedTrial, TrialStore, parse_until, resume_trial
from client_sim.runs import RunError, show_progress, task_group
from client_sim.scenario import ScenarioError, first_error
from fedcs_client.api import AsyncApi
from services.errors import FedCSError


class CampaignFileError(FedCSError):
    """The campaign file is not valid."""

    cause: ClassVar[str] = "BAD_CAMPAIGN_FILE"


_RETRY_S = 1800.0
"""Trials run in the background, where other programs can starve the service for minutes."""
_STRICT = ConfigDict(strict=True, extra="forbid", frozen=True)


class CampaignEntry(BaseModel):
    """Rows, seeds and a stop condition; the keys are those of the options of ``fedcs reproduce``."""

    model_config = _STRICT

    dataset: list[str] = []
    setting: list[str] = []
    policy: list[str] = []
    round_minutes: list[int] = []
    uncertainty: list[float] = []
    task: dict[str, Any] = {}
    """Fields of the task that differ from the paper's experiments."""
    seeds: Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
    until: list[str] = []

    def planned_trials(self) -> list[PlannedTrial]:
        """The trials, ordered by seed."""
        rows = choose_rows(
            dataset=self.dataset,
            setting=self.setting,
            policy=self.policy,
            round_minutes=self.round_minutes,
            uncertainty=self.uncertainty,
        )
        until = parse_until(self.until)
        changed = [row.with_changes(self.task) for row in rows]
        return [PlannedTrial(trial, until) for trial in trials_of(changed, self.seeds)]


class _CampaignFile(BaseModel):
    model_config = _STRICT

    trials: Annotated[list[CampaignEntry], Field(min_length=1)]


def read_campaign(path: Path) -> list[PlannedTrial]:
    """Read the trials of a campaign file, in its order."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8-sig"))
        entries = _CampaignFile.model_validate(content).trials
    except OSError as error:
        raise CampaignFileError(f"{path}: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise CampaignFileError(f"{path}: not TOML: {error}") from error
    except ValidationError as error:
        raise CampaignFileError(f"{path}: {first_error(error)}") from error
    planned: list[PlannedTrial] = []
    for number, entry in enumerate(entries):
        try:
            found = entry.planned_trials()
        except FedCSError as error:
            raise CampaignFileError(f"{path}: trials.{number}: {error}") from error
        if not found:
            raise CampaignFileError(f"{path}: trials.{number}: no row of the paper's tables matches")
        planned += found
    return planned


class NoRowError(FedCSError):
    """No row of the paper's tables matches the options."""

    cause: ClassVar[str] = "NO_SUCH_ROW"


class TrialsLeftError(FedCSError):
    """Some trials could not be run."""

    cause: ClassVar[str] = "TRIALS_LEFT"


@dataclass(frozen=True)
class TrialPlan:
    """The trials to run, in this order."""

    planned: Sequence[PlannedTrial]

    def __post_init__(self) -> None:
        if not self.planned:
            raise NoRowError(
                "no row of the paper's tables matches these options; use fewer options, or --list"
            )

    def runnable(self) -> tuple[list[PlannedTrial], list[str]]:
        """The trials that this version can run, and why it cannot run the others."""
        possible, refused = [], []
        for planned in self.planned:
            try:
                scenario_of(planned.trial)
            except ScenarioError as error:
                refused.append(f"{planned.trial}: {error}")
            else:
                possible.append(planned)
        return possible, refused


@dataclass
class TrialQueue:
    """The trials that wait, in order; a trial is never run twice at the same time."""

    waiting: list[PlannedTrial]
    running: set[Trial] = field(default_factory=set)

    def take(self) -> PlannedTrial | None:
        """The next trial that is not running; None if there is none."""
        for planned in self.waiting:
            if planned.trial not in self.running:
                self.waiting.remove(planned)
                self.running.add(planned.trial)
                return planned
        return None

    def finish(self, planned: PlannedTrial) -> None:
        """Mark a trial as no longer running."""
        self.running.remove(planned.trial)


@dataclass(frozen=True)
class Campaign:
    """Runs trials on a service, and records their rounds."""

    api: AsyncApi
    store: TrialStore
    results: ResultsFile
    results_path: Path
    failed: list[str] = field(default_factory=list)
    """Trials whose task failed, and why."""

    async def run(self, planned_trials: Sequence[PlannedTrial], console: Console) -> None:
        """Run trials to their end, each from its last recorded round."""
        queue = TrialQueue(list(planned_trials))
        with show_progress(console) as progress:
            overall = progress.add_task("all trials", total=len(planned_trials), note="")

            async def run_next() -> None:
                while (planned := queue.take()) is not None:
                    bar = progress.add_task(
                        str(planned.trial), total=planned.until.minutes, note=f"until {planned.until}"
                    )

                    def show(line: ResultLine, best: float, bar: TaskID = bar) -> None:
                        progress.update(bar, completed=line.elapsed_s / 60, note=_note(line, best))

                    try:
                        await self._run_trial(planned, show)
                    except RunError as error:
                        self.failed.append(f"{planned.trial}: {error}")
                        console.print(self.failed[-1])
                    queue.finish(planned)
                    progress.remove_task(bar)
                    progress.advance(overall)

            async with task_group() as group:
                for _ in range(PARALLEL_TRIALS):
                    group.create_task(run_next())

    async def _run_trial(self, planned: PlannedTrial, show: Callable[[ResultLine, float], None]) -> None:
        known = read_runs(self.results_path)
        if planned.is_done(current_runs(known).get(planned.trial)):
            return  # an earlier entry of the campaign has run it far enough
        round_s = 60.0 * planned.trial.row.round_minutes
        async with (
            resume_trial(self.api, self.store, planned.trial, known) as (before, lines),
            aclosing(lines),
        ):
            best = (before.best_accuracy if before is not None else None) or 0.0
            async for line in lines:
                self.results.append(line)
                best = max(best, line.accuracy or 0.0)
                show(line, best)
                if planned.until.reached(line.elapsed_s, best, round_s):
                    return


def _note(line: ResultLine, best: float) -> str:
    return (
        f"{line.elapsed_s / 60:.4g} min, round {line.number}, {line.received} clients, "
        f"best accuracy {best:.3f}"
    )


def list_trials(console: Console, plan: TrialPlan, results_path: Path) -> None:
    """Print the progress of the trials."""
    possible, refused = plan.runnable()
    console.print(progress_table(trial_progress(current_runs(read_runs(results_path)), possible)))
    _print_refused(console, refused)


def _print_refused(console: Console, refused: Sequence[str]) -> None:
    if refused:
        console.print(f"This version cannot run {len(refused)} trials:", *refused, sep="\n  ", soft_wrap=True)


def reproduce_trials(console: Console, plan: TrialPlan, results_path: Path, work_dir: Path) -> None:
    """Run the remaining trials; `TrialsLeftError` if some could not be run."""
    possible, left_over = plan.runnable()
    _print_refused(console, left_over)
    with open_results(results_path) as results:
        done = current_runs(read_runs(results_path))
        left = [planned for planned in possible if not planned.is_done(done.get(planned.trial))]
        if left:
            left_over += _run_trials(console, left, results, results_path, work_dir)
    if left_over:
        raise TrialsLeftError(f"{len(left_over)} trials were not run to their end; see above")
    console.print(f"All trials are done. Results: {results_path}. To compare: fedcs reproduce report")


def _run_trials(
    console: Console,
    planned: Sequence[PlannedTrial],
    results: ResultsFile,
    results_path: Path,
    work_dir: Path,
) -> list[str]:
    """Run the trials on an own service; return those that failed, with the reasons."""
    caption = progress_table(trial_progress(current_runs(read_runs(results_path)), planned)).caption
    console.print(f"{caption} Ctrl-C stops; the same command resumes.")
    work_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    store = TrialStore(work_dir / "trials")
    with start_stack(console, work_dir) as service:

        async def main() -> list[str]:
            async with AsyncApi(service.url, service.operator_key, retry_timeout_s=_RETRY_S) as api:
                campaign = Campaign(api, store, results, results_path)
                await campaign.run(planned, console)
                return campaign.failed

        return asyncio.run(main())
