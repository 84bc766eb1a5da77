"""The cell page as an operator uses it."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.integration.cell import create_task, enrol, fresh_name, open_round, report, report_all, set_model
from tests.running_service import running_service

HOSTILE = [
    "<script>alert('client')<\\script>",
    '"><img src=x onerror=alert(1)>',
    "{{7*7}}@client{safe}",
    "W" * 128,
    "\u202eright to left \u05d0\u05d1\u05d2",
]
NAME = "<img src=x onerror=alert(2)>"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with running_service(tmp_path_factory.mktemp("cell")) as client:
        yield client


@pytest.fixture(scope="module")
def hostile_task(service: httpx.Client) -> dict[str, Any]:
    """A task with a hostile name and a round for clients with hostile ids."""
    labels = {"cell": fresh_name()}
    clients = [{"client_id": item, "labels": labels} for item in HOSTILE]
    assert service.post("/clients/batch", json={"clients": clients}).status_code == 201
    for number, client_id in enumerate(HOSTILE):
        report(service, client_id, throughput_bps=10 ** (6 + number / 4))
    return _round_of_new_task(service, labels, name=NAME)


def test_no_clients_then_no_reports_then_no_round(operator_page: Page, service: httpx.Client) -> None:
    """The first of all: later tests bring clients."""
    command = f"fedcs simulate --url {str(service.base_url).rstrip('/')} --rounds 2"
    operator_page.goto("/dashboard/cell")
    expect(operator_page.locator("#no-clients")).to_contain_text(command)
    expect(operator_page.locator("#no-reports")).to_be_hidden()
    expect(operator_page.locator("#cell")).to_be_hidden()
    (client_id,) = enrol(service)  # an event tells of it
    expect(operator_page.locator("#no-reports")).to_contain_text(command)
    expect(operator_page.locator("#no-clients")).to_be_hidden()
    report(service, client_id)
    operator_page.reload()
    expect(operator_page.locator("#map-summary")).to_have_text(
        "1 client with a report; there is no round yet."
    )
    expect(operator_page.locator("#no-rounds")).to_be_visible()
    expect(operator_page.locator("#fairness")).to_be_hidden()


def test_the_map_the_distributions_and_fairness_follow_the_rounds(
    operator_page: Page, service: httpx.Client
) -> None:
    labels = {"cell": fresh_name()}
    fast, slow = enrol(service, 3, labels), enrol(service, 2, labels)
    report_all(service, list(fast), throughput_bps=4e6)
    report_all(service, list(slow), throughput_bps=1e4)
    task = _round_of_new_task(service, labels, name="follow", model_size_bytes=10**6)
    operator_page.goto("/dashboard/cell")
    summary = operator_page.locator("#map-summary")
    expect(summary).to_contain_text("3 of them selected in round 1 of follow (scheduled).")
    expect(summary.get_by_role("link")).to_have_attribute("href", f"/dashboard/rounds/{task['round_id']}")
    expect(
        operator_page.get_by_text("Distance estimated from throughput; direction is arbitrary.")
    ).to_be_visible()
    expect(operator_page.locator("#jain")).to_have_text("0.600")
    expect(operator_page.locator("#never")).to_have_text("2")
    expect(operator_page.locator("#most-selected bdi").first).to_have_text(next(iter(fast)))
    expect(operator_page.locator("#least-selected tr").first).to_have_text(f"{next(iter(slow))}0")
    for plot in ("map", "throughput_mbps", "compute_samples_per_s", "data_samples", "times"):
        expect(operator_page.locator(f"#{plot}-plot canvas").first).to_be_visible()
    operator_page.locator("details", has=operator_page.locator("#times-table")).locator("summary").click()
    rows = operator_page.locator("#times-table tr")
    expect(rows).to_have_text(["002", "113"])
    operator_page.locator("details", has=operator_page.locator("#data_samples-table")).locator(
        "summary"
    ).click()
    counted = operator_page.locator("#data_samples-table td:last-child").all_text_contents()
    assert sum(map(int, counted)) == 6, "all have 200 samples"

    report_all(service, list(slow), throughput_bps=4e6)
    service.post(f"/rounds/{task['round_id']}/close")
    open_round(service, task["task_id"])
    expect(summary).to_contain_text("5 of them selected in round 2 of follow (scheduled).")
    expect(operator_page.locator("#jain")).to_have_text(f"{8**2 / (5 * (3 * 4 + 2)):.3f}")
    expect(rows).to_have_text(["000", "112", "223"])


def test_another_task_can_be_chosen(
    operator_page: Page, service: httpx.Client, hostile_task: dict[str, Any]
) -> None:
    labels = {"cell": fresh_name()}
    report_all(service, list(enrol(service, 2, labels)))
    _round_of_new_task(service, labels, name="newest")
    operator_page.goto("/dashboard/cell")
    summary = operator_page.locator("#map-summary")
    expect(summary).to_contain_text("2 of them selected in round 1 of newest")
    operator_page.get_by_label("Selected by").select_option(hostile_task["task_id"])
    expect(summary).to_contain_text(f"{len(HOSTILE)} of them selected in round 1 of {NAME}")
    expect(operator_page.locator("#most-selected bdi")).to_have_text(HOSTILE)
    operator_page.reload()
    expect(operator_page.get_by_label("Selected by")).to_have_value(hostile_task["task_id"])
    expect(summary).to_contain_text(f"round 1 of {NAME}")
    operator_page.get_by_label("Selected by").select_option("")
    expect(summary).to_contain_text("of newest")
    assert operator_page.url.endswith("/dashboard/cell")


def test_a_client_of_the_map_and_of_the_tables_leads_to_its_page(
    operator_page: Page, hostile_task: dict[str, Any]
) -> None:
    path = f"/dashboard/cell?task_id={hostile_task['task_id']}"
    for table in ("most", "least"):
        operator_page.goto(path)
        link = operator_page.locator(f"#{table}-selected a").first
        client_id = link.inner_text()
        link.click()
        expect(operator_page.get_by_role("heading", level=1)).to_have_text(client_id)
    operator_page.goto(path)
    expect(operator_page.locator("#map-plot canvas").first).to_be_visible()
    place = operator_page.locator("#map-plot").evaluate(_FASTEST_CLIENT)
    operator_page.locator("#map-plot").click(position=place)
    expect(operator_page.get_by_role("heading", level=1)).to_have_text(HOSTILE[-1])


_FASTEST_CLIENT = """(element) => {
  const drawn = (view) => view.model.renderers?.find(({ glyph }) => glyph.marker?.value === "diamond");
  const view = [...Bokeh.index.roots].find(drawn);
  const { x, y, mbps } = drawn(view).data_source.data;
  const row = mbps.indexOf(Math.max(...mbps));
  const [inner, outer] = [view.el, element].map((box) => box.getBoundingClientRect());
  return {
    x: inner.left - outer.left + view.frame.x_scale.compute(x[row]),
    y: inner.top - outer.top + view.frame.y_scale.compute(y[row]),
  };
}"""
"""Where on the map it is, in pixels from the corner."""


def test_hostile_ids_are_text_also_on_a_phone_in_the_dark(
    operator_page: Page, hostile_task: dict[str, Any]
) -> None:
    operator_page.emulate_media(color_scheme="dark")
    operator_page.set_viewport_size({"width": 390, "height": 800})
    operator_page.goto(f"/dashboard/cell?task_id={hostile_task['task_id']}")
    expect(operator_page.locator("#most-selected bdi")).to_have_text(HOSTILE)
    drawn = operator_page.locator("#map-plot canvas").first
    expect(drawn).to_be_visible()
    assert operator_page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    box = operator_page.locator("#map-plot").bounding_box()
    assert box is not None
    for row in range(5, 25):  # tooltips on the way
        operator_page.mouse.move(box["x"] + box["width"] / 2, box["y"] + row * box["height"] / 30, steps=3)
    assert operator_page.evaluate("document.querySelectorAll('img').length") == 0
    operator_page.emulate_media(color_scheme="light")
    expect(drawn).to_be_visible()


def _round_of_new_task(service: httpx.Client, labels: dict[str, str], **terms: object) -> dict[str, Any]:
    task = create_task(service, labels=labels, **terms)
    set_model(service, task["task_id"])
    return open_round(service, task["task_id"])


def test_the_block_grid_shows_what_is_held_and_follows_the_rounds(
    operator_page: Page, service: httpx.Client
) -> None:
    service.post("/cells", json={"cell_id": "grid", "resource_blocks": 20}).raise_for_status()
    body = {"clients": [{"client_id": "in-grid", "cell_id": "grid"}]}
    service.post("/clients/batch", json=body).raise_for_status()
    report(service, "in-grid")
    task = create_task(service, name=NAME, clock="wall", cells=["grid"])
    set_model(service, task["task_id"])
    operator_page.goto("/dashboard/cell")
    expect(operator_page.locator("#blocks")).to_be_hidden()
    operator_page.get_by_label("Cell", exact=True).select_option("grid")
    summary = operator_page.locator("#blocks-summary")
    expect(summary).to_have_text("0 of 20 blocks are held now.")
    opened = open_round(service, task["task_id"])  # an event tells of it
    expect(summary).to_have_text(f"10 of 20 blocks are held now: 0 to 9 by round 1 of {NAME}.")
    expect(operator_page.locator("#blocks-plot canvas").first).to_be_visible()
    expect(operator_page.locator("#blocks-table")).to_contain_text("held now")
    service.post(f"/rounds/{opened['round_id']}/close").raise_for_status()
    expect(summary).to_have_text("0 of 20 blocks are held now.")
    operator_page.goto("/")
    expect(operator_page.locator("#cells")).to_contain_text("0 of 20")
    operator_page.get_by_role("link", name="grid", exact=True).click()
    expect(summary).to_have_text("0 of 20 blocks are held now.")
