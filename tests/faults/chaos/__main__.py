"""``python -m tests.faults.chaos``: the chaos test; fails if the checker finds anything wrong."""

import asyncio
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click

from tests.faults.chaos.runner import chaos_run
from tests.faults.chaos.timing import PRODUCTION, SHORT, Timing


@click.command()
@click.option("--seed", type=int, default=1, show_default=True, help="Which faults befall whom, and when.")
@click.option("--minutes", type=click.FloatRange(min=0.1), default=30.0, show_default=True)
@click.option("--short", is_flag=True, help="Short leases, short faults: for a run of a minute.")
@click.option(
    "--directory", type=click.Path(path_type=Path), help="Keep logs and files there.  [default: nowhere]"
)
@click.option("--report", type=click.Path(path_type=Path), help="Write the summary to this file too.")
def main(seed: int, minutes: float, short: bool, directory: Path | None, report: Path | None) -> None:
    """Train under random faults, and check that nothing is lost, counted twice or stuck."""
    with tempfile.TemporaryDirectory(prefix="fedcs-chaos-") as scratch:
        where = directory or Path(scratch) / "deployment"
        found = asyncio.run(_run(where, seed, 60 * minutes, SHORT if short else PRODUCTION, report))
    sys.exit(bool(found))


async def _run(
    directory: Path, seed: int, duration_s: float, timing: Timing, report: Path | None
) -> Sequence[str]:
    """Let it happen, and tell of it; what was found wrong."""
    this = asyncio.current_task()
    assert this is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, this.cancel)  # else all processes stay
    run = chaos_run(directory, seed=seed, duration_s=duration_s, timing=timing, say=click.echo)
    async with run as result:
        click.echo("\n" + result.summary)
        if report:
            report.parent.mkdir(parents=True, exist_ok=True)
            report.write_text(result.summary)
        return result.run.faults


if __name__ == "__main__":
    main()
