"""Commands of the simulator: ``fedcs simulate``, ``fedcs demo``, ``fedcs loadtest``, ``fedcs reproduce``.

Each imports what it needs when it runs, so that none waits for the packages of another.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])

_POLICIES = click.Choice(["fedcs", "optimal", "fedlim", "fl"])
_DIRECTORY = click.Path(file_okay=False, path_type=Path)
_FILE = click.Path(dir_okay=False, path_type=Path)


def _service_options(command: _Command) -> _Command:
    """Which service is spoken to."""
    url = click.option(
        "--url",
        default="http://127.0.0.1:8000",
        show_default=True,
        envvar="FEDCS_URL",
        help="The service.",
    )
    key = click.option(
        "--key", required=True, envvar="FEDCS_OPERATOR_KEY", help="An operator key; or FEDCS_OPERATOR_KEY."
    )
    return url(key(command))


def _end_as_by_ctrl_c() -> None:
    """Let SIGTERM do what Ctrl-C does, so that nothing is left behind."""
    import signal

    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts what goes on behind it without
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))


@click.command()
@_service_options
@click.option(
    "--scenario",
    default="small",
    show_default=True,
    help="A TOML file, or one of: small, paper-cifar-10, paper-fashion-mnist.",
)
@click.option("--policy", "policies", multiple=True, type=_POLICIES, help="Several run at once, to compare.")
@click.option("--rounds", type=click.IntRange(min=1), help="How many.  [default: the scenario's]")
@click.option("--clients", type=click.IntRange(min=1), help="Devices of the cell.  [default: the scenario's]")
@click.option("--seed", type=click.IntRange(min=0), help="Of cell and task.  [default: the scenario's]")
@click.option("--uncertainty", type=click.FloatRange(0, 1), help="r.  [default: the scenario's]")
@click.option("--dropout", type=click.FloatRange(0, 1), help="Probability.  [default: the scenario's]")
@click.option(
    "--clock",
    type=click.Choice(["simulated", "wall"]),
    help="wall: devices really live, and uploads are paced.  [default: the scenario's]",
)
@click.option(
    "--time-scale",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="How much faster a wall clock goes: radio, processors and deadlines alike.",
)
@click.option("--training/--no-training", default=True, show_default=True, help="Else stand-in updates.")
@click.option("--model-bytes", type=int, help="Of a stand-in model.  [default: the scenario's]")
@click.option("--out", default=Path("fedcs-simulation"), show_default=True, type=_DIRECTORY)
def simulate(
    url: str,
    key: str,
    scenario: str,
    policies: tuple[str, ...],
    *,
    training: bool,
    time_scale: float,
    out: Path,
    **changes: Any,
) -> None:
    """Drive a simulated cell against a running service.

    The devices enrol, report, are selected, have workers train in their places, and upload as the radio
    dictates. Writes summary.json, rounds.csv and pictures to --out.
    """
    import asyncio

    from rich.console import Console

    from client_sim.first_contact import reach
    from client_sim.scenario import load_scenario
    from client_sim.simulation import Simulation
    from client_sim.simulation import simulate as run

    _end_as_by_ctrl_c()
    chosen = load_scenario(scenario).changed(**changes)
    simulation = Simulation(chosen, policies or [chosen.task.policy], training, time_scale, out)

    async def main() -> None:
        async with reach(url, key) as api:
            await run(api, simulation, Console())

    asyncio.run(main())


@click.command()
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Of the cell.")
@click.option(
    "--out", default=Path("fedcs-demo"), show_default=True, type=_DIRECTORY, help="Where the pictures go."
)
def demo(seed: int, out: Path) -> None:
    """Start the whole stack and compare FedCS with FedLim on a small cell; a few minutes on two cores."""
    from rich.console import Console

    from client_sim.demo import run_demo

    _end_as_by_ctrl_c()
    run_demo(Console(), out, seed)


@click.command()
@_service_options
@click.option("--clients", default=5000, show_default=True, help="How many there are.")
@click.option("--duration-s", default=120.0, show_default=True, help="How long they make load.")
@click.option("--report-every-s", default=20.0, show_default=True, help="How often each reports.")
@click.option("--round-every-s", default=5.0, show_default=True, help="How often a round is opened.")
@click.option("--asked-per-round", default=500, show_default=True, help="Clients asked in a round.")
@click.option("--model-bytes", default=1_000_000, show_default=True, help="What each upload has.")
@click.option("--long-polls", default=100, show_default=True, help="Clients that wait for assignments.")
@click.option("--keep-clients", is_flag=True, help="Leave them enrolled: to remove 5,000 takes a while.")
@click.option("--out", type=_FILE, help="Write the report as JSON.")
def loadtest(url: str, key: str, out: Path | None, **settings: Any) -> None:
    """Have many simulated clients report, poll and upload at a running service.

    Prints latency percentiles, throughput, errors and the service's memory; ends with 1 if there were errors.
    Latency counts from the moment at which a request was due. Ctrl-C ends it early, with a report.
    """
    import asyncio
    import sys

    from rich.console import Console

    from client_sim.api_client import AsyncApi
    from client_sim.first_contact import reach
    from client_sim.load_report import LoadReport, load_table, write_report
    from client_sim.load_settings import LoadSettings
    from client_sim.load_test import LoadProgress, run_load_test
    from client_sim.results import check_writable

    _end_as_by_ctrl_c()
    console = Console()
    wanted = LoadSettings(**settings)
    if out is not None:
        check_writable(out.parent)

    async def main() -> LoadReport:
        async with reach(url, key):
            pass
        with console.status("Starting") as status:

            def show(progress: LoadProgress) -> None:
                status.update(progress.text(wanted.duration_s))

            # Without patience: what has to be sent again is an error here.
            async with AsyncApi(url, key, patience_s=0.0) as api:
                return await run_load_test(api, wanted, show)

    report = asyncio.run(main())
    console.print(load_table(report))
    if out is not None:
        write_report(out, report)
        console.print(f"The report: {out}")
    sys.exit(1 if report.errors or report.ended_early else 0)


_RESULTS = Path("fedcs-reproduction/results.jsonl")


@click.group(invoke_without_command=True)
@click.option("--dataset", multiple=True, type=click.Choice(["cifar-10", "fashion-mnist"]))
@click.option("--setting", multiple=True, type=click.Choice(["iid", "non-iid"]))
@click.option("--policy", multiple=True, type=click.Choice(["fedcs", "fedlim"]))
@click.option("--round-minutes", multiple=True, type=click.Choice([1, 3, 5, 10]), help="T_round.")
@click.option("--uncertainty", multiple=True, type=click.Choice([0.0, 0.1, 0.2]), help="r.")
@click.option(
    "--trials",
    default=1,
    show_default=True,
    type=click.IntRange(min=1, max=1000),
    help="Seeds 0, 1, … of each row; the paper has ten.",
)
@click.option(
    "--until",
    multiple=True,
    help="A simulated time (120min) or an accuracy (0.85); given both, whichever comes first.  "
    "[default: 400min]",
)
@click.option(
    "--results",
    default=_RESULTS,
    show_default=True,
    type=_FILE,
    help="Rounds are appended to it.",
)
@click.option(
    "--work-dir",
    default=Path("fedcs-reproduction/service"),
    show_default=True,
    type=_DIRECTORY,
    help="Where the service keeps its data: with it a run that was stopped goes on.",
)
@click.option("--list", "list_only", is_flag=True, help="Show what is done and what is left, and stop.")
@click.pass_context
def reproduce(
    context: click.Context,
    /,
    trials: int,
    until: tuple[str, ...],
    results: Path,
    work_dir: Path,
    *,
    list_only: bool,
    **rows: Any,
) -> None:
    """Repeat the paper's experiments; `fedcs reproduce report` compares them with what was published.

    Options choose rows of the paper's tables; each can be given several times, and what is not given is not
    narrowed down. Runs the whole stack. Stop it at any time: the same command goes on where it was.
    """
    if context.invoked_subcommand is not None:
        return

    from rich.console import Console

    from client_sim.reproduction.reproduction import Wanted, list_trials, reproduce_trials
    from client_sim.reproduction.rows import choose_rows, trials_of
    from client_sim.reproduction.until import parse_until

    _end_as_by_ctrl_c()
    wanted = Wanted(trials_of(choose_rows(**rows), trials), parse_until(until))
    if list_only:
        list_trials(Console(), wanted, results)
    else:
        reproduce_trials(Console(), wanted, results, work_dir)


@reproduce.command()
@click.option(
    "--results",
    default=_RESULTS,
    show_default=True,
    type=_FILE,
    help="What `fedcs reproduce` recorded.",
)
@click.option("--out", default=Path("fedcs-reproduction/report"), show_default=True, type=_DIRECTORY)
def report(results: Path, out: Path) -> None:
    """Compare what was recorded with the published figures: report.md, report.html and pictures."""
    from client_sim.reproduction.report import write_report

    for path in write_report(results, out):
        click.echo(path)
