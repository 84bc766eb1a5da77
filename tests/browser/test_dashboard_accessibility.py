"""axe-core on every page, empty and full, light and dark: no serious complaint."""

from collections.abc import Iterator

import httpx
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.dashboard_tasks import live_task, play_round, task_with_rounds
from tests.integration.cell import open_round
from tests.integration.rounds_setup import Site, site

PAGES = ["/", "/dashboard/cell", "/dashboard/what-if"]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site("sqlite", tmp_path_factory.mktemp("data"), "") as running:
        yield running


@pytest.fixture(scope="module")
def service(here: Site) -> httpx.Client:
    return here.service


@pytest.fixture(scope="module")
def full(here: Site) -> list[str]:
    """The pages, with something on them: a task, and one round that is over and one under way."""
    past = task_with_rounds(here, [0.2, 0.5, 0.8])
    task, keys = live_task(here)
    ended = play_round(here, task["task_id"], keys, 0.4)
    under_way = open_round(here.service, task["task_id"])["round_id"]
    compared = f"/dashboard/tasks/{task['task_id']}?with={past['task_id']}"
    return [*PAGES, compared, *(f"/dashboard/rounds/{item}" for item in (ended, under_way))]


def test_the_log_in(page: Page) -> None:
    page.goto("/dashboard/login")
    assert_accessible(page)


def test_empty_pages(operator_page: Page) -> None:
    for path in PAGES:
        operator_page.goto(path)
        assert_accessible(operator_page)


def test_full_pages(operator_page: Page, full: list[str]) -> None:
    """In light colours by all rules, and in dark ones by the rule about colours."""
    for path in full:
        operator_page.emulate_media(color_scheme="light")
        operator_page.goto(path)
        if path != "/":
            expect(operator_page.locator("canvas").first).to_be_visible()
        assert_accessible(operator_page)
        operator_page.emulate_media(color_scheme="dark")
        assert_accessible(operator_page, "color-contrast")


def assert_accessible(page: Page, *rules: str) -> None:
    """No serious violation of these rules, or of all."""
    options = {"runOnly": list(rules)} if rules else None
    found = Axe().run(page, options=options).response["violations"]
    serious = [
        (page.url, item["id"], item["help"], [node["target"] for node in item["nodes"]])
        for item in found
        if item["impact"] in ("serious", "critical")
    ]
    assert serious == []
