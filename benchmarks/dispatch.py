"""Updates in time with ``dispatch: on_ready`` beside the planned order, in the paper's cell.

python -m benchmarks.dispatch --rounds 200
"""

import asyncio
import secrets
from collections.abc import Iterator
from statistics import mean
from typing import NamedTuple

import click
from rich.console import Console
from rich.table import Table

from benchmarks.servers import OPERATOR_KEY
from benchmarks.stack import service_with_worker
from client_sim.scenario import Scenario, load_scenario
from client_sim.simulated_run import run_simulated
from fedcs_client.api import AsyncApi

_MINUTE_S = 60.0
_FACTOR = 0.8
_MODEL_BYTES = 20_000
"""Of the synthetic updates; what is scheduled is the size of the preset."""


class _Case(NamedTuple):
    """A cell: the uncertainty of its devices, its deadline, and the ratio that is wanted."""

    uncertainty: float
    minutes: int
    factor: float
    wanted: float


_CASES = (
    _Case(0.0, 3, 1.0, 1.0),
    _Case(0.2, 3, _FACTOR, 1.06),
    _Case(0.2, 5, _FACTOR, 1.0),
    _Case(0.4, 3, _FACTOR, 1.28),
    _Case(0.4, 5, _FACTOR, 1.22),
)


@click.command()
@click.option("--rounds", default=200, show_default=True, help="Of each run.")
@click.option("--seeds", default=3, show_default=True, help="Runs of each case.")
def main(rounds: int, seeds: int) -> None:
    """Measure, and print the ratios."""
    console = Console()
    table = Table(title=f"Updates in time per round, {seeds} x {rounds} rounds", title_justify="left")
    for name in ("r", "deadline (min)", "scheduled", "on_ready", "planning factor", "ratio", "wanted"):
        table.add_column(name, justify="right")
    with service_with_worker() as service:
        url = str(service.base_url)
        for case in _CASES:
            planned, granted = (
                mean(
                    asyncio.run(_updates(url, scenario))
                    for scenario in _scenarios(case, dispatch, rounds, seeds)
                )
                for dispatch in ("scheduled", "on_ready")
            )
            figures = (f"{planned:.2f}", f"{granted:.2f}", f"{case.factor:g}", f"{granted / planned:.3f}")
            row = (f"{case.uncertainty:.0%}", str(case.minutes), *figures, f"≥ {case.wanted:g}")
            console.print(*row)
            table.add_row(*row)
    console.print(table)


def _scenarios(case: _Case, dispatch: str, rounds: int, seeds: int) -> Iterator[Scenario]:
    for seed in range(seeds):
        scenario = load_scenario("paper-cifar-10").changed(
            seed=seed,
            rounds=rounds,
            uncertainty=case.uncertainty,
            model_bytes=_MODEL_BYTES,
            dispatch=dispatch,
            planning_factor=case.factor if dispatch == "on_ready" else None,
        )
        deadline_s = case.minutes * _MINUTE_S
        limits = {"round_deadline_s": deadline_s, "final_deadline_s": deadline_s * (rounds + 1)}
        yield scenario.model_copy(update={"task": scenario.task.model_copy(update=limits)})


async def _updates(url: str, scenario: Scenario) -> float:
    """Updates in time per round."""
    async with AsyncApi(url, OPERATOR_KEY) as api:
        run = await run_simulated(
            api, scenario, name=f"bench-{secrets.token_hex(4)}", training=False, on_round=lambda _: None
        )
    return mean(record.received for record in run.record.rounds)


if __name__ == "__main__":
    main()
