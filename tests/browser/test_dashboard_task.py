"""The page of a task as an operator uses it."""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import Watched
from tests.browser.test_dashboard_overview import HOSTILE
from tests.dashboard_tasks import finish_round, live_task, play_round, task_with_rounds
from tests.integration.cell import create_task, fresh_name, open_round, set_model
from tests.integration.rounds_setup import Site, site

# What the plots in a figure show: of each line and its markers the columns that Bokeh has drawn.
_DRAWN = """(id) => {
  const box = document.querySelector(`#${id} .plot`);
  const views = [...Bokeh.index].filter((view) => view.model.type === "Figure" && box.contains(view.el));
  if (views.length !== 1) return null;
  const [figure] = views.map((view) => view.model);
  return {
    figure: figure.id,
    label: [...figure.xaxis][0].axis_label,
    lines: figure.renderers.map(({ glyph, data_source }) => ({
      kind: glyph.type, x: [...data_source.data.x], y: [...data_source.data.y],
    })),
    thresholds: figure.center.filter(({ type }) => type === "Span").map(({ location }) => location),
  };
}"""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site("sqlite", tmp_path_factory.mktemp("data"), "") as running:
        yield running


@pytest.fixture(scope="module")
def service(here: Site) -> httpx.Client:
    return here.service


def test_compare_two_tasks(operator_page: Page, here: Site) -> None:
    fedcs = task_with_rounds(here, [0.3, 0.5, 0.8], name=fresh_name("fedcs"))
    fedlim = task_with_rounds(here, [0.2, 0.4, 0.5], name=fresh_name("fedlim"), policy="fedlim")
    for task in (fedcs, fedlim):
        here.service.post(f"/tasks/{task['task_id']}/cancel")
    operator_page.goto(f"/dashboard/tasks/{fedcs['task_id']}")
    expect(operator_page.get_by_role("heading", level=1)).to_have_text(fedcs["name"])
    expect(operator_page.locator("#task-state")).to_contain_text("cancelled")
    assert [line["y"] for line in _lines(operator_page, "accuracy", "Line")] == [[0.3, 0.5, 0.8]]

    operator_page.get_by_label(fedlim["name"]).check()
    operator_page.get_by_label("Threshold 1 (%)").fill("40")
    operator_page.get_by_label("Threshold 3 (%)").fill("90")
    operator_page.get_by_role("button", name="Compare").click()
    expect(operator_page.get_by_label(fedlim["name"])).to_be_checked()
    expect(_arrivals(operator_page, fedcs).locator("td.number")).to_have_text(
        ["80.0 %", "6.0 min round 2", "9.0 min round 3", "not yet"]
    )
    expect(_arrivals(operator_page, fedlim).locator("td.number")).to_have_text(
        ["50.0 %", "6.0 min round 2", "not yet", "not yet"]
    )
    lines = _lines(operator_page, "accuracy", "Line")
    assert [line["y"] for line in lines] == [[0.3, 0.5, 0.8], [0.2, 0.4, 0.5]]
    assert [line["x"] for line in lines] == [[3, 6, 9]] * 2
    drawn = _drawn(operator_page, "accuracy")
    assert drawn["thresholds"] == [0.4, 0.75, 0.9]
    stars = [(line["x"], line["y"]) for line in drawn["lines"][-2:]]
    assert stars == [([6, 9], [0.5, 0.8]), ([6], [0.4])]
    assert [line["y"] for line in _lines(operator_page, "loss", "Line")] == [
        [1.7, 1.5, 1.2],
        [1.8, 1.6, 1.5],
    ]
    assert [line["y"] for line in _lines(operator_page, "clients", "Line")] == [[6, 7, 5], [5, 4, 5]] * 2
    operator_page.get_by_role("link", name="Show this task alone").click()
    expect(operator_page.locator("#arrivals tbody tr")).to_have_count(1)


