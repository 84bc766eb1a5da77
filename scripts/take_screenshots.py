"""Screenshots of the dashboard for the documentation: a small cell trains, and its pages are photographed.

make screenshots
"""

import asyncio
import shutil
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, Page, ViewportSize, sync_playwright
from rich.console import Console

from client_sim.connect import StartedStack, start_stack
from client_sim.scenario import load_scenario
from client_sim.simulated_run import run_simulated
from fedcs_client.api import AsyncApi

_ROUNDS = 24
_DESK: ViewportSize = {"width": 1280, "height": 1100}
_PHONE: ViewportSize = {"width": 390, "height": 800}


def main(out: Path) -> None:
    """Train with two policies, then look at every page."""
    console = Console()
    with (
        tempfile.TemporaryDirectory(prefix="fedcs-screenshots-") as data_dir,
        start_stack(console, Path(data_dir)) as service,
    ):
        with console.status("Training"):
            fedcs, fedlim = asyncio.run(_train(service))
        with console.status("Photographing"):
            _photograph(service, fedcs, fedlim, out)
    console.print(f"Screenshots: {out}/")


async def _train(service: StartedStack) -> list[str]:
    async with AsyncApi(service.url, service.operator_key) as api:
        runs = []
        for policy in ("fedcs", "fedlim"):
            scenario = load_scenario("small").changed(policy=policy, rounds=_ROUNDS, uncertainty=0.1)
            named = scenario.task.model_copy(update={"name": f"shop signs, {policy}"})
            runs.append(
                run_simulated(
                    api,
                    scenario.model_copy(update={"task": named}),
                    name=f"cell-{policy}",
                    training=True,
                    on_round=lambda _: None,
                )
            )
        return [run.record.task_id for run in await asyncio.gather(*runs)]


def _photograph(service: StartedStack, fedcs: str, fedlim: str, out: Path) -> None:
    with sync_playwright() as playwright:
        chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        page = _logged_in(browser, service, _DESK)
        _take(page, "/", out / "dashboard-overview.png")
        _take(page, f"/dashboard/tasks/{fedcs}?with={fedlim}", out / "dashboard-task.png")
        page.locator("a[href*='/dashboard/rounds/']").first.click()
        _take(page, None, out / "dashboard-round.png")
        _take(page, "/dashboard/cell", out / "dashboard-cell.png")
        _take(page, "/dashboard/what-if", out / "dashboard-what-if.png")
        _take(page, "/dashboard/clients", out / "dashboard-clients.png")
        _take(page, "/dashboard/tasks/new", out / "dashboard-new-task.png")
        page.emulate_media(color_scheme="dark")
        _take(page, f"/dashboard/tasks/{fedcs}?with={fedlim}", out / "dashboard-task-dark.png")
        _take(_logged_in(browser, service, _PHONE), "/", out / "dashboard-overview-phone.png")
        browser.close()


def _logged_in(browser: Browser, service: StartedStack, size: ViewportSize) -> Page:
    page = browser.new_context(base_url=service.url, viewport=size).new_page()
    page.goto("/")
    page.get_by_label("key").fill(service.operator_key)
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("heading", name="Overview").wait_for()
    return page


def _take(page: Page, path: str | None, file: Path) -> None:
    if path is not None:
        page.goto(path)
    page.wait_for_timeout(2500)  # for plots to be drawn
    page.screenshot(path=file)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
