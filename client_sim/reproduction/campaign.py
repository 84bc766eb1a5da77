"""Trials, two at a time: while one waits for its slowest client or for an average, the other trains."""

from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from client_sim.api_client import AsyncApi
from client_sim.reproduction.results_file import Line, ResultsFile, TrialRun
from client_sim.reproduction.rows import Trial
from client_sim.reproduction.trial import Workplace, going_on
from client_sim.reproduction.until import Until
from client_sim.together import together

AT_ONCE = 2


@dataclass(frozen=True)
class Campaign:
    """Trials on one service, and where their rounds are recorded."""

    api: AsyncApi
    workplace: Workplace
    results: ResultsFile
    until: Until
    known: Sequence[TrialRun]
    """What has been recorded before."""

    async def run(self, trials: Sequence[Trial], console: Console) -> None:
        """Play trials to where they are to go, each after the rounds known of it."""
        waiting = iter(trials)
        with _progress(console) as progress:
            overall = progress.add_task("all trials", total=len(trials), note="")

            async def play_some() -> None:
                for trial in waiting:
                    bar = progress.add_task(str(trial), total=self.until.minutes, note="starting")

                    def show(line: Line, best: float, bar: TaskID = bar) -> None:
                        minutes = line.elapsed_s / 60
                        progress.update(bar, completed=minutes, note=_note(line, best))
                        if not console.is_terminal:  # where no bar is drawn
                            console.print(f"{line.trial}: {_note(line, best)}")

                    await self._play(trial, show)
                    progress.advance(overall)

            async with together() as group:
                for _ in range(AT_ONCE):
                    group.create_task(play_some())

    async def _play(self, trial: Trial, show: Callable[[Line, float], None]) -> None:
        round_s = 60.0 * trial.row.round_minutes
        async with (
            going_on(self.api, self.workplace, trial, self.known) as (before, lines),
            aclosing(lines),
        ):
            best = (before.best_accuracy if before is not None else None) or 0.0
            async for line in lines:
                self.results.append(line)
                best = max(best, line.accuracy or 0.0)
                show(line, best)
                if self.until.reached(line.elapsed_s, best, round_s):
                    return


def _note(line: Line, best: float) -> str:
    return (
        f"{line.elapsed_s / 60:g} min, round {line.number}, {line.received} clients, best accuracy {best:.3f}"
    )


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        console=console,
    )
