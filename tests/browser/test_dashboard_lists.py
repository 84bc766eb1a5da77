"""Clients, keys and activity as an operator uses them; all pages, on desktop and phone, light and dark."""

import re
from collections.abc import Iterator

import httpx
import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.conftest import Watched
from tests.browser.test_dashboard_accessibility import assert_accessible
from tests.dashboard_tasks import live_task, play_round
from tests.integration.cell import open_round, report
from tests.integration.rounds_setup import Site, site

HOSTILE = [
    '"><img src=x onerror=alert(1)>',
    "{{7*7}}",
    "W" * 128,
    "a b+c&d=%25#?",
    "\u202eright to left \u05d0",
]


OLDER_PAGES = 9
"""The place of the first of the pages that ``test_dashboard_accessibility`` checks."""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site("sqlite", tmp_path_factory.mktemp("data"), "") as running:
        yield running


@pytest.fixture(scope="module")
def service(here: Site) -> httpx.Client:
    return here.service


def test_enrol_find_and_remove_a_client(operator_page: Page, here: Site, watched: Watched) -> None:
    page, service = operator_page, here.service
    task, keys = live_task(here)
    play_round(here, task["task_id"], keys, 0.4)
    selected = next(iter(keys))
    page.goto("/dashboard/clients")
    expect(page.get_by_role("status")).to_have_text("Live")
    page.get_by_text("Enrol a client…").click()
    page.get_by_label("Id", exact=True).fill("bus 7/8")
    page.get_by_role("button", name="Enrol").click()
    expect(page.get_by_role("alert")).to_contain_text("contains characters that are not allowed")
    watched.expect_complaint(page, "422")
    page.go_back()
    page.get_by_text("Enrol a client…").click()
    page.get_by_label("Id", exact=True).fill("bus 7")
    page.get_by_label("Labels", exact=True).fill("vehicle=bus")
    page.get_by_role("button", name="Enrol").click()
    key = page.locator("#new-key").inner_text()
    bearer = {"Authorization": f"Bearer {key}"}
    assert httpx.get(service.base_url.join("assignments"), headers=bearer, timeout=60).status_code == 200

    for text, state, reliability, found in (
        ("vehicle=bus", "", "", ["bus 7"]),
        ("BUS", "silent", "unknown", ["bus 7"]),
        ("", "stale", "", ["bus 7"]),  # it has never reported
        (selected, "reporting", "reliable", [selected]),
        (selected, "", "unreliable", []),
    ):
        page.goto("/dashboard/clients")
        page.get_by_label("Id or name=value").fill(text)
        page.get_by_label("State").select_option(state)
        page.get_by_label("Reliability").select_option(reliability)
        page.get_by_role("button", name="Apply").click()
        expect(page.locator("#clients tbody th")).to_have_text(found)
    page.goto(f"/dashboard/clients/{selected}")
    expect(page.locator("#delivered")).to_have_text("100.0 %")
    expect(page.locator("#rounds tbody tr")).to_have_count(1)
    expect(page.locator("#reports tbody tr")).to_have_count(1)
    page.get_by_role("link", name="Round 1").click()
    page.locator("#rows").get_by_role("link", name=selected).click()
    expect(page.get_by_role("heading", level=1)).to_have_text(selected)

    page.goto("/dashboard/clients/bus%207")
    report(service, "bus 7")
    expect(page.locator("#client-state")).to_contain_text("reporting")  # without a reload
    page.get_by_role("button", name="Make a key").click()
    expect(page.locator("#new-key")).to_contain_text("fedcs_")
    page.get_by_role("link", name="Done").click()
    expect(page.locator("#keys tbody tr")).to_have_count(2)
    page.get_by_text("Revoke its keys…").click()
    page.get_by_role("button", name="Revoke all its keys").click()
    expect(page.get_by_text("It has no valid key")).to_be_visible()
    assert httpx.get(service.base_url.join("assignments"), headers=bearer, timeout=60).status_code == 401
    page.get_by_text("Remove…").click()
    page.get_by_role("button", name="Remove the client").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Clients")
    assert service.get("/clients/bus 7").status_code == 404
    page.goto("/dashboard/clients/bus%207")
    expect(page.get_by_role("alert")).to_have_text("There is no client 'bus 7'.")
    watched.expect_complaint(page, "404")


def test_make_and_revoke_a_key(operator_page: Page, service: httpx.Client) -> None:
    page = operator_page
    page.goto("/dashboard/keys")
    page.get_by_label("Name of the new key").fill("grafana")
    page.get_by_role("button", name="Make a key").click()
    bearer = {"Authorization": f"Bearer {page.locator('#new-key').inner_text()}"}
    tasks = service.base_url.join("tasks")
    assert httpx.get(tasks, headers=bearer, timeout=60).status_code == 200
    page.get_by_role("link", name="Done").click()
    page.get_by_label("Name, id or client").fill("GRAF")
    page.get_by_role("button", name="Apply").click()
    row = page.locator("#keys tbody tr")
    expect(row).to_contain_text("read-only")
    row.get_by_text("Revoke…").click()
    row.get_by_role("button", name="Revoke the key").click()
    expect(row).to_contain_text("revoked")
    assert httpx.get(tasks, headers=bearer, timeout=60).status_code == 401
    page.goto("/dashboard/activity?group=key")
    expect(page.locator("#events tbody tr").first).to_contain_text("Key grafana revoked")


