"""Response times and sizes of the dashboard's pages on a large database, compared with a health check.

python -m benchmarks.dashboard
"""

import re
import shutil
import statistics
import tempfile
import time
from collections.abc import Mapping

import httpx
from playwright.sync_api import Response, sync_playwright
from rich.console import Console
from rich.table import Table

from benchmarks.full_database import CLIENTS, EVENTS, ROUNDS_PER_TASK, TASKS, fill
from benchmarks.servers import OPERATOR_KEY, python_server
from services.storage.database import Database
from services.storage.migration import migrate

_RUNS = 30
_PEER = "/healthz-with-query"


def main() -> None:
    """Print the response time of each page, its ratio to the baseline, and the bytes that a browser loads."""
    console = Console(width=110)
    with tempfile.TemporaryDirectory(prefix="fedcs-bench-") as directory:
        url = f"sqlite:///{directory}/fedcs.sqlite"
        database = Database(url)
        migrate(database)
        with console.status("Filling the database"):
            task_id, round_id = fill(database)
        database.close()
        with python_server("benchmarks.dashboard_server", database_url=url) as (client, _):
            pages = {
                "overview": "/",
                "tasks": "/dashboard/tasks",
                "tasks, by activity": "/dashboard/tasks?sort=activity&q=task",
                "new task": "/dashboard/tasks/new",
                "clients": "/dashboard/clients",
                "clients, filtered": "/dashboard/clients?q=client-7&state=reporting&reliability=reliable",
                "client": "/dashboard/clients/client-7",
                "activity": "/dashboard/activity",
                "activity, filtered": "/dashboard/activity?group=key&about=nothing",
                "keys": "/dashboard/keys",
                "models": f"/dashboard/tasks/{task_id}/models",
                "task": f"/dashboard/tasks/{task_id}",
                "round": f"/dashboard/rounds/{round_id}",
                "cell": "/dashboard/cell",
                "what-if": "/dashboard/what-if",
            }
            table = Table(
                title=f"{TASKS} tasks, {TASKS * ROUNDS_PER_TASK:,} rounds, {CLIENTS:,} clients, "
                f"{EVENTS:,} events (SQLite)",
                title_justify="left",
            )
            for name in ("page", "request", "ms", "÷ peer", "wanted", "page loads, MB", "wanted"):
                table.add_column(name)
            with console.status("Measuring"):
                _measure(client, pages, table)
    console.print(table)


def _measure(client: httpx.Client, pages: Mapping[str, str], table: Table) -> None:
    logged_in = client.post("/dashboard/login", data={"key": OPERATOR_KEY})
    cookie = logged_in.cookies["fedcs_session"]
    for name, path in pages.items():
        loaded = _loaded(client, path, cookie)
        weight = sum(size for _, size in loaded.values())
        for request, (method, _) in loaded.items():
            if "/static/" in request or "/bokeh/" in request:
                continue
            ours, peer = _milliseconds(client, method, request, cookie)
            first = request == path
            table.add_row(
                name if first else "",
                f"{method} {re.sub(r'(task|round)-[0-9a-f]+', 'ID', request)}",
                f"{ours:.1f}",
                f"{ours / peer:.1f}",
                "< 10",
                f"{weight / 1e6:.2f}" if first else "",
                "< 2" if first else "",
            )


def _loaded(client: httpx.Client, path: str, cookie: str) -> dict[str, tuple[str, int]]:
    """The requests of Chromium for a page: method and uncompressed size of each path."""
    base = str(client.base_url).rstrip("/")
    responses: list[Response] = []

    def note(response: Response) -> None:
        """A function, because Playwright sets attributes on its handlers."""
        responses.append(response)

    with sync_playwright() as playwright:
        chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        context = browser.new_context()
        context.add_cookies([{"name": "fedcs_session", "value": cookie, "url": base}])
        page = context.new_page()
        page.on("response", note)
        page.goto(f"{base}{path}")
        page.wait_for_timeout(5000)  # for requests of its scripts
        found = {
            response.url.removeprefix(base): (response.request.method, len(response.body()))
            for response in responses
            if "/events" not in response.url  # an endless stream
        }
        browser.close()
    return found


def _milliseconds(client: httpx.Client, method: str, request: str, cookie: str) -> tuple[float, float]:
    """Median times of a request and of the baseline, measured in turn."""
    taken: dict[str, list[float]] = {request: [], _PEER: []}
    with httpx.Client(base_url=client.base_url, cookies={"fedcs_session": cookie}, timeout=60) as browser:
        token = re.search(r'name="csrf-token" content="([0-9a-f]+)"', browser.get("/").text)
        assert token is not None, "every page has it"
        for _ in range(_RUNS):
            for path, verb in ((request, method), (_PEER, "GET")):
                body = {"json": {}, "headers": {"X-CSRF-Token": token[1]}} if verb == "POST" else {}
                began = time.perf_counter()
                browser.request(verb, path, **body).raise_for_status()  # type: ignore[arg-type]
                taken[path].append(time.perf_counter() - began)
    ours, peer = (statistics.median(times) * 1e3 for times in taken.values())
    return ours, peer


if __name__ == "__main__":
    main()
