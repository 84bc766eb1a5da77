"""Commands of the API: ``fedcs up``, ``fedcs serve``, ``fedcs plan``.

Each imports what it needs when it runs, so that none waits for the packages of another.
"""

from pathlib import Path
from typing import TextIO

import click

from services.domain.selection import POLICIES

_OUTPUT = click.Path(dir_okay=False, writable=True, path_type=Path)


@click.command()
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=int, help="Port to listen on; 0 takes a free one.  [default: 8000]")
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where everything is kept.  [default: fedcs-data]",
)
def up(host: str | None, port: int | None, data_dir: Path | None) -> None:
    """Start the whole stack on this machine: the API, a Redis of its own and a worker.

    Prints the URL and an operator key: that in FEDCS_OPERATOR_KEY, else one that is made at the first start
    and kept in the data directory. With FEDCS_BROKER_URL that broker is used and no Redis started.
    """
    from operator_api.stack import has_trainer, run_stack
    from services.announcement import Announcement
    from services.settings import EmbeddedSettings, load_settings

    settings = load_settings(EmbeddedSettings, host=host, port=port, data_dir=data_dir)
    key = settings.operator_key.get_secret_value()
    if not has_trainer():
        click.echo("No trainer, so jobs will wait: pip install 'fedcs-operator[trainer]' brings it.")
    run_stack(settings, announce=lambda url: click.echo(Announcement(url, key).text()))


@click.command()
def serve() -> None:
    """Start one API process, set up by FEDCS_* environment variables.

    FEDCS_OPERATOR_KEY is required, the others have defaults: FEDCS_DATABASE_URL, FEDCS_MODEL_STORE,
    FEDCS_BROKER_URL, FEDCS_DATA_DIR, FEDCS_HOST, FEDCS_PORT and more; docs/operations.md lists them all.
    """
    from operator_api.server import run_api
    from services.settings import Settings, load_settings

    run_api(load_settings(Settings), announce=lambda url: click.echo(f"Ready at {url}"))


@click.command()
@click.argument("file", type=click.File(encoding="utf-8-sig"))
@click.option("--policy", type=click.Choice(list(POLICIES)), help="How to select.  [default: fedcs]")
@click.option("--round-deadline-s", type=float, help="The round must end before this.  [default: 180]")
@click.option("--model-size-bytes", type=int, help="What each client uploads.  [default: 18300000]")
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

    from operator_api.plan_file import read_plan_request
    from operator_api.plan_view import print_plan
    from operator_api.planning import plan_round

    given = {name: value for name, value in options.items() if value is not None}
    with Console(stderr=True).status("Planning"):
        request = read_plan_request(file, given)
        planned = plan_round(request)
        if html:
            from operator_api.plan_report import render_html

            html.write_text(render_html(request, planned), encoding="utf-8")
        if png:
            from services.charts.gantt import draw_gantt

            png.write_bytes(draw_gantt(request, planned, "png"))
    if json_to:
        json_to.write(planned.model_dump_json(indent=2) + "\n")
    if not json_to or json_to.name != "-":
        print_plan(Console(), request, planned)
