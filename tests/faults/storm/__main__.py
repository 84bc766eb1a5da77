"""``python -m tests.faults.storm``: a storm of faults; fails if anything is found wrong after it."""

import asyncio
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from tests.faults.storm.storm import weathered
from tests.faults.storm.tempo import HASTY, REAL, Tempo


@click.command()
@click.option("--seed", type=int, default=1, show_default=True, help="Which faults befall whom, and when.")
@click.option("--minutes", type=click.FloatRange(min=0.1), default=30.0, show_default=True)
@click.option("--hasty", is_flag=True, help="Short leases, short faults: for a run of a minute.")
@click.option(
    "--directory", type=click.Path(path_type=Path), help="Keep logs and files there.  [default: nowhere]"
)
@click.option("--report", type=click.Path(path_type=Path), help="Write the summary to this file too.")
def main(seed: int, minutes: float, hasty: bool, directory: Path | None, report: Path | None) -> None:
    """Train under random faults, and check that nothing is lost, counted twice or stuck."""
    with tempfile.TemporaryDirectory(prefix="fedcs-storm-") as scratch:
        where = directory or Path(scratch) / "site"
        found = asyncio.run(_weather(where, seed, 60 * minutes, HASTY if hasty else REAL, report))
    sys.exit(bool(found))


async def _weather(
    directory: Path, seed: int, duration_s: float, tempo: Tempo, report: Path | None
) -> Sequence[str]:
    """Let it happen, and tell of it; what was found wrong."""
    this = asyncio.current_task()
    assert this is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)  # else all processes stay
    storm = weathered(directory, seed=seed, duration_s=duration_s, tempo=tempo, say=click.echo)
    async with storm as aftermath:
        click.echo("\n" + aftermath.summary)
        if report:
            report.parent.mkdir(parents=True, exist_ok=True)
            report.write_text(aftermath.summary)
        return aftermath.storm.faults


if __name__ == "__main__":
    main()
