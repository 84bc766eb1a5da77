"""``fedcs status``: the health of a running service and its newest tasks, in the terminal."""

import time

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedcs_client import endpoints
from fedcs_client.api import Api
from services.contract.tasks import TaskResponse
from services.domain.tasks import TaskState
from services.errors import FedCSError
from services.escaping import escape_unprintable

_TASKS = 20
_TIMEOUT_S = 2.0
_INTERVAL_S = 2.0
_COLOURS = {
    TaskState.RUNNING: "cyan",
    TaskState.FINISHED: "green",
    TaskState.FAILED: "red",
    TaskState.CANCELLED: "yellow",
}


def print_status(console: Console, url: str, key: str) -> None:
    """Print it once."""
    with Api(url, key, retry_timeout_s=_TIMEOUT_S) as api:
        console.print(_status(api, url))


def watch_status(console: Console, url: str, key: str) -> None:
    """Show it again and again until Ctrl-C, also while the service does not answer."""
    with Api(url, key, retry_timeout_s=_TIMEOUT_S) as api:
        shown = _status(api, url)  # a wrong key or URL is an error
        try:
            with Live(shown, console=console, auto_refresh=False) as live:
                while True:
                    time.sleep(_INTERVAL_S)
                    try:
                        live.update(_status(api, url), refresh=True)
                    except FedCSError as error:
                        live.update(Text(escape_unprintable(str(error)), "red"), refresh=True)
        except KeyboardInterrupt:
            return


def _status(api: Api, url: str) -> RenderableType:
    readiness = api.send(endpoints.readiness())
    tasks = api.send(endpoints.list_tasks(_TASKS))
    style = "green" if readiness.status == "ready" else "yellow"
    lines = [Text.assemble(f"{url} is ", (readiness.status, style))]
    problems = {name: state for name, state in readiness.checks.items() if state != "ok"}
    lines += [Text(f"  {name}: {escape_unprintable(state)}", "yellow") for name, state in problems.items()]
    if not tasks:
        return Group(*lines, Text("No tasks."))
    return Group(*lines, _table(tasks))


def _table(tasks: list[TaskResponse]) -> Table:
    title = f"The newest {len(tasks)} tasks" if len(tasks) == _TASKS else "Tasks"
    table = Table(title=title, title_justify="left", box=None, header_style="dim", pad_edge=False)
    for name in ("task", "name", "state", "rounds", "version", "elapsed min", "detail"):
        right = name in ("rounds", "version", "elapsed min")
        table.add_column(name, justify="right" if right else "left", no_wrap=name != "detail")
    for task in tasks:
        table.add_row(
            task.task_id,
            Text(escape_unprintable(task.name)),
            Text(task.state.value, _COLOURS.get(task.state, "")),
            str(task.rounds),
            "–" if task.model_version is None else str(task.model_version),
            f"{task.elapsed_s / 60:.1f}",
            Text(escape_unprintable(task.detail or "")),
        )
    return table
