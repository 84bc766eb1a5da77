"""Commands of the API: ``fedcs up``, ``fedcs serve``, ``fedcs plan``.

Each imports what it needs when it runs, so that none waits for the packages of another.
"""

from pathlib import Path
from typing import TextIO

import click

from services.domain.selection import POLICIES
from services.tensors.encodings import ENCODINGS, MODEL_ENCODINGS

_OUTPUT = click.Path(dir_okay=False, writable=True, path_type=Path)
_OF_OTHERS = 0o077
"""What a file's mode allows its group and all others."""
_accept_empty_database = click.option(
    "--accept-empty-database",
    is_flag=True,
    help="Start with an empty database although the model store has files, which are then deleted.",
)


@click.command()
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=int, help="Port to listen on; 0 takes a free one.  [default: 8000]")
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where everything is kept.  [default: fedcs-data]",
)
@_accept_empty_database
@click.option("--verbose", is_flag=True, help="Write the log to the terminal, not to a file.")
def up(
    host: str | None, port: int | None, data_dir: Path | None, *, accept_empty_database: bool, verbose: bool
) -> None:
    """Start the whole stack on this machine: the API, a Redis of its own and a worker.

    Prints the URL and, unless FEDCS_OPERATOR_KEY gives one, the operator key that is made at the first start
    and kept in the data directory. The log is there too, in up.log. With FEDCS_BROKER_URL that broker is used
    and no Redis started.
    """
    from operator_api.up import exclusive_use, has_trainer, log_to, run_stack
    from services.settings import EmbeddedSettings, load_settings
    from services.startup import KEY_FILE, Announcement

    settings = load_settings(EmbeddedSettings, host=host, port=port, data_dir=data_dir)
    was_given = "operator_key" in settings.model_fields_set
    created_key = None if was_given else settings.operator_key.get_secret_value()
    if settings.data_dir.stat().st_mode & _OF_OTHERS:
        place = settings.data_dir
        click.echo(f"Other users can read {place}: `chmod 700 {place}` keeps them out.", err=True)
    if not has_trainer():
        click.echo("No trainer, so jobs will wait: pip install 'fedcs-operator[trainer]' brings it.")
    log_file = None if verbose else settings.data_dir / "up.log"
    key_file = None if created_key is None else settings.data_dir / KEY_FILE
    with exclusive_use(settings.data_dir), log_to(log_file):
        run_stack(
            settings,
            announce=lambda url: click.echo(Announcement(url, created_key, key_file, log_file).text()),
            accept_empty_database=accept_empty_database,
        )


@click.command()
@click.option(
    "--url",
    default="http://127.0.0.1:8000",
    show_default=True,
    envvar="FEDCS_URL",
    help="URL of the service.",
)
@click.option("--key", required=True, envvar="FEDCS_OPERATOR_KEY", help="Operator key.")
@click.option("--watch", is_flag=True, help="Show it again every two seconds, until Ctrl-C.")
def status(url: str, key: str, *, watch: bool) -> None:
    """Show the health of a running service and its newest tasks."""
    from rich.console import Console

    from operator_api.status_command import print_status, watch_status

    if watch:
        watch_status(Console(), url, key)
    else:
        print_status(Console(), url, key)


@click.command()
@_accept_empty_database
def serve(*, accept_empty_database: bool) -> None:
    """Start one API process, set up by FEDCS_* environment variables.

    FEDCS_OPERATOR_KEY is required, the others have defaults: FEDCS_DATABASE_URL, FEDCS_MODEL_STORE,
    FEDCS_BROKER_URL, FEDCS_DATA_DIR, FEDCS_HOST, FEDCS_PORT and more; docs/operations.md lists them all.
    """
    from operator_api.server import run_api
    from services.settings import Settings, load_settings

    run_api(
        load_settings(Settings),
        announce=lambda url: click.echo(f"Ready at {url}"),
        accept_empty_database=accept_empty_database,
    )


@click.command()
@click.argument("file", type=click.File(encoding="utf-8-sig"))
@click.option("--policy", type=click.Choice(list(POLICIES)), help="How to select.  [default: fedcs]")
@click.option("--round-deadline-s", type=float, help="The round must end before this.  [default: 180]")
@click.option("--model-size-bytes", type=int, help="Of the model.  [default: 18300000]")
@click.option("--upload-size-bytes", type=int, help="What each client uploads.  [default: the model's size]")
@click.option(
    "--download-size-bytes", type=int, help="What each client downloads.  [default: the model's size]"
)
@click.option("--update-encoding", type=click.Choice(list(ENCODINGS)), help="How updates travel.")
@click.option("--model-encoding", type=click.Choice(MODEL_ENCODINGS), help="How clients download the model.")
@click.option("--adaptive", is_flag=True, help="Choose the deadline; --round-deadline-s is the longest.")
@click.option("--noise-scale", type=float, help="B in clients, with --adaptive.  [default: 4]")
@click.option("--local-epochs", type=int, help="Passes over a client's data.  [default: 5]")
@click.option("--resource-blocks", type=int, help="Resource blocks of the task.  [default: 10]")
@click.option(
    "--report-resource-blocks", type=int, help="Those the reported throughput refers to.  [default: 10]"
)
@click.option("--selection-s", type=float, help="Time taken by Client Selection.  [default: 0]")
@click.option("--aggregation-s", type=float, help="Time taken by Aggregation.  [default: 0]")
@click.option("--seed", type=int, help="For policies with a random order.  [default: 0]")
@click.option("--html", type=_OUTPUT, help="Write the plan as a page.")
@click.option("--png", type=_OUTPUT, help="Write the Gantt chart as a picture.")
@click.option(
    "--json",
    "json_to",
    type=click.File("w", encoding="utf-8", lazy=True),
    is_flag=False,
    flag_value="-",
    help="Write the plan as JSON; to the terminal, in place of the table, if no file is named.",
)
def plan(
    file: TextIO, html: Path | None, png: Path | None, json_to: TextIO | None, **options: object
) -> None:
    """Select and schedule from a FILE of resource reports, without a server.

    FILE is CSV with the columns client_id, throughput_bps, compute_samples_per_s and data_samples (others are
    ignored), a JSON list of such reports, or a JSON object as POST /plans takes it. "-" reads standard input.
    Options win over what the object says.
    """
    from rich.console import Console

    from operator_api.plan_command import print_plan, read_plan_request
    from operator_api.planning import plan_round

    given = {name: value for name, value in options.items() if value is not None}
    if given.pop("adaptive"):
        given["deadline_mode"] = "adaptive"
    with Console(stderr=True).status("Planning"):
        request = read_plan_request(file, given)
        planned = plan_round(request)
        if planned.noise_scale is not None:  # charts and tables show the deadline that was chosen
            request = request.model_copy(update={"round_deadline_s": planned.round_deadline_s})
        if html:
            from operator_api.plan_command import render_html

            html.write_text(render_html(request, planned), encoding="utf-8")
        if png:
            from services.gantt import draw_gantt

            png.write_bytes(draw_gantt(request, planned, "png"))
    if json_to:
        json_to.write(planned.model_dump_json(indent=2) + "\n")
    if not json_to or json_to.name != "-":
        print_plan(Console(), request, planned)