def test_activity_is_live_and_filtered(operator_page: Page, here: Site) -> None:
    page = operator_page
    task, keys = live_task(here)
    page.goto(f"/dashboard/activity?about={task['task_id']}&group=round")
    expect(page.locator("#events .empty")).to_be_visible()
    expect(page.get_by_role("status")).to_have_text("Live")
    play_round(here, task["task_id"], keys, 0.4)
    expect(page.locator("#events tbody tr").first).to_contain_text("Round 1 aggregated")
    page.get_by_label("What").select_option("update")
    page.get_by_role("button", name="Apply").click()
    expect(page.locator("#events tbody tr")).to_have_count(len(keys))
    about = page.locator("#events td[data-label=About]").first
    expect(about).to_have_text(re.compile(f" round ({'|'.join(keys)})"))
    page.goto("/dashboard/activity?before=3")
    expect(page.locator("#events tbody tr")).to_have_count(2)
    page.get_by_role("link", name="Newest").click()
    expect(page.locator("#events tbody tr").nth(2)).to_be_visible()


@pytest.mark.parametrize("name", ["task", "round", "cell"])
def test_what_is_drawn_is_loading_then_failed_then_there(
    name: str, operator_page: Page, here: Site, watched: Watched
) -> None:
    page = operator_page
    task, keys = live_task(here)
    round_id = play_round(here, task["task_id"], keys, 0.4)
    held: list[Route] = []
    page.route("**/dashboard/data/**", lambda route: held.insert(0, route))
    path = {"task": f"tasks/{task['task_id']}", "round": f"rounds/{round_id}", "cell": "cell"}[name]
    page.goto(f"/dashboard/{path}")
    expect(page.get_by_text("Loading…")).to_be_visible()
    page.route("**/dashboard/data/**", lambda route: route.fulfill(status=503))
    for route in held:
        route.fulfill(status=503)
    expect(page.get_by_role("alert")).to_contain_text("could not be loaded")
    expect(page.get_by_text("Loading…")).to_be_hidden()
    expect(page.get_by_role("status")).to_have_text("Not up to date; trying again…")
    page.unroute_all()
    expect(page.locator("canvas").first).to_be_visible()
    expect(page.get_by_role("alert")).to_be_hidden()
    expect(page.get_by_role("status")).to_have_text("Live")
    watched.expect_complaint(page, "503")


def test_every_page_at_both_widths_in_both_colour_schemes(operator_page: Page, here: Site) -> None:
    """With hostile ids in them: no overflow, no serious violation."""
    page, service = operator_page, here.service
    for client_id in HOSTILE:
        enrolled = {"client_id": client_id, "labels": {"a": client_id}}
        service.post("/clients", json=enrolled).raise_for_status()
        report(service, client_id)
    task, keys = live_task(here, name=HOSTILE[0])
    play_round(here, task["task_id"], keys, 0.4)
    round_id = open_round(service, task["task_id"])["round_id"]
    idle, its_keys = live_task(here)
    play_round(here, idle["task_id"], its_keys, 0.4)
    paths = [
        "/",
        "/dashboard/tasks",
        "/dashboard/tasks/new",
        "/dashboard/clients",
        f"/dashboard/clients/{HOSTILE[2]}",
        f"/dashboard/clients/{next(iter(keys))}",
        "/dashboard/activity",
        "/dashboard/keys?owner=all",
        f"/dashboard/tasks/{task['task_id']}/models",
        f"/dashboard/tasks/{task['task_id']}",
        f"/dashboard/rounds/{round_id}?columns=report&columns=times&columns=blocks&columns=update",
        "/dashboard/cell",
        "/dashboard/what-if",
    ]
    for place, path in enumerate(paths):
        page.set_viewport_size({"width": 1280, "height": 800})
        page.emulate_media(color_scheme="light")
        page.goto(path)
        _assert_no_overflow(page)
        if path == "/dashboard/tasks":  # no action is hidden
            table = page.locator("#tasks .table-box")
            assert table.evaluate("(box) => box.scrollWidth <= box.clientWidth")
        page.set_viewport_size({"width": 390, "height": 800})
        _assert_no_overflow(page)
        if place < OLDER_PAGES:  # test_dashboard_accessibility checks those
            assert_accessible(page)
            page.emulate_media(color_scheme="dark")
            assert_accessible(page, "color-contrast")
    for client_id in HOSTILE:
        page.goto("/dashboard/clients")
        page.get_by_role("link", name=client_id, exact=True).click()
        expect(page.get_by_role("heading", level=1)).to_have_text(client_id)


def _assert_no_overflow(page: Page) -> None:
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), page.url
