"""The API documentation as a person uses it: authorise, try an operation, read the answer."""

import json

import httpx
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import Watched
from tests.running_service import OPERATOR_KEY


def test_authorise_and_plan_a_round(page: Page, service: httpx.Client, watched: Watched) -> None:
    page.goto("/docs")
    page.get_by_role("button", name="Authorize").first.click()
    page.locator(".auth-container input").fill(OPERATOR_KEY)
    page.locator(".auth-btn-wrapper button.authorize").click()
    page.locator(".auth-btn-wrapper .btn-done").click()

    answer = _execute_plan(page)
    expect(answer.locator(".response-col_status")).to_contain_text("200")
    plan = json.loads(answer.locator(".response-col_description code").first.inner_text())
    assert [slot["client_id"] for slot in plan["slots"]] == ["c1"]
    assert plan["slots"][0]["time_slot_first"] == 40000
    assert plan["not_selected"][0]["reason"] == "DEADLINE"

    assert watched.complaints == []
    assert watched.requested
    assert all(url.startswith((str(service.base_url), "data:")) for url in watched.requested)


def test_without_a_key_the_answer_is_a_problem(page: Page) -> None:
    page.goto("/docs")
    answer = _execute_plan(page)
    expect(answer.locator(".response-col_status")).to_contain_text("401")
    expect(answer.locator(".response-col_description")).to_contain_text("UNAUTHENTICATED")


def _execute_plan(page: Page) -> Locator:
    """Send the example of ``POST /plans``; the row of the page with the answer."""
    operation = page.locator("#operations-planning-create_plan_plans_post")
    operation.locator(".opblock-summary-control").click()
    operation.get_by_role("button", name="Try it out").click()
    operation.get_by_role("button", name="Execute").click()
    return operation.locator(".live-responses-table .response")