def test_switch_the_axis_with_the_keyboard(operator_page: Page, here: Site) -> None:
    task = task_with_rounds(here, [0.3, None, 0.5])
    operator_page.goto(f"/dashboard/tasks/{task['task_id']}")
    before = _drawn(operator_page, "accuracy")
    assert before["label"] == "elapsed minutes"
    assert [line["x"] for line in before["lines"]] == [[3, 9], [3, 9], [9]]
    requests: list[str] = []
    operator_page.on("request", lambda request: requests.append(request.url))
    operator_page.get_by_label("elapsed minutes").focus()
    operator_page.keyboard.press("ArrowRight")
    expect(operator_page.get_by_label("rounds", exact=True)).to_be_checked()
    after = _drawn(operator_page, "accuracy")
    assert (after["figure"], after["label"]) == (before["figure"], "round")
    assert [line["x"] for line in after["lines"]] == [[1, 3], [1, 3], [3]]
    assert _lines(operator_page, "clients", "Line")[0]["x"] == [1, 2, 3]
    operator_page.keyboard.press("ArrowLeft")
    assert _drawn(operator_page, "accuracy") == before
    assert [item for item in requests if "/dashboard/tasks/" in item] == [], "nothing was loaded anew"


def test_new_rounds_are_streamed_into_what_is_there(operator_page: Page, here: Site) -> None:
    other = task_with_rounds(here, [0.2])
    task, keys = live_task(here, name=fresh_name())
    operator_page.goto(f"/dashboard/tasks/{task['task_id']}?with={other['task_id']}&threshold=50")
    expect(operator_page.get_by_role("status")).to_have_text("Live")
    expect(operator_page.locator("#state .empty")).to_contain_text("No round yet")
    play_round(here, task["task_id"], keys, 0.4)
    expect(operator_page.locator("#newest-accuracy")).to_have_text("40.0 %")
    expect(operator_page.locator("#state .empty")).to_have_count(0)
    _wait_for(operator_page, "accuracy", 0, [0.4])
    first = _drawn(operator_page, "accuracy")

    operator_page.get_by_role("button", name="Open a round").click()
    expect(operator_page.locator("#current-round")).to_contain_text("Round 2")
    assert operator_page.url.endswith(f"?with={other['task_id']}&threshold=50")
    _wait_for(operator_page, "accuracy", 0, [0.4])
    first = _drawn(operator_page, "accuracy")
    (open_id,) = [
        round_["round_id"]
        for round_ in here.service.get("/rounds", params={"task_id": task["task_id"]}).json()
        if round_["number"] == 2
    ]
    finish_round(here, open_id, keys, 0.6)
    expect(operator_page.locator(f"#{open_id}")).to_contain_text("60.0 %")
    _wait_for(operator_page, "accuracy", 0, [0.4, 0.6])
    _wait_for(operator_page, "clients", 1, [2, 2])
    assert _drawn(operator_page, "accuracy")["figure"] == first["figure"]
    expect(_arrivals(operator_page, task).locator("td.number").last).to_have_text("6.0 min round 2")

    here.service.post(f"/tasks/{other['task_id']}/cancel")  # of those compared, too
    expect(_arrivals(operator_page, other)).to_contain_text("cancelled")
    operator_page.get_by_text("Cancel…").click()
    operator_page.get_by_role("button", name="Cancel the task").click()
    expect(operator_page.locator("#task-state")).to_contain_text("cancelled")
    expect(operator_page.get_by_role("button", name="Open a round")).to_have_count(0)


def test_there_is_no_plot_while_the_first_round_is_under_way(operator_page: Page, here: Site) -> None:
    task, _ = live_task(here, dataset=None)
    open_round(here.service, task["task_id"])
    operator_page.goto(f"/dashboard/tasks/{task['task_id']}")
    expect(operator_page.get_by_role("status")).to_have_text("Live")
    expect(operator_page.locator("#current-round")).to_contain_text("0 of 2 updates")
    expect(operator_page.get_by_text("no accuracy is known")).to_be_visible()
    expect(operator_page.locator("figure:visible")).to_have_count(0)


def test_hostile_names_are_text_also_on_a_phone(operator_page: Page, here: Site) -> None:
    names = [*HOSTILE[:5], "$$\\int x$$ " + HOSTILE[5]]
    tasks = [task_with_rounds(here, [0.3, 0.6], name=name, labels={"a": name}) for name in names]
    query = "&".join(f"with={task['task_id']}" for task in tasks[1:])
    operator_page.set_viewport_size({"width": 390, "height": 800})
    for own in tasks[:1], tasks[4:5], tasks[5:]:
        rest = f"?{query}" if own[0] is tasks[0] else ""
        operator_page.goto(f"/dashboard/tasks/{own[0]['task_id']}{rest}")
        expect(operator_page.get_by_role("heading", level=1)).to_have_text(own[0]["name"])
        _drawn(operator_page, "accuracy")
        operator_page.get_by_text("All settings of the task").click()
        expect(operator_page.locator(".terms")).to_contain_text(f"a: {own[0]['name']}".strip())
        assert operator_page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        if rest:
            names_shown = operator_page.locator("#arrivals .name")
            expect(names_shown).to_have_text([task["name"] for task in tasks])
            assert len(_lines(operator_page, "accuracy", "Line")) == len(tasks)


