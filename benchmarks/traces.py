"""Recorded uplinks: how much they vary, and how many updates arrive in time with each ``dispatch``.

python -m benchmarks.traces DIRECTORY --dispatch scheduled --dispatch on_ready
"""

import asyncio
import secrets
from pathlib import Path
from statistics import fmean

import click
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.servers import OPERATOR_KEY
from benchmarks.stack import service_with_worker
from client_sim.scenario import Scenario, load_scenario
from client_sim.simulated_run import SimulatedRun, run_simulated
from client_sim.traces import NS_PER_S, Trace, load_traces
from fedcs_client.api import AsyncApi
from services.domain.tasks import Dispatch

_WINDOWS_S = (10, 30)
_MODEL_BYTES = 2000
"""Of the synthetic updates; the schedule is for the scenario's size."""


@click.command()
@click.argument("traces", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option(
    "--dispatch",
    "dispatches",
    multiple=True,
    type=click.Choice([dispatch.value for dispatch in Dispatch]),
    default=[Dispatch.SCHEDULED.value],
    show_default=True,
)
@click.option("--planning-factor", default=1.0, show_default=True, help="Of all but scheduled.")
@click.option("--rounds", default=200, show_default=True, help="Rounds of each run.")
@click.option("--seeds", default=3, show_default=True, help="Runs with the seeds 0, 1, ….")
def main(
    traces: tuple[Path, ...], dispatches: tuple[str, ...], planning_factor: float, rounds: int, seeds: int
) -> None:
    """Measure with the scenario trace-lte, and print the ratios to the first dispatch."""
    console = Console()
    console.print(_variation(load_traces(traces, 0)))
    table = Table(title="Updates in time, per round", title_justify="left")
    for name in ("seed", *dispatches, "ratio to the first"):
        table.add_column(name, justify="right")
    ratios = []
    with service_with_worker() as service:
        for seed in range(seeds):
            in_time = []
            for dispatch in dispatches:
                scenario = _scenario(traces, dispatch, planning_factor, rounds, seed)
                with console.status(f"seed {seed}, {dispatch}"):
                    run = asyncio.run(_run(str(service.base_url), scenario))
                in_time.append(fmean(record.received for record in run.record.rounds))
            ratios.append([found / in_time[0] for found in in_time[1:]])
            table.add_row(str(seed), *(f"{found:.2f}" for found in in_time), _ratios(ratios[-1]))
    table.add_row("mean", *("" for _ in dispatches), _ratios(np.mean(ratios, axis=0).tolist()))
    console.print(table)


def _scenario(
    traces: tuple[Path, ...], dispatch: str, planning_factor: float, rounds: int, seed: int
) -> Scenario:
    return load_scenario("trace-lte").changed(
        traces=[str(path) for path in traces],
        rounds=rounds,
        seed=seed,
        model_bytes=_MODEL_BYTES,
        dispatch=dispatch,
        planning_factor=None if dispatch == Dispatch.SCHEDULED else planning_factor,
    )


async def _run(url: str, scenario: Scenario) -> SimulatedRun:
    async with AsyncApi(url, OPERATOR_KEY) as api:
        return await run_simulated(
            api, scenario, name=f"bench-{secrets.token_hex(4)}", training=False, on_round=lambda _: None
        )


def _variation(traces: list[Trace]) -> Table:
    """The coefficient of variation of the mean throughput in windows of some seconds."""
    table = Table(title="Traces", title_justify="left")
    for name in ("", "Mbit/s", *(f"variation over {window_s} s" for window_s in _WINDOWS_S), "empty seconds"):
        table.add_column(name, justify="right")
    for number, trace in enumerate(traces, 1):
        mean_bps = trace.total / trace.period_ns
        variations = (np.std(_means(trace, window_s)) / mean_bps for window_s in _WINDOWS_S)
        empty = (_means(trace, 1) == 0).mean()
        cells = (f"{variation:.2f}" for variation in variations)
        table.add_row(str(number), f"{mean_bps / 1e6:.2f}", *cells, f"{empty:.1%}")
    return table


def _means(trace: Trace, window_s: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The mean throughput in each whole window of the trace."""
    ends_ns = range(0, trace.period_ns + 1, window_s * NS_PER_S)
    return np.diff([trace.sum_until(end_ns) for end_ns in ends_ns]) / (window_s * NS_PER_S)


def _ratios(ratios: list[float]) -> str:
    return ", ".join(f"{ratio:.3f}" for ratio in ratios)


if __name__ == "__main__":
    main()
