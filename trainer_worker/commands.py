"""The command of the trainer: ``fedcs worker``."""

import os
import sys

import click

from services.domain.jobs import QUEUES

_QUEUES = sorted(set(QUEUES.values()))


@click.command()
@click.option(
    "--queues",
    default=",".join(_QUEUES),
    show_default=True,
    help="What to take, separated by commas: train (also initialize and evaluate) and aggregate.",
)
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    help="How many jobs at a time, one in each process.  [default: one per GPU, else one per core]",
)
def worker(queues: str, processes: int | None) -> None:
    """Start a worker that trains, aggregates and evaluates, set up by FEDCS_* environment variables.

    FEDCS_BROKER_URL is required. It needs the database and the model store of the API (FEDCS_DATABASE_URL,
    FEDCS_MODEL_STORE, or FEDCS_DATA_DIR for both) and nothing else: run as many as wanted, on as many hosts.
    FEDCS_DATASETS, FEDCS_DEVICE and FEDCS_ALLOWED_IMPORTS are told of in docs/training.md.
    """
    chosen = [queue.strip() for queue in queues.split(",")]
    if unknown := set(chosen) - set(_QUEUES):
        raise click.BadParameter(
            f"{', '.join(sorted(unknown))}: there are {', '.join(_QUEUES)}.", param_hint="--queues"
        )
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is loaded, which would start more
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # looks for GPUs, and lets processes fork

    from services.learning.devices import choose_device, processes_for
    from services.settings import WorkerSettings, load_settings
    from trainer_worker.app import make_worker

    settings = load_settings(WorkerSettings)
    device = choose_device(settings.device)
    running = make_worker(settings, chosen, processes or processes_for(device))
    click.echo(f"Ready on {device.type}: {processes or processes_for(device)} process(es), queues {queues}")
    running.start()
    sys.exit(running.exitcode)