def test_it_turns_dark_and_goes_on(operator_page: Page, here: Site) -> None:
    task, keys = live_task(here)
    play_round(here, task["task_id"], keys, 0.4)
    operator_page.goto(f"/dashboard/tasks/{task['task_id']}")
    light = _drawn(operator_page, "accuracy")
    operator_page.emulate_media(color_scheme="dark")
    operator_page.wait_for_function(f"(old) => ({_DRAWN})('accuracy')?.figure !== old", arg=light["figure"])
    play_round(here, task["task_id"], keys, 0.6)
    _wait_for(operator_page, "accuracy", 0, [0.4, 0.6])


def test_finish_a_task_and_delete_it(operator_page: Page, here: Site) -> None:
    task, keys = live_task(here)
    play_round(here, task["task_id"], keys, 0.4)
    open_round(here.service, task["task_id"])
    operator_page.goto(f"/dashboard/tasks/{task['task_id']}")
    expect(operator_page.get_by_text("Delete…")).to_have_count(0)
    operator_page.get_by_text("Finish…").click()
    operator_page.get_by_role("button", name="Finish the task").click()
    expect(operator_page.locator("#task-state")).to_contain_text("An operator finished the task.")
    expect(operator_page.get_by_text("Finish…")).to_have_count(0)
    operator_page.get_by_text("Delete…").click()
    operator_page.get_by_role("button", name="Delete the task").click()
    expect(operator_page.get_by_role("heading", level=1)).to_have_text("Tasks")
    assert here.service.get(f"/tasks/{task['task_id']}").status_code == 404


def test_downloads(operator_page: Page, here: Site) -> None:
    task = task_with_rounds(here, [0.3])
    operator_page.goto(f"/dashboard/tasks/{task['task_id']}")
    for link, ending in (("data (CSV)", "-metrics.csv"), ("model (version 1)", "-v1.safetensors")):
        with operator_page.expect_download() as download:
            operator_page.get_by_role("link", name=f"Download the {link}").click()
        assert download.value.suggested_filename == f"{task['task_id']}{ending}"
        assert download.value.path().stat().st_size > 0


def test_a_task_without_rounds_and_none_at_all(operator_page: Page, here: Site, watched: Watched) -> None:
    task = create_task(here.service, name=fresh_name())
    set_model(here.service, task["task_id"])
    operator_page.goto("/dashboard/tasks")
    operator_page.get_by_role("link", name=task["name"], exact=True).click()
    expect(operator_page.locator("#state .empty")).to_contain_text(f'{{"task_id": "{task["task_id"]}"}}')
    expect(operator_page.locator("figure:visible")).to_have_count(0)
    operator_page.goto("/dashboard/tasks/no-such-task")
    expect(operator_page.get_by_role("alert")).to_contain_text("no-such-task")
    watched.expect_complaint(operator_page, "404")


def _drawn(page: Page, plot: str) -> dict[str, Any]:
    """What a plot shows, once it is drawn."""
    page.wait_for_function(f"(id) => ({_DRAWN})(id)?.lines.some(({{ x }}) => x.length)", arg=plot)
    drawn: dict[str, Any] = page.evaluate(_DRAWN, plot)
    return drawn


def _lines(page: Page, plot: str, kind: str) -> list[dict[str, Any]]:
    return [line for line in _drawn(page, plot)["lines"] if line["kind"] == kind]


def _wait_for(page: Page, plot: str, line: int, values: list[float]) -> None:
    """Until a line of a plot has these values."""
    page.wait_for_function(
        f"([id, line, values]) => JSON.stringify(({_DRAWN})(id)?.lines"
        "  .filter(({ kind }) => kind === 'Line')[line].y) === JSON.stringify(values)",
        arg=[plot, line, values],
    )


def _arrivals(page: Page, task: dict[str, Any]) -> Locator:
    return page.locator(f"#arrivals-{task['task_id']}")
