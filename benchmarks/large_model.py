"""The peak memory of the API and the worker during one round with a model of 100 MB (25 M parameters).

python -m benchmarks.large_model [--clients 10]

The round is run by the simulator through the whole service: download of the model, training in the worker,
uploads in float32, aggregation and evaluation.
"""

import asyncio
import os
import tempfile
from pathlib import Path

import click
import httpx
from rich.console import Console
from rich.table import Table
from torch import nn

from benchmarks.stack import service_with_worker
from client_sim.scenario import CellSettings, Scenario
from client_sim.simulation import Simulation, simulate
from fedcs_client.api import AsyncApi
from services.contract.tasks import TaskRequest
from services.domain.tasks import Clock

_WIDTH = 4870
_NETWORK = "benchmarks.large_model:Perceptron"
_PROCESSES = {"API": "benchmarks.api_server", "worker": "operator_api worker"}
_MEGABYTE = 1e6


class Perceptron(nn.Sequential):
    """25.0 M parameters for the generated images: dense layers only, so that the training is short."""

    def __init__(self) -> None:
        super().__init__(
            nn.Flatten(),
            nn.Linear(256, _WIDTH),
            nn.ReLU(),
            nn.Linear(_WIDTH, _WIDTH),
            nn.ReLU(),
            nn.Linear(_WIDTH, 10),
        )


@click.command()
@click.option("--clients", default=10, show_default=True, help="Clients in the round; all are selected.")
def main(clients: int) -> None:
    """Print the peak memory of each process."""
    with service_with_worker() as service, tempfile.TemporaryDirectory(prefix="fedcs-bench-") as out:
        scenario = Scenario(
            name="large model",
            rounds=1,
            cell=CellSettings(clients=clients, data_samples=(20, 20)),
            task=TaskRequest(
                model=_NETWORK,
                dataset="generated",
                local_epochs=1,
                learning_rate=0.01,
                policy="fl",
                clock=Clock.SIMULATED,
                request_fraction=1.0,
                round_deadline_s=1e6,
                seed=0,
            ),
        )
        simulation = Simulation(
            scenario, ["fl"], training=True, time_scale=1.0, out=Path(out), keep_clients=False
        )
        asyncio.run(_run(service, simulation))
        peaks = _peak_bytes()
    table = Table("process", "peak MB", title=f"One round of {clients} clients, 100 MB per model")
    for kind, peak in peaks:
        table.add_row(kind, f"{peak / _MEGABYTE:.0f}")
    Console().print(table)


async def _run(service: httpx.Client, simulation: Simulation) -> None:
    key = service.headers["Authorization"].removeprefix("Bearer ")
    async with AsyncApi(str(service.base_url).rstrip("/"), key) as api:
        await simulate(api, simulation, Console())


def _peak_bytes() -> list[tuple[str, int]]:
    """The peak resident memory of each process of the service, by kind."""
    found = []
    for pid in _descendants(os.getpid()):
        command = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
        kind = next((kind for kind, part in _PROCESSES.items() if part in command), None)
        if kind is not None:
            status = Path(f"/proc/{pid}/status").read_text()
            line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
            found.append((kind, int(line.split()[1]) * 1024))
    return sorted(found)


def _descendants(pid: int) -> list[int]:
    children = [
        int(child)
        for path in Path(f"/proc/{pid}/task").glob("*/children")
        for child in path.read_text().split()
    ]
    return children + [below for child in children for below in _descendants(child)]


if __name__ == "__main__":
    main()
