"""``fedcs demo``: the whole stack, started for a moment, and a small cell that trains with two policies."""

import asyncio
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from client_sim.api_client import AsyncApi
from client_sim.scenario import load_scenario
from client_sim.simulation import Simulation, simulate
from services.announcement import Announcement, read_announcement
from services.errors import ServiceStartError

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
    with _running_stack(console) as service:
        console.print(f"The service answers at {service.url}.")
        asyncio.run(_simulate(service, simulation, console))


async def _simulate(service: Announcement, simulation: Simulation, console: Console) -> None:
    async with AsyncApi(service.url, service.operator_key) as api:
        await simulate(api, simulation, console)


@contextmanager
def _running_stack(console: Console) -> Iterator[Announcement]:
    """``fedcs up`` as a process that ends with this one, even if this one is killed."""
    leash = [sys.executable, "-m", "operator_api.leash", str(os.getpid())]
    with tempfile.TemporaryDirectory(prefix="fedcs-demo-") as data_dir:
        command = [sys.executable, "-m", "operator_api", "up", "--port", "0", "--data-dir", data_dir]
        log_path = Path(data_dir) / "service.log"
        with (
            log_path.open("w") as log,
            subprocess.Popen(  # noqa: S603 - our own command
                [*leash, *command], stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True
            ) as process,
        ):
            try:
                assert process.stdout is not None, "asked for"
                with console.status("Starting the service"):
                    announcement = read_announcement(process.stdout)
                if announcement is None:
                    raise ServiceStartError(f"the service did not start:\n{log_path.read_text()}")
                yield announcement
            finally:
                process.terminate()
