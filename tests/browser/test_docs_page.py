"""The API documentation as a person uses it: authorise, try an operation, read the answer."""

import json
from typing import Any

import httpx
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import Watched
from tests.integration.cell import create_task, enrol, open_round, report, set_model
from tests.running_service import OPERATOR_KEY


def test_authorise_and_plan_a_round(page: Page, service: httpx.Client, watched: Watched) -> None:
    page.goto("/docs")
    _authorise(page)
    operation = _try_out(page, "#operations-planning-create_plan")
    plan = _answer(_execute(operation))
    assert [slot["client_id"] for slot in plan["slots"]] == ["c1"]
    assert plan["slots"][0]["time_slot_first"] == 40000
    assert plan["not_selected"][0]["reason"] == "DEADLINE"
    watched.assert_all_well(service)


def test_authorise_and_read_the_schedule_of_a_round(
    page: Page, service: httpx.Client, watched: Watched
) -> None:
    label = {"seen": "in-the-browser"}
    for client_id in enrol(service, 3, labels=label):
        report(service, client_id)
    task_id = create_task(service, labels=label, request_fraction=1, clock="simulated")["task_id"]
    set_model(service, task_id)
    opened = open_round(service, task_id)

    page.goto("/docs")
    _authorise(page)
    operation = _try_out(page, "#operations-rounds-get_schedule")
    operation.locator("tr[data-param-name=round_id] input").fill(opened["round_id"])
    assert _answer(_execute(operation)) == opened["schedule"]
    watched.assert_all_well(service)


def test_authorise_with_a_token_for_a_key(page: Page, service: httpx.Client, watched: Watched) -> None:
    page.goto("/docs")
    page.get_by_role("button", name="Authorize").first.click()
    box = page.locator(".auth-container").filter(has_text="OAuth2")
    box.get_by_label("client_id").fill("operator")
    box.get_by_label("client_secret").fill(OPERATOR_KEY)
    box.locator("button.authorize").click()
    expect(box.get_by_role("heading", name="Authorized")).to_be_visible()
    box.locator(".btn-done").click()
    operation = _try_out(page, "#operations-planning-create_plan")
    assert [slot["client_id"] for slot in _answer(_execute(operation))["slots"]] == ["c1"]
    watched.assert_all_well(service)


def test_without_a_key_the_answer_is_a_problem(page: Page) -> None:
    page.goto("/docs")
    row = _execute(_try_out(page, "#operations-planning-create_plan"))
    expect(row.locator(".response-col_status")).to_contain_text("401")
    expect(row.locator(".response-col_description")).to_contain_text("UNAUTHENTICATED")


def _authorise(page: Page) -> None:
    page.get_by_role("button", name="Authorize").first.click()
    box = page.locator(".auth-container").filter(has_text="ApiKey")
    box.locator("input").fill(OPERATOR_KEY)
    box.locator("button.authorize").click()
    box.locator(".btn-done").click()


def _try_out(page: Page, selector: str) -> Locator:
    """Open an operation, with its example filled in."""
    operation = page.locator(selector)
    operation.locator(".opblock-summary-control").click()
    operation.get_by_role("button", name="Try it out").click()
    return operation


def _execute(operation: Locator) -> Locator:
    """Send the request; the row of the page with the answer."""
    operation.get_by_role("button", name="Execute").click()
    return operation.locator(".live-responses-table .response")


def _answer(row: Locator) -> Any:
    expect(row.locator(".response-col_status")).to_contain_text("200")
    return json.loads(row.locator(".response-col_description code").first.inner_text())
