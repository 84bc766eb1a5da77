"""``fedcs demo``: the whole stack, started for a moment, and a small cell that trains with two policies."""

import asyncio
import tempfile
from pathlib import Path

from rich.console import Console

from client_sim.api_client import AsyncApi
from client_sim.own_stack import own_stack
from client_sim.scenario import load_scenario
from client_sim.simulation import Simulation, simulate
from services.announcement import Announcement

_POLICIES = ("fedcs", "fedlim")


def run_demo(console: Console, out: Path, seed: int) -> None:
    """Start the stack, run the small scenario with both policies, show the difference, and stop."""
    scenario = load_scenario("small").changed(seed=seed)
    task = scenario.task
    console.print(
        f"A cell of {scenario.cell.clients} devices trains {task.model} on the data set {task.dataset}: "
        f"rounds of {task.round_deadline_s:g} s, {(task.final_deadline_s or 0) / 60:g} simulated minutes.\n"
        "FedCS selects as many devices as can be in time; FedLim takes them as they come."
    )
    simulation = Simulation(scenario, _POLICIES, training=True, time_scale=1.0, out=out)
    with (
        tempfile.TemporaryDirectory(prefix="fedcs-demo-") as data_dir,
        own_stack(console, Path(data_dir)) as service,
    ):
        console.print(
            f"The service answers at {service.url}. Watch it on the dashboard there; the key is "
            f"{service.operator_key}."
        )
        asyncio.run(_simulate(service, simulation, console))


async def _simulate(service: Announcement, simulation: Simulation, console: Console) -> None:
    async with AsyncApi(service.url, service.operator_key) as api:
        await simulate(api, simulation, console)
