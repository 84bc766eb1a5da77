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
    help="Queues to consume, separated by commas: train (also initialize and evaluate) and aggregate.",
)
@click.option(
    "--processes",
    type=click.IntRange(min=1),
    help="Number of processes; each runs one job at a time.  [default: one per GPU, else one per core]",
)
def worker(queues: str, processes: int | None) -> None:
    """Start a worker that trains, aggregates and evaluates, configured by FEDCS_* environment variables.

    FEDCS_BROKER_URL is required. The worker needs the database and the model store of the API
    (FEDCS_DATABASE_URL, FEDCS_MODEL_STORE, or FEDCS_DATA_DIR for both). Run any number of workers on any
    number of hosts. docs/training.md describes FEDCS_DATASETS, FEDCS_DEVICE and FEDCS_ALLOWED_IMPORTS.
    """
    chosen = [queue.strip() for queue in queues.split(",")]
    if unknown := set(chosen) - set(_QUEUES):
        raise click.BadParameter(
            f"{', '.join(sorted(unknown))}: unknown queue; use {', '.join(_QUEUES)}.", param_hint="--queues"
        )
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # must be set before torch is imported
    os.environ.setdefault(
        "PYTORCH_NVML_BASED_CUDA_CHECK", "1"
    )  # detects GPUs without initializing CUDA, so that processes can fork

    from services.learning.devices import choose_device, processes_for
    from services.settings import WorkerSettings, load_settings
    from trainer_worker.app import make_worker

    settings = load_settings(WorkerSettings)
    device = choose_device(settings.device)
    celery_worker = make_worker(settings, chosen, processes or processes_for(device))
    click.echo(f"Ready on {device.type}: {processes or processes_for(device)} process(es), queues {queues}")
    celery_worker.start()
    sys.exit(celery_worker.exitcode)
