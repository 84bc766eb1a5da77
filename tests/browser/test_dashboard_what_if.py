"""The what-if page as an operator uses it."""

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import httpx
import numpy as np
import pytest
from playwright.sync_api import Page, Route, expect

from operator_api.dashboard.wording import policy_name
from tests.browser.conftest import Watched
from tests.integration.plan_requests import cell
from tests.running_service import running_service

HOSTILE = [
    "<script>alert('client')<\\script>",
    '"><img src=x onerror=alert(1)>',
    "{{7*7}}@client{safe}",
    "W" * 128,
    "\u202eright to left \u05d0\u05d1\u05d2",
]
CLIENTS = 60


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with running_service(tmp_path_factory.mktemp("what-if")) as client:
        yield client


@pytest.fixture(scope="module")
def reports(service: httpx.Client) -> list[dict[str, Any]]:
    """Fresh reports of a cell; those with hostile ids are so good that everybody selects them."""
    found: list[dict[str, Any]] = cell(CLIENTS)["candidates"]
    for item, client_id in zip(found, HOSTILE, strict=False):
        item |= {"client_id": client_id, "throughput_bps": 8e6, "compute_samples_per_s": 99}
    clients = [{"client_id": item["client_id"]} for item in found]
    assert service.post("/clients/batch", json={"clients": clients}).status_code == 201
    assert service.post("/reports/batch", json={"reports": found}).json()["stored"] == CLIENTS
    return found


def test_no_reports(operator_page: Page, service: httpx.Client) -> None:
    """The first of all: later tests bring reports."""
    operator_page.goto("/dashboard/what-if")
    expect(operator_page.locator("#no-reports")).to_contain_text(
        f"fedcs simulate --url {str(service.base_url).rstrip('/')} --rounds 2"
    )
    expect(operator_page.locator("#result")).to_be_hidden()


def test_moving_the_deadline_and_the_policy_says_what_plans_say(
    operator_page: Page, service: httpx.Client, reports: list[dict[str, Any]]
) -> None:
    operator_page.goto("/dashboard/what-if")
    expect(operator_page.locator("#asked")).to_have_text("6")
    operator_page.get_by_label("Share of clients asked (%)", exact=True).fill("100")
    expect(operator_page.locator("#candidates")).to_have_text(str(CLIENTS))
    _expect_plan(operator_page, _plan(service, reports))
    for deadline_s in (60, 300):
        slider = operator_page.get_by_label("Round deadline (s), slider")
        slider.fill(str(deadline_s))
        expect(operator_page.get_by_label("Round deadline (s)", exact=True)).to_have_value(str(deadline_s))
        _expect_plan(operator_page, _plan(service, reports, round_deadline_s=deadline_s))
    slider.press("ArrowRight")
    _expect_plan(operator_page, _plan(service, reports, round_deadline_s=301))
    operator_page.get_by_label("Round deadline (s)", exact=True).fill("5000.5")
    expect(slider).to_have_value("600")
    _expect_plan(operator_page, _plan(service, reports, round_deadline_s=5000.5))
    for policy in ("optimal", "fl"):
        operator_page.get_by_label("Policy").select_option(policy)
        plan = _plan(service, reports, round_deadline_s=5000.5, policy=policy)
        expect(operator_page.locator("#summary")).to_contain_text(
            f"{policy_name(policy)} selects {len(plan['slots'])} of"
        )
    expect(operator_page.locator("#selected")).to_have_text(str(CLIENTS))
    for plot in ("#schedule-plot", "#curve-plot"):
        expect(operator_page.locator(f"{plot} canvas").first).to_be_visible()


@pytest.mark.usefixtures("reports")
def test_what_is_wrong_is_said_at_its_field_until_it_is_right(operator_page: Page) -> None:
    operator_page.goto("/dashboard/what-if")
    selected = operator_page.locator("#selected")
    expect(selected).not_to_be_empty()
    before = selected.text_content() or ""
    for label, wrong, reason in (
        ("Round deadline (s)", "-5", "Round deadline must be more than 0 s"),
        ("Resource blocks", "1.5", "must be a whole number"),
        ("Model size (bytes)", "<b>big</b>", "must be a whole number"),
        ("Share of clients asked (%)", "200", "must be at most 100 %"),
    ):
        field = operator_page.get_by_label(label, exact=True)
        right = field.input_value()
        field.fill(wrong)
        expect(field).to_have_attribute("aria-invalid", "true")
        error = operator_page.locator(f"#{field.get_attribute('id')}-error")
        expect(error).to_contain_text(reason)
        expect(selected).to_have_text(before)
        expect(operator_page.locator("#result")).to_have_class("stale")
        field.fill(right)
        expect(error).to_be_hidden()
        expect(field).not_to_have_attribute("aria-invalid", "true")


