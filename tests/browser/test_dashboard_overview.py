"""The overview as an operator uses it."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from sqlalchemy import update

from services.domain.tasks import Evaluation
from services.storage.database import Database
from services.storage.model_store import Blob
from services.storage.tables import jobs
from tests.browser.conftest import Watched, give_session, watch
from tests.integration.cell import create_task, enrol, fresh_name, report_all, set_model
from tests.running_service import running_service

HOSTILE = [
    "<script>alert('name')</script>",
    '"><img src=x onerror=alert(1)>',
    "{{7*7}}{% raw %}",
    "' onmouseover='alert(2)",
    "W" * 128,
    "\u202eright to left \u05d0\u05d1\u05d2",
]


def test_start_a_task_and_cancel_it(operator_page: Page, service: httpx.Client) -> None:
    name = fresh_name("started")
    operator_page.goto("/")
    operator_page.get_by_role("link", name="New task").click()
    operator_page.get_by_label("Name", exact=True).fill(name)
    operator_page.get_by_label("Policy").select_option("fedlim")
    operator_page.get_by_label("Round deadline (s)", exact=True).fill("90.5")
    operator_page.get_by_label("Share of clients asked (%)").fill("41")
    operator_page.get_by_label("Labels").fill("vehicle=bus, shift=night")
    operator_page.get_by_label("Update encoding").select_option("int8")
    operator_page.get_by_label("Deadline mode").select_option("adaptive")
    operator_page.get_by_label("Aggregation", exact=True).select_option("uniform")
    weight_cap = operator_page.locator("#task-aggregation\\.weighted\\.weight_cap_factor")
    expect(weight_cap).to_be_hidden()
    operator_page.get_by_label("Aggregation", exact=True).select_option("weighted")
    weight_cap.fill("2.5")
    operator_page.get_by_label("default", exact=True).check()
    operator_page.get_by_label("Open the next round automatically").check()
    operator_page.get_by_role("button", name="Start the task").click()
    expect(operator_page.get_by_role("heading", level=1)).to_have_text(name)
    task = service.get(f"/tasks/{operator_page.url.rpartition('/')[2]}").json()
    expected = {
        "policy": "fedlim",
        "round_deadline_s": 90.5,
        "request_fraction": 0.41,
        "labels": {"vehicle": "bus", "shift": "night"},
        "update_encoding": "int8",
        "deadline_mode": "adaptive",
        "aggregation_parameters": {"weight_cap_factor": 2.5},
        "cells": ["default"],
        "auto_advance": True,
    }
    assert {field: task[field] for field in expected} == expected

    operator_page.get_by_role("link", name="Tasks").first.click()
    operator_page.get_by_label("Name or id").fill(name.upper())
    operator_page.get_by_label("State").select_option("initializing")
    operator_page.get_by_role("button", name="Apply").click()
    expect(operator_page.locator("#tasks tbody tr")).to_have_count(1)
    row = _row(operator_page, name)
    expect(row).to_contain_text("Random within deadline (FedLim)")
    row.get_by_text("Cancel…").click()
    row.get_by_role("button", name="Cancel the task").click()
    expect(operator_page.get_by_text("No task here")).to_be_visible()  # none is initializing any more
    operator_page.get_by_role("link", name="Show all").click()
    expect(_row(operator_page, name)).to_contain_text("cancelled")
    expect(_row(operator_page, name).get_by_role("button")).to_have_count(0)


def test_what_is_wrong_is_said_at_its_field_and_what_was_entered_is_kept(
    operator_page: Page, watched: Watched
) -> None:
    operator_page.goto("/dashboard/tasks/new")
    entered = {
        "Name": HOSTILE[1],
        "Round deadline (s)": "0",
        "Share of clients asked (%)": "many",
        "Resource blocks": "1.5",
    }
    for label, value in entered.items():
        operator_page.get_by_label(label, exact=True).fill(value)
    operator_page.get_by_role("button", name="Start the task").click()
    watched.expect_complaint(operator_page, "422")
    for label, value in entered.items():
        expect(operator_page.get_by_label(label, exact=True)).to_have_value(value)
    for label, reason in (
        ("Round deadline (s)", "Round deadline must be more than 0 s"),
        ("Share of clients asked (%)", "Share of clients asked must be a number"),
        ("Resource blocks", "Resource blocks must be a whole number"),
    ):
        field = operator_page.get_by_label(label, exact=True)
        expect(field).to_have_attribute("aria-invalid", "true")
        described_by = field.get_attribute("aria-describedby")
        expect(operator_page.locator(f"#{described_by}")).to_have_text(reason)
    expect(operator_page.get_by_label("Name", exact=True)).not_to_have_attribute("aria-invalid", "true")

    operator_page.get_by_label("Round deadline (s)", exact=True).fill("5")
    operator_page.get_by_label("Share of clients asked (%)").fill("100")
    operator_page.get_by_label("Resource blocks", exact=True).fill("1")
    operator_page.get_by_label("End at accuracy (%)").fill("90")
    operator_page.get_by_role("button", name="Start the task").click()
    expect(operator_page.locator("#task-target_accuracy-error")).to_contain_text("Without a dataset")
    watched.expect_complaint(operator_page, "422")


def test_rows_follow_what_happens(operator_page: Page, service: httpx.Client) -> None:
    used, other = (create_task(service, name=fresh_name()) for _ in range(2))
    operator_page.goto("/dashboard/tasks")
    expect(operator_page.get_by_role("status")).to_have_text("Live")
    _row(operator_page, used["name"]).get_by_text("Cancel…").click()

    service.post(f"/tasks/{used['task_id']}/cancel")
    service.post(f"/tasks/{other['task_id']}/cancel")
    expect(_row(operator_page, used["name"])).to_contain_text("cancelled")
    expect(_row(operator_page, other["name"])).to_contain_text("cancelled")
    expect(_row(operator_page, used["name"]).locator("details[open]")).to_have_count(1)
    assert not _row(operator_page, other["name"]).locator("details").count()

    operator_page.goto("/")
    expect(operator_page.get_by_role("status")).to_have_text("Live")
    new = create_task(service, name=fresh_name())
    expect(_row(operator_page, new["name"])).to_contain_text("initializing")


def test_open_a_round(operator_page: Page, service: httpx.Client) -> None:
    labels = {"cell": fresh_name("cell")}
    report_all(service, list(enrol(service, 2, labels)))
    task = create_task(service, name=fresh_name(), labels=labels)
    operator_page.goto("/")
    row = _row(operator_page, task["name"])
    expect(row.get_by_role("button", name="Open a round")).to_have_count(0)
    set_model(service, task["task_id"])
    expect(row).to_contain_text("idle: open a round")
    row.get_by_role("button", name="Open a round").click()
    expect(row.get_by_role("link", name="Round 1")).to_be_visible()
    expect(row).to_contain_text("0 of 2 updates")
    expect(row.get_by_role("button", name="Open a round")).to_have_count(0)


def test_a_round_that_cannot_be_opened_is_explained(
    operator_page: Page, service: httpx.Client, watched: Watched
) -> None:
    task = create_task(service, name=fresh_name())
    set_model(service, task["task_id"])
    operator_page.route("**/dashboard/events", lambda route: route.abort())  # so that the page gets old
    operator_page.goto("/")
    button = _row(operator_page, task["name"]).get_by_role("button", name="Open a round")
    expect(button).to_be_visible()
    service.post(f"/tasks/{task['task_id']}/cancel")
    button.click()
    expect(operator_page.get_by_role("alert")).to_have_text("The task is cancelled.")
    watched.expect_complaint(operator_page, "409")
    watched.expect_complaint(operator_page, "ERR_FAILED")
    operator_page.get_by_role("link", name="Back to the overview").click()
    expect(operator_page.get_by_role("heading", name="Overview")).to_be_visible()
    watched.complaints = [complaint for complaint in watched.complaints if "ERR_FAILED" not in complaint]


def test_hostile_names_are_text_also_on_a_phone(operator_page: Page, service: httpx.Client) -> None:
    operator_page.set_viewport_size({"width": 390, "height": 800})
    early, late = HOSTILE[:3], HOSTILE[3:]
    tasks = [create_task(service, name=name) for name in early]
    operator_page.goto("/")
    expect(operator_page.get_by_role("status")).to_have_text("Live")
    tasks += [create_task(service, name=name) for name in late]  # these come through the script
    for task in tasks:
        row = operator_page.locator(f"#{task['task_id']}")
        expect(row.locator(".name")).to_have_text(task["name"])
    assert operator_page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_key_that_may_look_only_sees_no_buttons(
    page: Page, service: httpx.Client, watched: Watched
) -> None:
    task = create_task(service, name=fresh_name())
    key = service.post("/keys", json={"scope": "read"}).json()["api_key"]
    give_session(page, service, key=key)
    page.goto("/")
    expect(_row(page, task["name"])).to_be_visible()
    expect(page.get_by_text("This key is read-only.")).to_be_visible()
    expect(page.get_by_role("main").locator("form")).to_have_count(0)
    expect(page.get_by_role("link", name="Keys")).to_have_count(0)
    watched.assert_all_well(service)


@pytest.fixture
def own_service(tmp_path: Path) -> Iterator[httpx.Client]:
    with running_service(tmp_path) as client:
        yield client


def test_a_new_service_and_then_many_tasks(
    browser: Browser, own_service: httpx.Client, tmp_path: Path, watched: Watched
) -> None:
    with browser.new_context(base_url=str(own_service.base_url)) as context:
        page = context.new_page()
        watch(page, watched)
        give_session(page, own_service)
        page.goto("/")
        expect(page.locator("#tasks .empty")).to_contain_text(
            f"fedcs simulate --url {own_service.base_url} --rounds 2".replace("/ ", " ")
        )
        expect(page.locator("#service .empty")).to_contain_text("No client is enrolled")
        expect(page.locator("#health-database")).to_contain_text("ok")
        expect(page.locator("#health-broker")).to_contain_text("not set up")
        expect(page.locator("#health-workers")).to_contain_text("nothing to do")
        expect(page.locator("#alerts")).to_contain_text("Job queue: not set up")

        report_all(own_service, list(enrol(own_service, 3))[:2])
        oldest = create_task(own_service, name="oldest", dataset="generated")
        _evaluate(tmp_path, oldest["task_id"], (0.1, 0.4, 0.55))
        for _ in range(20):
            create_task(own_service)
        expect(page.locator("#clients")).to_have_text("3")  # nobody tells of it
        expect(page.locator("#fresh-clients")).to_have_text("2")
        expect(page.locator("#health-workers")).to_contain_text("21 waiting")
        expect(page.locator("#tasks tbody tr")).to_have_count(8)
        page.get_by_role("link", name="All 21 tasks").click()
        expect(page.locator("#tasks tbody tr")).to_have_count(20)
        expect(page.get_by_text("Page 1 of 2")).to_be_visible()
        page.get_by_role("link", name="Next").click()
        expect(page.locator("#tasks tbody tr")).to_have_count(1)
        row = _row(page, "oldest")
        expect(row).to_contain_text("55.0 %")
        line = row.get_by_role("img", name="Accuracy from 10.0 % to 55.0 %").locator("polyline")
        expect(line).to_have_attribute("points", "2.0,23.6 60.0,16.4 118.0,12.8")
        own_service.post(f"/tasks/{oldest['task_id']}/cancel")
        expect(row).to_contain_text("cancelled")  # the second page follows too
        page.get_by_label("Sort by").select_option("activity")
        page.get_by_role("button", name="Apply").click()
        expect(page.locator("#tasks tbody tr").first).to_contain_text("oldest")

        page.goto("/")
        _let_jobs_wait(tmp_path)
        expect(page.locator("#health-workers .bad")).to_be_visible()
        expect(page.locator("#health-workers")).to_contain_text("start one with fedcs worker")
        expect(page.locator("#alerts .bad").first).to_contain_text("Workers: jobs: none under way")
    watched.assert_all_well(own_service)


def _evaluate(data_dir: Path, task_id: str, accuracies: tuple[float, ...]) -> None:
    """What workers would have written."""
    database = Database(f"sqlite:///{data_dir}/fedcs.sqlite")
    now = datetime.now(UTC)
    with database.unit_of_work() as uow:
        task = uow.tasks.get(task_id, lock=True)
        for version, accuracy in enumerate(accuracies):
            uow.models.put(task, version, Blob(f"{version:064x}", 1), now)
            uow.models.add_evaluation(task, Evaluation(version, accuracy, 1.0, 100, now))
        uow.tasks.change(task, model_version=len(accuracies) - 1)
        uow.commit()
    database.close()


def _let_jobs_wait(data_dir: Path) -> None:
    database = Database(f"sqlite:///{data_dir}/fedcs.sqlite")
    with database.transaction(writing=True) as connection, connection.begin():
        connection.execute(update(jobs).values(created_at=datetime.now(UTC) - timedelta(seconds=31)))
    database.close()


def _row(page: Page, name: str) -> Locator:
    return page.locator("#tasks tbody tr").filter(has_text=name)
