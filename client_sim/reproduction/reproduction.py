"""``fedcs reproduce``: the whole stack, and on it the trials that are wanted and not done yet."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from rich.console import Console

from client_sim.api_client import AsyncApi
from client_sim.own_stack import own_stack
from client_sim.reproduction.campaign import Campaign
from client_sim.reproduction.listing import rounds_left, standings, standings_table
from client_sim.reproduction.results_file import appending_to, farthest, read_results, read_runs
from client_sim.reproduction.rows import Trial
from client_sim.reproduction.trial import Workplace
from client_sim.reproduction.until import Until
from services.errors import FedCSError


class NoRowError(FedCSError):
    """The paper has no such row."""

    cause: ClassVar[str] = "NO_SUCH_ROW"


@dataclass(frozen=True)
class Wanted:
    """Which trials, and how far they are to go."""

    trials: Sequence[Trial]
    until: Until

    def __post_init__(self) -> None:
        if not self.trials:
            raise NoRowError("the paper has no row with all of these; try fewer options, and --list")


def list_trials(console: Console, wanted: Wanted, results_path: Path) -> None:
    """Show what is done and what is left."""
    found = standings(read_results(results_path), wanted.trials, wanted.until)
    console.print(standings_table(found, wanted.until))


def reproduce_trials(console: Console, wanted: Wanted, results_path: Path, work_dir: Path) -> None:
    """Do what is left."""
    with appending_to(results_path) as results:
        runs = read_runs(results_path)
        done = farthest(runs)
        left = [trial for trial in wanted.trials if rounds_left(trial, done.get(trial), wanted.until)]
        if not left:
            console.print("All of it is done. Compare it: fedcs reproduce report")
            return
        console.print(f"{len(left)} trials, until {wanted.until}. Ctrl-C stops; the same command goes on.")
        work_dir.mkdir(parents=True, exist_ok=True)
        workplace = Workplace(work_dir / "trials")
        with own_stack(console, work_dir) as service:

            async def main() -> None:
                async with AsyncApi(service.url, service.operator_key) as api:
                    await Campaign(api, workplace, results, wanted.until, runs).run(left, console)

            asyncio.run(main())
        console.print(f"Done; every round is in {results_path}. Compare: fedcs reproduce report")