def test_moves_in_quick_succession_ask_once_and_late_answers_are_dropped(
    operator_page: Page, service: httpx.Client, reports: list[dict[str, Any]]
) -> None:
    asked: list[str] = []
    held: list[Route] = []

    def hold_the_first(route: Route) -> None:
        asked.append(route.request.post_data or "")
        if len(asked) == 1:
            held.append(route)
        else:
            route.continue_()

    operator_page.goto("/dashboard/what-if")
    expect(operator_page.locator("#asked")).to_have_text("6")
    operator_page.route("**/dashboard/data/what-if", hold_the_first)
    operator_page.get_by_label("Share of clients asked (%)", exact=True).fill("50")
    _until(operator_page, held)
    operator_page.get_by_label("Share of clients asked (%)", exact=True).evaluate(
        """(field) => { for (const text of ["70", "80", "90", "100"]) {
             field.value = text; field.dispatchEvent(new Event("input")); } }"""
    )
    _expect_plan(operator_page, _plan(service, reports))
    assert [item.partition("request_fraction=")[2].partition("&")[0] for item in asked] == ["50", "100"]
    with operator_page.expect_response("**/dashboard/data/what-if"):
        held[0].continue_()
    operator_page.evaluate("() => new Promise(requestAnimationFrame)")
    expect(operator_page.locator("#asked")).to_have_text(str(CLIENTS))


@pytest.mark.usefixtures("reports")
def test_hostile_client_ids_are_text_also_on_a_phone(operator_page: Page) -> None:
    operator_page.set_viewport_size({"width": 390, "height": 800})
    operator_page.goto("/dashboard/what-if")
    operator_page.get_by_label("Share of clients asked (%)", exact=True).fill("100")
    operator_page.get_by_label("Policy").select_option("fl")
    expect(operator_page.locator("#schedule-table tr")).to_have_count(CLIENTS)
    operator_page.get_by_text("As a table").first.click()
    shown = operator_page.locator("#schedule-table bdi").all_text_contents()
    assert set(HOSTILE) <= set(shown)
    for link in operator_page.locator("#schedule-table a").all():
        path = link.get_attribute("href") or ""
        assert unquote(path.removeprefix("/dashboard/clients/")) == link.text_content()
    assert operator_page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    bars = operator_page.locator("#schedule-plot").bounding_box()
    assert bars is not None
    for row in range(12):  # a tooltip over each
        operator_page.mouse.move(bars["x"] + 80, bars["y"] + 10 + row * bars["height"] / 15)
    assert operator_page.evaluate("document.querySelectorAll('img').length") == 0


@pytest.mark.usefixtures("reports")
def test_when_the_service_is_away_that_is_said(operator_page: Page, watched: Watched) -> None:
    operator_page.goto("/dashboard/what-if")
    expect(operator_page.locator("#asked")).to_have_text("6")
    operator_page.route("**/dashboard/data/what-if", lambda route: route.abort())
    operator_page.get_by_label("Seed", exact=True).fill("5")
    expect(operator_page.locator("#failure")).to_be_visible()
    watched.expect_complaint(operator_page, "ERR_FAILED")
    operator_page.unroute("**/dashboard/data/what-if")
    operator_page.get_by_label("Seed", exact=True).fill("6")
    expect(operator_page.locator("#failure")).to_be_hidden()


def _plan(service: httpx.Client, reports: list[dict[str, Any]], **terms: object) -> dict[str, Any]:
    """Of all that have reported, in the order of the draw: of equals, the first is taken."""
    order = np.random.default_rng([0, 1]).choice(len(reports), len(reports), replace=False)
    candidates = [reports[place] for place in order.tolist()]
    request = {"round_deadline_s": 180, "model_size_bytes": 18_300_000, "candidates": candidates} | terms
    answer = service.post("/plans", content=json.dumps(request), headers={"Content-Type": "application/json"})
    assert answer.status_code == 200, answer.text
    plan: dict[str, Any] = answer.json()
    return plan


def _expect_plan(page: Page, plan: dict[str, Any]) -> None:
    expect(page.locator("#total")).to_have_text(f"{plan['total_s']:.1f} s")
    expect(page.locator("#selected")).to_have_text(str(len(plan["slots"])))
    expect(page.locator("#upper-bound")).to_have_text(str(plan["upper_bound"]))
    clients = page.locator("#schedule-table bdi")
    assert clients.all_text_contents() == [slot["client_id"] for slot in plan["slots"]]
    now = page.locator("#curve-table tr").nth(11).locator("td").nth(1)
    expect(now).to_have_text(str(len(plan["slots"])))


def _until(page: Page, something: list[Route]) -> None:
    for _ in range(200):
        if something:
            return
        page.wait_for_timeout(25)
    pytest.fail("it did not happen")
