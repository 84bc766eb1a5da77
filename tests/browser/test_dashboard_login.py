"""Logging in and out, as a person does it."""

import httpx
from playwright.sync_api import Page, expect

from tests.browser.conftest import Watched, give_session
from tests.integration.cell import create_task, enrol_one
from tests.running_service import OPERATOR_KEY


def test_only_an_operators_key_opens_the_dashboard(
    page: Page, service: httpx.Client, watched: Watched
) -> None:
    page.goto("/?page=2")
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
    expect(page.get_by_label("Operator key")).to_be_focused()

    _try_key(page, "not-a-key-of-anybody")
    expect(page.get_by_role("alert")).to_have_text("There is no such key, or it was revoked.")
    watched.expect_complaint(page, "401")

    _, client_key = enrol_one(service)
    _try_key(page, client_key)
    expect(page.get_by_role("alert")).to_contain_text("the key of a client")
    expect(page.get_by_label("Operator key")).to_have_value("")
    watched.expect_complaint(page, "403")

    _try_key(page, f" {OPERATOR_KEY} ")
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    assert page.url.endswith("/?page=2"), "it goes on to the page that was asked for"
    assert page.evaluate("document.cookie") == "", "scripts cannot reach the session"
    watched.assert_all_well(service)


def test_the_session_ends_with_a_click(operator_page: Page) -> None:
    operator_page.goto("/")
    operator_page.get_by_role("button", name="Log out").click()
    expect(operator_page.get_by_role("heading", name="Log in")).to_be_visible()
    assert operator_page.context.cookies() == []
    operator_page.goto("/")
    expect(operator_page.get_by_role("heading", name="Log in")).to_be_visible()


def test_a_page_that_is_open_says_when_its_session_has_ended(
    page: Page, service: httpx.Client, watched: Watched
) -> None:
    made = service.post("/keys", json={"scope": "read"}).json()
    give_session(page, service, key=made["api_key"])
    page.goto("/?page=1")
    state = page.get_by_role("status")
    expect(state).to_have_text("Live")
    service.delete(f"/keys/{made['key_id']}")
    create_task(service)  # with the next event the stream ends
    expect(state).to_have_text("The session has ended. Log in")
    watched.expect_complaint(page, "401")
    state.get_by_role("link", name="Log in").click()
    _try_key(page, OPERATOR_KEY)
    expect(page.get_by_role("status")).to_have_text("Live")
    assert page.url.endswith("/?page=1")
    watched.assert_all_well(service)


def test_it_can_be_used_with_the_keyboard_alone(page: Page, service: httpx.Client, watched: Watched) -> None:
    page.goto("/dashboard/login")
    expect(page.get_by_label("Operator key")).to_be_focused()
    page.keyboard.type(OPERATOR_KEY)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("main")).to_be_focused()
    watched.assert_all_well(service)


def _try_key(page: Page, key: str) -> None:
    page.get_by_label("Operator key").fill(key)
    page.get_by_role("button", name="Log in").click()
