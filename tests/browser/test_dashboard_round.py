"""The page of a round as an operator watches it, with a real worker that aggregates."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import httpx
import numpy as np
import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from sqlalchemy import update

from services.storage.database import Database
from services.storage.tables import rounds
from tests.browser.conftest import Watched, give_session, watch
from tests.integration.cell import (
    as_client,
    create_task,
    enrol,
    fresh_name,
    make_model,
    open_round,
    report,
    report_all,
    set_model,
    started_round,
)
from tests.integration.rounds_setup import eventually, get_round, quick_round, upload_as
from tests.running_stack import Stack, running_stack

HOSTILE = [
    "<script>alert('id')<",
    '"><img src=x onerror=alert(1)>',
    "{{7*7}}{% raw %}",
    "$$\\frac{1}{2}$$",
    "\\[x\\]",
    "W" * 128,
    "\u202eright to left \u05d0\u05d1\u05d2",
    "&lt;b&gt;",
]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    options = ("--processes", "1", "--queues", "aggregate")
    with running_stack(tmp_path_factory.mktemp("stack"), *options) as running:
        yield running


@pytest.fixture(scope="module")
def service(stack: Stack) -> httpx.Client:
    return stack.service


def test_watch_a_round_from_its_first_upload_to_its_model(operator_page: Page, service: httpx.Client) -> None:
    page = operator_page
    opened, keys = quick_round(service, 5, round_deadline_s=3000)
    round_id = opened["round_id"]
    good, second, third, poisoned, clumsy = [slot["client_id"] for slot in opened["schedule"]["slots"]]
    _visit(page, opened)
    expect(page.locator("#state")).to_contain_text("scheduled")
    expect(page.locator("#received")).to_have_text("0")
    _expect_bars(page, "upload, planned", 5)
    _expect_bars(page, "upload, actual", 0)
    assert _model(page, "now", "visible") is True
    began_s = _model(page, "now", "location")
    assert 0 <= began_s < 3000

    with as_client(service, keys[good]) as client:
        assert client.get(f"/rounds/{round_id}/model").status_code == 200
    chart = f"/dashboard/data/rounds/{round_id}"
    eventually(lambda: any(page.request.get(chart).json()["slots"]["model_fetched_s"]))
    _send(service, keys, round_id, good, 1)
    expect(page.locator("#state")).to_contain_text("collecting")
    expect(_row(page, good)).to_contain_text("received")
    expect(page.locator("#summary")).to_contain_text("1 received")
    _expect_bars(page, "upload, actual", 1)
    (slot,) = [
        item for item in get_round(service, round_id)["schedule"]["slots"] if item["client_id"] == good
    ]
    uploaded = _bars(page, "upload, actual")
    assert uploaded["client"] == [good]
    assert uploaded["right"] == [slot["elapsed_s"]]
    assert uploaded["left"][0] == pytest.approx(slot["elapsed_s"] - slot["actual_upload_s"])
    updated = _bars(page, "update, actual")
    assert 0 < updated["left"][0] < uploaded["right"][0]
    assert slot["actual_update_s"] == 0.001
    assert updated["right"][0] - updated["left"][0] == pytest.approx(0.001)
    assert _bars(page, "ends")["marker"] == ["circle"]

    refused = upload_as(service, keys[clumsy], round_id, clumsy, update=b"{}", fedcs_elapsed_s=None)
    assert refused.status_code == 422
    expect(_row(page, clumsy)).to_contain_text("It sent once what was no acceptable update")
    expect(_row(page, clumsy)).to_contain_text("pending")
    _until(page, f"{_MODEL}('now').location > {began_s}")

    for seed, client_id in enumerate((second, third), start=2):
        _send(service, keys, round_id, client_id, seed)
    far_away = make_model(4, weight=np.full((8, 4), 1e6, dtype=np.float32))
    sent = upload_as(service, keys[poisoned], round_id, poisoned, update=far_away, fedcs_elapsed_s=None)
    assert sent.status_code == 201
    _expect_bars(page, "upload, actual", 4)

    page.get_by_text("Close the round…").click()
    page.get_by_role("button", name="Close the round").click()
    state = page.locator("#state")
    expect(state).to_contain_text("Version 1 of the model was made from 3 updates")
    expect(_row(page, poisoned)).to_contain_text("discarded: outlier: the update changes the parameters by")
    expect(_row(page, clumsy)).to_contain_text("rejected")
    totals = {"received": "3", "discarded": "1", "rejected": "1", "missed": "0", "late": "0"}
    for name, number in totals.items():
        expect(page.locator(f"#{name}")).to_have_text(number)
    _until(page, f"!{_MODEL}('now').visible")
    assert sorted(_bars(page, "ends")["marker"]) == ["circle", "circle", "circle", "x"]
    expect(page.get_by_text("Close the round")).to_have_count(0)
    following = open_round(service, opened["task_id"])
    page.get_by_role("link", name="Round 2").click()
    expect(page.get_by_role("heading", name="Round 2")).to_be_visible()
    assert page.url.endswith(following["round_id"])


def test_the_chart_shows_the_schedule(operator_page: Page, service: httpx.Client) -> None:
    page = operator_page
    opened, keys = started_round(service, 3, selection_s=3.0, aggregation_s=5.0, clock="simulated")
    schedule = opened["schedule"]
    slots = schedule["slots"]
    first, last = slots[0], slots[-1]
    _visit(page, opened)
    _expect_bars(page, "upload, planned", 3)
    uploads_begin_s = 3.0 + schedule["distribution_s"]
    expected: dict[str, list[tuple[float, float]]] = {
        "selection, planned": [(0, 3.0)],
        "distribution, planned": [(3.0, uploads_begin_s)],
        "aggregation, planned": [(uploads_begin_s + schedule["elapsed_s"], schedule["total_s"])],
        "update, planned": [(uploads_begin_s, uploads_begin_s + slot["update_s"]) for slot in slots],
        "upload, planned": [(slot["window_start_s"], slot["window_end_s"]) for slot in slots],
        "update, actual": [],
        "upload, actual": [],
    }
    for name, spans in expected.items():
        bars = _bars(page, name)
        assert bars["left"] == pytest.approx([left for left, _ in spans]), name
        assert bars["right"] == pytest.approx([right for _, right in spans]), name
    assert _bars(page, "upload, planned")["client"] == [slot["client_id"] for slot in slots]
    assert _model(page, "deadline", "location") == 180
    assert _model(page, "now", "visible") is False, "a simulated round has no now"
    expect(page.locator("#summary")).to_contain_text("3 of 3 clients that were asked have a slot")

    times = {"fedcs_update_s": "21.5", "fedcs_upload_s": "0.75"}
    _upload_at(service, keys, opened, first, "30.25", 201, **times)
    _upload_at(service, keys, opened, last, "175.5", 409)
    _expect_bars(page, "ends", 2)
    assert _bars(page, "update, actual")["left"] == pytest.approx([uploads_begin_s])
    assert _bars(page, "update, actual")["right"] == pytest.approx([uploads_begin_s + 21.5])
    assert _bars(page, "upload, actual")["left"] == [29.5]
    assert _bars(page, "upload, actual")["right"] == [30.25]
    assert _bars(page, "ends")["x"] == [30.25, 175.5]
    assert _bars(page, "ends")["marker"] == ["circle", "triangle"]
    expect(_row(page, last["client_id"])).to_contain_text("Its update came at 2 min 56 s, too late.")

    page.emulate_media(color_scheme="dark")
    _until(page, f"Bokeh.documents.length > 1 && {_MODEL}('ends').data_source.data.x.length == 2")
    page.locator("#gantt canvas").first.wait_for()


def test_a_round_that_waits_for_reports(operator_page: Page, stack: Stack) -> None:
    page, service = operator_page, stack.service
    labels = {"cell": fresh_name("cell")}
    answering, silent = enrol(service, 2, labels)
    task = create_task(service, labels=labels, report_window_s=3600)
    set_model(service, task["task_id"])
    opened = open_round(service, task["task_id"])
    _visit(page, opened)
    expect(page.locator("#no-chart")).to_contain_text("No schedule yet. Reports are awaited until 20")
    expect(page.locator("#gantt")).to_be_hidden()
    expect(_row(page, silent)).to_contain_text("asked")
    expect(page.get_by_text("Close the round")).to_have_count(0)

    report(service, answering)
    _end_window(stack, opened["round_id"])
    _expect_bars(page, "upload, planned", 1)
    expect(page.locator("#gantt")).to_be_visible()
    expect(page.locator("#no-chart")).to_have_text("")
    expect(_row(page, answering)).to_contain_text("pending")
    expect(_row(page, silent)).to_contain_text("no report")
    expect(page.get_by_text("Close the round…")).to_be_visible()


def test_a_round_that_failed_and_one_that_does_not_exist(
    operator_page: Page, service: httpx.Client, watched: Watched
) -> None:
    page = operator_page
    labels = {"cell": fresh_name("cell")}
    (client_id,) = enrol(service, 1, labels)
    report(service, client_id, throughput_bps=1_000)
    task = create_task(service, labels=labels)
    set_model(service, task["task_id"])
    _visit(page, open_round(service, task["task_id"]))
    expect(page.locator("#state")).to_contain_text("failed")
    expect(page.locator("#state")).to_contain_text("Too few clients could be selected")
    expect(page.locator("#no-chart")).to_contain_text("No client has a slot in this round.")
    expect(page.locator("#gantt")).to_be_hidden()
    expect(_row(page, client_id)).to_contain_text("Too slow: would not finish before the deadline. It adds")

    page.goto(f"/dashboard/tasks/{task['task_id']}")
    expect(page.locator("#rounds tbody")).to_contain_text("too few clients")

    page.goto("/dashboard/rounds/round-0000000000000000")
    expect(page.get_by_role("heading", name="Not Found")).to_be_visible()
    watched.expect_complaint(page, "404")


def test_sort_and_filter_with_the_keyboard(operator_page: Page, service: httpx.Client) -> None:
    page = operator_page
    labels = {"cell": fresh_name("cell")}
    slow, quick, mute, quicker = enrol(service, 4, labels)
    report(service, slow, throughput_bps=1_000)
    report(service, quick, throughput_bps=9_000_000)
    report(service, quicker, throughput_bps=10_000_000)
    task = create_task(service, labels=labels)
    set_model(service, task["task_id"])
    opened = open_round(service, task["task_id"])
    _visit(page, opened)
    page.get_by_label("report", exact=True).check()
    page.get_by_role("button", name="Show", exact=True).click()
    head = page.get_by_role("columnheader", name="Throughput (Mbit/s)")
    head.get_by_role("button").focus()
    page.keyboard.press("Enter")
    expect(head).to_have_attribute("aria-sort", "ascending")
    assert _clients(page) == [slow, quick, quicker, mute]
    page.keyboard.press("Space")
    expect(head).to_have_attribute("aria-sort", "descending")
    assert _clients(page) == [quicker, quick, slow, mute], "nothing comes last, whichever way"
    service.post(f"/rounds/{opened['round_id']}/close")
    expect(_row(page, quick)).to_contain_text("missed")
    assert _clients(page) == [quicker, quick, slow, mute], "what is renewed stays sorted"
    page.get_by_role("columnheader", name="Client").get_by_role("button").click()
    expect(head).not_to_have_attribute("aria-sort", "descending")
    assert _clients(page) == sorted([slow, quick, mute, quicker])

    page.get_by_role("link", name="missed 2").click()
    expect(page.locator("#rows-body tr")).to_have_count(2)
    expect(page.get_by_role("link", name="missed 2")).to_have_attribute("aria-current", "true")
    expect(page.locator("#rows-caption")).to_contain_text("2 clients with the outcome missed")
    page.get_by_role("link", name="all 4").click()
    expect(page.locator("#rows-body tr")).to_have_count(4)


def test_hostile_ids_are_text_also_on_a_phone(operator_page: Page, service: httpx.Client) -> None:
    page = operator_page
    page.set_viewport_size({"width": 390, "height": 800})
    labels = {"cell": fresh_name("cell")}
    asked = [{"client_id": name, "labels": labels} for name in HOSTILE]
    assert service.post("/clients/batch", json={"clients": asked}).status_code == 201
    report_all(service, HOSTILE)
    task = create_task(service, name=HOSTILE[1], labels=labels, round_deadline_s=30)
    set_model(service, task["task_id"])
    opened = open_round(service, task["task_id"])
    _visit(page, opened)
    _expect_bars(page, "upload, planned", len(HOSTILE))
    assert sorted(_clients(page)) == sorted(HOSTILE)
    expect(page.get_by_role("link", name=HOSTILE[1], exact=True).first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")

    assert _told_by_the_chart(page) == set(HOSTILE)
    service.post(f"/rounds/{opened['round_id']}/close")
    expect(page.locator("#missed")).to_have_text(str(len(HOSTILE)))
    assert sorted(_clients(page)) == sorted(HOSTILE), "also as the script renews them"


def test_without_scripts_a_round_can_be_read_and_closed(
    browser: Browser, service: httpx.Client, watched: Watched
) -> None:
    opened, _ = started_round(service, 2)
    with browser.new_context(base_url=str(service.base_url), java_script_enabled=False) as context:
        page = context.new_page()
        watch(page, watched)
        give_session(page, service)
        page.goto(f"/dashboard/rounds/{opened['round_id']}")
        expect(page.locator("#rows-body tr")).to_have_count(2)
        button = page.get_by_role("button", name="Close the round")
        expect(button).to_be_hidden()
        page.get_by_text("Close the round…").click()
        button.click()
        expect(page.locator("#state")).to_contain_text("Too few updates could be used")
    watched.assert_all_well(service)


_MODEL = "(name => Bokeh.documents.at(-1)?.get_model_by_name(name))"


def _visit(page: Page, opened: dict[str, Any]) -> None:
    page.goto(f"/dashboard/rounds/{opened['round_id']}")
    expect(page.get_by_role("status")).to_have_text("Live")


def _row(page: Page, client_id: str) -> Locator:
    return page.locator("#rows-body tr").filter(has_text=client_id)


def _clients(page: Page) -> list[str]:
    return page.locator("#rows-body th").all_inner_texts()


def _model(page: Page, name: str, field: str) -> Any:
    return page.evaluate(f"{_MODEL}('{name}').{field}")


def _bars(page: Page, name: str) -> dict[str, list[Any]]:
    """What a part of the chart is drawn from."""
    columns: list[tuple[str, list[Any]]] = page.evaluate(
        f"Object.entries({_MODEL}('{name}').data_source.data).map(([name, values]) => [name, [...values]])"
    )
    return dict(columns)


def _expect_bars(page: Page, name: str, number: int) -> None:
    _until(page, f"Object.values({_MODEL}('{name}')?.data_source.data ?? {{}})[0]?.length === {number}")


def _until(page: Page, expression: str) -> None:
    """Playwright's own way of waiting evaluates texts in the page, which its policy forbids."""
    for _ in range(2400):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    pytest.fail(f"it did not come to this: {expression}")


