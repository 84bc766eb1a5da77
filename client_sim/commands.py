"""Commands of the simulator: ``fedcs simulate``, ``fedcs demo``, ``fedcs loadtest``, ``fedcs reproduce``.

Each command imports its packages when it runs, to start fast.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from services.domain.selection import POLICIES
from services.domain.tasks import DeadlineMode, Dispatch
from services.tensors.encodings import ENCODINGS, MODEL_ENCODINGS

_Command = TypeVar("_Command", bound=Callable[..., Any])

_POLICIES = click.Choice(list(POLICIES))
_DIRECTORY = click.Path(file_okay=False, path_type=Path)
_FILE = click.Path(dir_okay=False, path_type=Path)


def _service_options(command: _Command) -> _Command:
    """Add the options ``--url`` and ``--key``."""
    url = click.option(
        "--url",
        default="http://127.0.0.1:8000",
        show_default=True,
        envvar="FEDCS_URL",
        help="URL of the service.",
    )
    key = click.option("--key", required=True, envvar="FEDCS_OPERATOR_KEY", help="Operator key.")
    return url(key(command))


def _encoding_options(default: str | None) -> Callable[[_Command], _Command]:
    """Options for the encodings of transfers."""
    update = click.option(
        "--update-encoding", default=default, type=click.Choice(list(ENCODINGS)), help="Encoding of updates."
    )
    model = click.option(
        "--model-encoding",
        default=default,
        type=click.Choice(MODEL_ENCODINGS),
        help="Encoding of the downloaded model.",
    )
    return lambda command: update(model(command))


def _treat_sigterm_as_ctrl_c() -> None:
    """Handle SIGTERM like Ctrl-C, so that the run cleans up."""
    import signal

    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore SIGINT in background jobs
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))


@click.command()
@_service_options
@click.option(
    "--scenario",
    default="small",
    show_default=True,
    help="A TOML file, or one of: small, paper-cifar-10, paper-fashion-mnist, three-cells, two-tasks, "
    "trace-lte, mobile, unreliable.",
)
@click.option("--policy", "policies", multiple=True, type=_POLICIES, help="Repeat to compare policies.")
@click.option("--rounds", type=click.IntRange(min=1), help="Number of rounds.  [default: the scenario's]")
@click.option("--clients", type=click.IntRange(min=1), help="Number of devices.  [default: the scenario's]")
@click.option("--seed", type=click.IntRange(min=0), help="Random seed.  [default: the scenario's]")
@click.option("--uncertainty", type=click.FloatRange(0, 1), help="r.  [default: the scenario's]")
@click.option(
    "--dropout", type=click.FloatRange(0, 1), help="Dropout probability.  [default: the scenario's]"
)
@click.option(
    "--clock",
    type=click.Choice(["simulated", "wall"]),
    help="wall: devices act in real time.  [default: the scenario's]",
)
@click.option(
    "--time-scale",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0, min_open=True),
    help="Speed-up of a wall-clock run: radio, processors and deadlines.",
)
@click.option("--training/--no-training", default=True, show_default=True, help="Or synthetic updates.")
@click.option("--model-bytes", type=int, help="Size of synthetic updates.  [default: the scenario's]")
@click.option(
    "--traces",
    multiple=True,
    type=click.Path(exists=True),
    help="Uplink trace, or a directory of traces, that the devices replay; can be repeated.  "
    "[default: the scenario's]",
)
@_encoding_options(default=None)
@click.option(
    "--deadline-mode",
    type=click.Choice([mode.value for mode in DeadlineMode]),
    help="Deadlines of rounds.  [default: the scenario's]",
)
@click.option(
    "--dispatch",
    type=click.Choice([dispatch.value for dispatch in Dispatch]),
    help="on_ready: the channel is granted to devices whose update is ready.  [default: the scenario's]",
)
@click.option(
    "--planning-factor",
    type=click.FloatRange(0.5, 2),
    help="Factor of estimated times, with on_ready.  [default: the scenario's]",
)
@click.option(
    "--until",
    "until_minutes",
    type=click.FloatRange(0, min_open=True),
    metavar="MINUTES",
    help="End each task after so many minutes of its clock, instead of the scenario's limits.",
)
@click.option(
    "--trials",
    default=1,
    show_default=True,
    type=click.IntRange(1, 1000),
    help="Repeat with the next seeds; shows means and standard deviations.",
)
@click.option(
    "--sweep",
    metavar="FIELD=A,B,C",
    help="Repeat with each value of a field of the task, or of a key of the scenario such as cell.clients.",
)
@click.option("--keep-clients", is_flag=True, help="Do not remove the devices after the run.")
@click.option("--out", default=Path("fedcs-simulation"), show_default=True, type=_DIRECTORY)
@click.option("--resume", is_flag=True, help="Add the runs that are missing in --out.")
@click.option("--mlflow", "mlflow_uri", metavar="URI", help="Export to MLflow, e.g. sqlite:///mlflow.db.")
@click.option("--tensorboard", "tensorboard_dir", type=_DIRECTORY, help="Export to TensorBoard.")
def simulate(
    url: str,
    key: str,
    scenario: str,
    policies: tuple[str, ...],
    *,
    training: bool,
    time_scale: float,
    keep_clients: bool,
    out: Path,
    trials: int,
    sweep: str | None,
    resume: bool,
    mlflow_uri: str | None,
    tensorboard_dir: Path | None,
    **changes: Any,
) -> None:
    """Drive a simulated cell against a running service.

    The simulator enrols devices, reports their resources, has workers train for the selected devices and
    uploads their updates. It writes summary.json and rounds.csv to --out after every round, and plots at the
    end. It removes the devices at the end, also after Ctrl-C.
    """
    import asyncio

    from rich.console import Console

    from client_sim.connect import connect
    from client_sim.experiment import parse_sweep
    from client_sim.scenario import load_scenario
    from client_sim.simulation import Simulation
    from client_sim.simulation import simulate as run

    _treat_sigterm_as_ctrl_c()
    chosen = load_scenario(scenario).changed(**changes)
    simulation = Simulation(
        chosen,
        list(dict.fromkeys(policies)) or [chosen.task.policy],
        training,
        time_scale,
        out,
        keep_clients,
        parse_sweep(sweep) if sweep is not None else None,
        trials,
        resume,
        mlflow_uri,
        tensorboard_dir,
    )

    async def main() -> None:
        async with connect(url, key) as api:
            await run(api, simulation, Console())

    asyncio.run(main())


@click.command()
@click.option("--seed", default=0, show_default=True, type=click.IntRange(min=0), help="Random seed.")
@click.option(
    "--out", default=Path("fedcs-demo"), show_default=True, type=_DIRECTORY, help="Directory for the results."
)
@click.option("--keep", is_flag=True, help="Keep the service and its dashboard running until Ctrl-C.")
def demo(seed: int, out: Path, *, keep: bool) -> None:
    """Start a service and compare FedCS with FedLim on a small cell. Takes a few minutes on two cores."""
    from rich.console import Console

    from client_sim.simulation import run_demo

    _treat_sigterm_as_ctrl_c()
    run_demo(Console(), out, seed, keep=keep)


@click.command()
@_service_options
@click.option("--clients", default=5000, show_default=True, help="Number of clients.")
@click.option("--cells", default=1, show_default=True, help="Number of cells that the clients are in.")
@click.option("--duration-s", default=120.0, show_default=True, help="Duration of the load.")
@click.option("--report-every-s", default=20.0, show_default=True, help="Report interval of a client.")
@click.option("--round-every-s", default=5.0, show_default=True, help="Interval between rounds.")
@click.option("--asked-per-round", default=500, show_default=True, help="Candidates in each round.")
@click.option("--model-bytes", default=1_000_000, show_default=True, help="Size of an update.")
@_encoding_options(default="float32")
@click.option("--long-polls", default=100, show_default=True, help="Clients that long-poll for assignments.")
@click.option("--keep-clients", is_flag=True, help="Do not remove the clients after the test.")
@click.option("--out", type=_FILE, help="Write the report as JSON.")
def loadtest(url: str, key: str, out: Path | None, **settings: Any) -> None:
    """Load-test a running service with many simulated clients that report, poll and upload.

    Prints latency percentiles, throughput, errors and the service's memory. The exit code is 1 if there were
    errors. Latency is measured from the time a request was due. Ctrl-C ends the test early, with a report.
    """
    import asyncio
    import sys

    from rich.console import Console

    from client_sim.connect import connect
    from client_sim.load_report import LoadReport, load_table, write_report
    from client_sim.load_test import LoadProgress, LoadSettings, run_load_test
    from client_sim.results import check_writable
    from client_sim.runs import show_progress
    from fedcs_client.api import AsyncApi

    _treat_sigterm_as_ctrl_c()
    console = Console()
    wanted = LoadSettings(**settings)
    if out is not None:
        check_writable(out.parent)

    async def main() -> LoadReport:
        async with connect(url, key):  # check the URL and the key
            pass
        with show_progress(console) as bars:
            bar = bars.add_task("seconds of load", total=wanted.duration_s, note="starting")

            def show(progress: LoadProgress) -> None:
                bars.update(bar, completed=round(progress.elapsed_s) or None, note=progress.note)

            # No retries: a failed request counts as an error.
            async with AsyncApi(url, key, retry_timeout_s=0.0) as api:
                return await run_load_test(api, wanted, show)

    report = asyncio.run(main())
    console.print(load_table(report))
    if out is not None:
        write_report(out, report)
        console.print(f"Report: {out}")
    sys.exit(1 if report.errors or report.ended_early else 0)


_RESULTS = Path("fedcs-reproduction/results.jsonl")


@click.group(invoke_without_command=True)
@click.option("--dataset", multiple=True, type=click.Choice(["cifar-10", "fashion-mnist"]))
@click.option("--setting", multiple=True, type=click.Choice(["iid", "non-iid"]))
@click.option(
    "--policy",
    multiple=True,
    type=click.Choice(["fedcs", "fedlim", "optimal"]),
    help="optimal: the settings of the FedCS rows; such rows are not in the paper.",
)
@click.option("--round-minutes", multiple=True, type=click.Choice([1, 3, 5, 10]), help="T_round.")
@click.option("--uncertainty", multiple=True, type=click.Choice([0.0, 0.1, 0.2]), help="r.")
@click.option(
    "--deadline-mode",
    default="fixed",
    show_default=True,
    type=click.Choice([mode.value for mode in DeadlineMode]),
    help="adaptive: the rows' deadlines are the longest; such rows are not in the paper.",
)
@_encoding_options(default="float32")
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="NAME=VALUE",
    help="Another field of the task that differs from the paper's experiments, e.g. learning_rate=0.05.",
)
@click.option(
    "--trials",
    default=1,
    show_default=True,
    type=click.IntRange(min=1, max=1000),
    help="Trials of each row, with seeds 0, 1, …; the paper has ten.",
)
@click.option(
    "--until",
    multiple=True,
    help="A simulated time (120min) or an accuracy (0.85); with both, the first one reached.  "
    "[default: 400min]",
)
@click.option(
    "--campaign",
    type=_FILE,
    help="TOML file with the trials to run, in this order, instead of the options that select rows.",
)
@click.option(
    "--results",
    default=_RESULTS,
    show_default=True,
    type=_FILE,
    help="File to append the rounds to.",
)
@click.option(
    "--work-dir",
    default=Path("fedcs-reproduction/service"),
    show_default=True,
    type=_DIRECTORY,
    help="Data directory of the service; needed to resume.",
)
@click.option("--list", "list_only", is_flag=True, help="List finished and remaining trials, and exit.")
@click.pass_context
def reproduce(
    context: click.Context,
    /,
    trials: int,
    until: tuple[str, ...],
    results: Path,
    work_dir: Path,
    *,
    campaign: Path | None,
    list_only: bool,
    deadline_mode: str,
    update_encoding: str,
    model_encoding: str,
    changes: tuple[str, ...],
    **rows: Any,
) -> None:
    """Repeat the paper's experiments; `fedcs reproduce report` compares them with the published figures.

    The options select rows of the paper's tables; each can be repeated. Without options all rows are run.
    The command starts its own service. Stop it at any time; the same command resumes it.
    """
    if context.invoked_subcommand is not None:
        return

    from rich.console import Console

    from client_sim.reproduction.campaign import TrialPlan, list_trials, read_campaign, reproduce_trials
    from client_sim.reproduction.rows import choose_rows, parse_change, trials_of
    from client_sim.reproduction.trial import PlannedTrial, parse_until

    _treat_sigterm_as_ctrl_c()
    if campaign is not None:
        _refuse_with_campaign(context)
        planned = read_campaign(campaign)
    else:
        extensions = {
            "deadline_mode": deadline_mode,
            "update_encoding": update_encoding,
            "model_encoding": model_encoding,
        }
        changed = extensions | dict(map(parse_change, changes))
        chosen = [row.with_changes(changed) for row in choose_rows(**rows)]
        stop = parse_until(until)
        planned = [PlannedTrial(trial, stop) for trial in trials_of(chosen, range(trials))]
    plan = TrialPlan(planned)
    if list_only:
        list_trials(Console(), plan, results)
    else:
        reproduce_trials(Console(), plan, results, work_dir)


def _refuse_with_campaign(context: click.Context) -> None:
    """Refuse the options that the campaign file replaces."""
    kept = ("campaign", "results", "work_dir", "list_only")
    for parameter in context.command.params:
        name = parameter.name or ""
        given = context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT
        if given and name not in kept:
            raise click.UsageError(f"{parameter.opts[0]} cannot be used with --campaign")


@reproduce.command()
@click.option(
    "--results",
    default=_RESULTS,
    show_default=True,
    type=_FILE,
    help="File written by `fedcs reproduce`.",
)
@click.option("--out", default=Path("fedcs-reproduction/report"), show_default=True, type=_DIRECTORY)
def report(results: Path, out: Path) -> None:
    """Compare the results with the published figures; writes report.md, report.html and plots."""
    from client_sim.reproduction.report import write_report

    for path in write_report(results, out):
        click.echo(path)


@reproduce.command("non-iid-report")
@click.option(
    "--results",
    default=_RESULTS,
    show_default=True,
    type=_FILE,
    help="File written by `fedcs reproduce`.",
)
@click.option("--out", default=Path("fedcs-reproduction/non-iid.md"), show_default=True, type=_FILE)
def non_iid_report(results: Path, out: Path) -> None:
    """Compare settings for two classes per device, from the trials of docs/non-iid-campaign.toml."""
    from client_sim.reproduction.non_iid import write_study

    write_study(results, out)
    click.echo(out)


@reproduce.command()
@click.argument("files", nargs=-1, required=True, type=_FILE)
@click.option(
    "--results",
    default=_RESULTS,
    show_default=True,
    type=_FILE,
    help="File to add the rounds to.",
)
@click.option("--version", help="The version that wrote lines without a version, such as 0.1.0.")
def merge(files: tuple[Path, ...], results: Path, version: str | None) -> None:
    """Add the rounds of other results files, for example of another machine.

    Rounds that are already recorded are skipped. Nothing is written if a round differs from the recorded one,
    or if the files have different runs of a trial.
    """
    from client_sim.reproduction.results_file import merge_results

    click.echo(f"{merge_results(files, results, version)} rounds added to {results}")
