"""The overview as an operator uses it."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from sqlalchemy import update

from services.domain.evaluation import Evaluation
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


def test_start_a_task_and_cancel_it(operator_page: Page) -> None:
    name = fresh_name("started")
    operator_page.goto("/")
    _open_form(operator_page)
    operator_page.get_by_label("Name", exact=True).fill(name)
    operator_page.get_by_label("Policy").select_option("fedlim")
    operator_page.get_by_label("Round deadline (s)").fill("90.5")
    operator_page.get_by_label("open the next by itself").check()
    operator_page.get_by_role("button", name="Start the task").click()

    row = _row(operator_page, name)
    expect(row).to_contain_text("initializing")
    expect(row).to_contain_text("fedlim")
    assert operator_page.url.endswith(f"#{row.get_attribute('id')}")

    row.get_by_text("Cancel…").click()
    row.get_by_role("button", name="Cancel the task").click()
    expect(_row(operator_page, name)).to_contain_text("cancelled")
    expect(_row(operator_page, name).get_by_role("button")).to_have_count(0)


def test_what_is_wrong_is_said_at_its_field_and_what_was_entered_is_kept(
    operator_page: Page, watched: Watched
) -> None:
    operator_page.goto("/")
    _open_form(operator_page)
    entered = {
        "Name": HOSTILE[1],
        "Round deadline (s)": "-5",
        "Request fraction": "many",
        "Seed": "1.5",
    }
    for label, value in entered.items():
        operator_page.get_by_label(label, exact=True).fill(value)
    operator_page.get_by_role("button", name="Start the task").click()
    watched.expect_complaint(operator_page, "422")
    for label, value in entered.items():
        expect(operator_page.get_by_label(label, exact=True)).to_have_value(value)
    for label, reason in (
        ("Round deadline (s)", "greater than 0"),
        ("Request fraction", "valid number"),
        ("Seed", "valid integer"),
    ):
        field = operator_page.get_by_label(label, exact=True)
        expect(field).to_have_attribute("aria-invalid", "true")
        described_by = field.get_attribute("aria-describedby")
        expect(operator_page.locator(f"#{described_by}")).to_contain_text(reason)
    expect(operator_page.get_by_label("Name", exact=True)).not_to_have_attribute("aria-invalid", "true")

    operator_page.get_by_label("Round deadline (s)").fill("5")
    operator_page.get_by_label("Request fraction").fill("1")
    operator_page.get_by_label("Seed").fill("1")
    operator_page.get_by_label("Target accuracy").fill("0.9")
    operator_page.get_by_role("button", name="Start the task").click()
    expect(operator_page.locator("#task-target_accuracy-error")).to_contain_text("Without a dataset")
    watched.expect_complaint(operator_page, "422")


def test_rows_follow_what_happens(operator_page: Page, service: httpx.Client) -> None:
    used, other = (create_task(service, name=fresh_name()) for _ in range(2))
    operator_page.goto("/")
    expect(operator_page.get_by_role("status")).to_have_text("Live")
    _row(operator_page, used["name"]).get_by_text("Cancel…").click()

    service.post(f"/tasks/{used['task_id']}/cancel")
    service.post(f"/tasks/{other['task_id']}/cancel")
    expect(_row(operator_page, used["name"])).to_contain_text("cancelled")
    expect(_row(operator_page, other["name"])).to_contain_text("cancelled")
    expect(_row(operator_page, used["name"]).locator("details[open]")).to_have_count(1)
    assert not _row(operator_page, other["name"]).locator("details").count()

    operator_page.reload()
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
    watched.complaints = [one for one in watched.complaints if "ERR_FAILED" not in one]


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
    expect(page.get_by_text("This key may look only.")).to_be_visible()
    expect(page.get_by_role("main").locator("form")).to_have_count(0)
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
        expect(page.get_by_role("button", name="Start the task")).to_be_visible()

        report_all(own_service, list(enrol(own_service, 3))[:2])
        oldest = create_task(own_service, name="oldest", dataset="generated")
        _evaluate(tmp_path, oldest["task_id"], (0.1, 0.4, 0.55))
        for _ in range(20):
            create_task(own_service)
        expect(page.locator("#clients")).to_have_text("3", timeout=30_000)  # nobody tells of it
        expect(page.locator("#fresh-clients")).to_have_text("2")
        expect(page.locator("#health-workers")).to_contain_text("21 waiting")
        expect(page.locator("tbody tr")).to_have_count(20)
        expect(page.get_by_text("Page 1 of 2")).to_be_visible()
        page.get_by_role("link", name="Older").click()
        expect(page.locator("tbody tr")).to_have_count(1)
        row = _row(page, "oldest")
        expect(row).to_contain_text("55.0 %")
        line = row.get_by_role("img", name="Accuracy from 10.0 % to 55.0 %").locator("polyline")
        expect(line).to_have_attribute("points", "2.0,23.6 60.0,16.4 118.0,12.8")
        own_service.post(f"/tasks/{oldest['task_id']}/cancel")
        expect(row).to_contain_text("cancelled")  # the second page follows too

        _let_jobs_wait(tmp_path)
        expect(page.locator("#health-workers .bad")).to_be_visible(timeout=30_000)
        expect(page.locator("#health-workers")).to_contain_text("start one with fedcs worker")
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


def _open_form(page: Page) -> None:
    """It is open already while there is no task."""
    if not page.get_by_role("button", name="Start the task").is_visible():
        page.get_by_text("The terms of the task").click()


def _row(page: Page, name: str) -> Locator:
    return page.locator("tbody tr").filter(has_text=name)