def _told_by_the_chart(page: Page) -> set[str]:
    """The clients whose ids appear while the pointer goes down through the planned updates."""
    page.locator("#gantt").scroll_into_view_if_needed()
    box = page.locator("#gantt canvas").first.bounding_box()
    assert box is not None
    told: set[str] = set()
    for y in range(0, int(box["height"]), 4):
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + y)
        page.wait_for_timeout(20)
        print(
            page.locator("#gantt").inner_html()[:100], page.locator(".bk-tooltip-row-value").all_inner_texts()
        )
        told.update(page.locator(".bk-tooltip-row-value").all_inner_texts()[:1])
    return told


def _send(service: httpx.Client, keys: dict[str, str], round_id: str, client_id: str, seed: int) -> None:
    headers = {"fedcs_elapsed_s": None, "fedcs_update_s": "0.001"}
    sent = upload_as(service, keys[client_id], round_id, client_id, update=make_model(seed), **headers)
    assert sent.status_code == 201, sent.text


def _upload_at(
    service: httpx.Client,
    keys: dict[str, str],
    opened: dict[str, Any],
    slot: dict[str, Any],
    elapsed_s: str,
    status: int,
    **times: str,
) -> None:
    client_id = slot["client_id"]
    sent = upload_as(
        service, keys[client_id], opened["round_id"], client_id, fedcs_elapsed_s=elapsed_s, **times
    )
    assert sent.status_code == status, sent.text


def _end_window(stack: Stack, round_id: str) -> None:
    """As if an hour had passed; the service notices."""
    database = Database(f"sqlite:///{stack.directory}/fedcs.sqlite")
    with database.transaction(writing=True) as connection, connection.begin():
        connection.execute(
            update(rounds).where(rounds.c.round_id == round_id).values(window_ends_at=datetime.now(UTC))
        )
    database.close()
