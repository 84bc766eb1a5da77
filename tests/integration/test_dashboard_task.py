"""The data, the files and the wrong sides of a task page, over real HTTP."""

import csv
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.dashboard_session import csrf_token, logged_in
from tests.dashboard_tasks import live_task, play_round, task_with_rounds
from tests.integration.cell import assert_problem, create_task, make_model, open_round, set_model, without_key
from tests.integration.rounds_setup import Site, get_round, site

COLUMNS = ["number", "elapsed_s", "accuracy", "loss", "asked", "selected", "received", "state"]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site("sqlite", tmp_path_factory.mktemp("data"), "") as running:
        yield running


@pytest.fixture(scope="module")
def operator(here: Site) -> Iterator[httpx.Client]:
    with logged_in(here.service) as client:
        yield client


def test_the_data_are_the_metrics_in_columns(here: Site, operator: httpx.Client) -> None:
    task, keys = live_task(here)
    task_id = task["task_id"]
    play_round(here, task_id, keys, 0.5)
    play_round(here, task_id, keys, 0.6)
    here.service.post(f"/rounds/{open_round(here.service, task_id)['round_id']}/close")  # it fails
    open_round(here.service, task_id)
    told = operator.get(f"/dashboard/data/tasks/{task_id}").json()
    metrics = here.service.get(f"/tasks/{task_id}/metrics").json()["rounds"]
    assert told.pop("evaluates") is True
    assert list(told) == COLUMNS
    assert told == {name: [item[name] for item in metrics] for name in COLUMNS}
    assert told["state"][:3] == ["aggregated", "aggregated", "failed"]
    assert told["accuracy"] == [0.5, 0.6, None, None]
    assert told["elapsed_s"] == [180, 360, metrics[2]["elapsed_s"], None]
    rest = operator.get(f"/dashboard/data/tasks/{task_id}?first=2").json()
    assert rest["number"] == [2, 3, 4]
    assert operator.get(f"/dashboard/data/tasks/{task_id}?first=9").json()["number"] == []


def test_elapsed_time_by_the_wall_clock(here: Site, operator: httpx.Client) -> None:
    task_id = task_with_rounds(here, [0.2, None], clock="wall", dataset="generated")["task_id"]
    told = operator.get(f"/dashboard/data/tasks/{task_id}").json()
    assert told["elapsed_s"] == [60, 120]
    assert told["accuracy"] == [0.2, None]


def test_a_table_of_arrivals(here: Site, operator: httpx.Client) -> None:
    quick = task_with_rounds(here, [0.3, 0.5, 0.45, 0.8], policy="fedcs")["task_id"]
    slow = task_with_rounds(here, [0.3, None, 0.499, 0.5], policy="fedlim")["task_id"]
    path = f"/dashboard/tasks/{quick}"
    assert _arrivals(operator.get(path, params={"with": slow}), quick) == ["6.0 min", "12.0 min"]
    both = operator.get(path, params={"with": [slow, quick], "threshold": ["75", "", "45", " 45"]})
    assert _arrivals(both, quick) == ["6.0 min", "12.0 min"]
    assert _arrivals(both, slow) == ["9.0 min", "not yet"]
    assert both.text.count('id="arrivals-') == 2, "itself is not another"
    with_target = task_with_rounds(here, [0.3, 0.6], target_accuracy=0.6)["task_id"]
    assert _arrivals(operator.get(f"/dashboard/tasks/{with_target}"), with_target) == ["6.0 min"]


def test_rounds_are_paged_newest_first(here: Site, operator: httpx.Client) -> None:
    task_id = task_with_rounds(here, [0.01 * n for n in range(45)])["task_id"]
    for page, numbers in ((1, range(45, 25, -1)), (3, range(5, 0, -1)), (9, ())):
        text = operator.get(f"/dashboard/tasks/{task_id}?page={page}").text
        assert re.findall(r'/dashboard/rounds/[\w-]+">Round (\d+)<', text) == [str(n) for n in numbers]
        assert f"Page {page} of 3" in text
    assert "This page is empty" in text
    second = operator.get(f"/dashboard/tasks/{task_id}?page=2&threshold=25").text
    assert f"/dashboard/tasks/{task_id}?page=3&amp;threshold=25#rounds" in second


def test_csv_of_all_that_is_compared(here: Site, operator: httpx.Client) -> None:
    names = ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(1)", "  =1", "\uff1d1", 'a "quoted", name']
    first, *others = [task_with_rounds(here, [0.25, None], name=name)["task_id"] for name in names[:6]]
    plain = task_with_rounds(here, [0.25], name=names[6])["task_id"]
    answer = operator.get(f"/dashboard/tasks/{first}/metrics.csv", params={"with": others})
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    assert answer.headers["content-disposition"] == f'attachment; filename="{first}-metrics.csv"'
    rows = list(csv.DictReader(answer.text.splitlines()))
    assert list(rows[0]) == ["task_id", "task", "policy", *COLUMNS]
    assert [row["task_id"] for row in rows] == [item for item in (first, *others) for _ in range(2)]
    assert [row["task"] for row in rows[::2]] == [f"'{name}" for name in names[:6]]
    expected = {
        "number": "1",
        "elapsed_s": "180.0",
        "accuracy": "0.25",
        "loss": "1.75",
        "state": "aggregated",
    }
    assert {name: rows[0][name] for name in expected} == expected
    assert (rows[1]["accuracy"], rows[1]["loss"]) == ("", "")
    alone = operator.get(f"/dashboard/tasks/{plain}/metrics.csv").text
    (row,) = csv.DictReader(alone.splitlines())
    assert row["task"] == names[6]
    empty = create_task(here.service)["task_id"]
    assert operator.get(f"/dashboard/tasks/{empty}/metrics.csv").text.splitlines() == [
        ",".join(["task_id", "task", "policy", *COLUMNS])
    ]


def test_every_version_of_the_model(here: Site, operator: httpx.Client) -> None:
    task, keys = live_task(here)
    path = f"/dashboard/tasks/{task['task_id']}/models"
    first = operator.get(f"{path}/0")
    assert first.content == make_model(0)
    assert first.headers["content-disposition"] == (
        f'attachment; filename="{task["task_id"]}-v0.safetensors"'
    )
    assert operator.get(f"{path}/0", headers={"If-None-Match": first.headers["etag"]}).status_code == 304
    play_round(here, task["task_id"], keys, 0.5)
    newest = operator.get(f"{path}/1")
    shown = operator.get(path).text
    assert re.findall(r'id="version-(\d+)"', shown) == ["1", "0"]
    assert "50.0 %" in shown
    assert newest.content == here.service.get(f"/tasks/{task['task_id']}/models/1").content
    assert "-v1.safetensors" in newest.headers["content-disposition"]
    without_model = create_task(here.service)["task_id"]
    assert operator.get(f"/dashboard/tasks/{without_model}/models/0").status_code == 404
    assert "No model here" in operator.get(f"/dashboard/tasks/{without_model}/models").text


def test_what_to_do_before_the_first_round(here: Site, operator: httpx.Client) -> None:
    task_id = create_task(here.service)["task_id"]
    path = f"/dashboard/tasks/{task_id}"
    assert "fedcs worker" in operator.get(path).text
    assert "metrics.csv" not in operator.get(path).text
    set_model(here.service, task_id)
    ready = operator.get(path).text
    assert "No round yet" in ready
    assert "Open a round" in ready
    assert "no data set" in ready
    here.service.post(f"/tasks/{task_id}/cancel")
    assert "ended without a round" in operator.get(path).text


def test_after_an_action_it_goes_back_to_the_page(here: Site, operator: httpx.Client) -> None:
    task, _ = live_task(here)
    path = f"/dashboard/tasks/{task['task_id']}"
    fields = {"csrf_token": csrf_token(operator), "next": f"{path}?threshold=50"}
    opened = operator.post(f"{path}/rounds", data=fields)
    assert (opened.status_code, opened.headers["location"]) == (303, fields["next"])
    elsewhere = operator.post(f"{path}/cancel", data=fields | {"next": "//evil.example"})
    assert (elsewhere.status_code, elsewhere.headers["location"]) == (303, "/")
    (only,) = here.service.get("/rounds", params={"task_id": task["task_id"]}).json()
    assert get_round(here.service, only["round_id"])["state"] == "cancelled"


def test_what_cannot_be_shown(here: Site, operator: httpx.Client) -> None:
    task_id = create_task(here.service)["task_id"]
    path, data = f"/dashboard/tasks/{task_id}", f"/dashboard/data/tasks/{task_id}"
    for wrong in ("0", "-0.5", "101", "nan", "inf", "half", "50;", "9" * 5000):
        answer = operator.get(path, params={"threshold": ["50", wrong]})
        assert answer.status_code == 422
        assert "more than 0, and at most 100" in answer.text
        assert_problem(
            operator.get(f"{data}/parts", params={"threshold": wrong}), 422, "UNPROCESSABLE_ENTITY"
        )
    assert operator.get(path, params={"threshold": [0.1, 0.2, 0.3, 0.4]}).status_code == 200
    assert operator.get(path, params={"threshold": [0.1, 0.2, 0.3, 0.4, 0.5]}).status_code == 422
    others = [create_task(here.service)["task_id"] for _ in range(6)]
    for where in (path, f"{path}/metrics.csv", f"{data}/parts"):
        assert operator.get(where, params={"with": others[:5]}).status_code == 200
        refused = operator.get(where, params={"with": others})
        assert refused.status_code == 422
        assert "at most 5 other tasks" in refused.text
        unknown = operator.get(where, params={"with": "task-nobody-knows"})
        assert unknown.status_code == 404
        assert "task-nobody-knows" in unknown.text
    for bad in ({"with": "<script>"}, {"with": ""}, {"page": "0"}, {"page": "x"}):
        assert operator.get(path, params=bad).status_code == 422
    assert_problem(operator.get(f"{data}?first=0"), 422, "INVALID_REQUEST")


def test_an_unknown_task(operator: httpx.Client) -> None:
    for path in ("", "/metrics.csv", "/models", "/models/0"):
        answer = operator.get(f"/dashboard/tasks/no-such{path}")
        assert answer.status_code == 404
        assert "Back to the overview" in answer.text
    for path in ("", "/parts"):
        assert_problem(operator.get(f"/dashboard/data/tasks/no-such{path}"), 404, "TASK_NOT_FOUND")


def test_without_a_session(here: Site) -> None:
    task_id = task_with_rounds(here, [0.5])["task_id"]
    with without_key(here.service) as stranger:
        for path in ("", "/metrics.csv", "/models", "/models/0", "?with=a&threshold=50"):
            answer = stranger.get(f"/dashboard/tasks/{task_id}{path}")
            assert answer.status_code == 303
            assert answer.headers["location"].startswith("/dashboard/login?next=%2Fdashboard%2Ftasks%2F")
        for path in ("", "/parts"):
            assert_problem(stranger.get(f"/dashboard/data/tasks/{task_id}{path}"), 401, "UNAUTHENTICATED")


def test_a_key_that_may_look_only_is_offered_no_action(here: Site) -> None:
    key = here.service.post("/keys", json={"scope": "read"}).json()["api_key"]
    task_id = task_with_rounds(here, [0.5])["task_id"]
    with logged_in(here.service, key) as reader:
        page = reader.get(f"/dashboard/tasks/{task_id}").text
        assert "Open a round" not in page
        assert "Cancel" not in page
        for path in ("/metrics.csv", "/models", "/models/0"):
            assert reader.get(f"/dashboard/tasks/{task_id}{path}").status_code == 200


def test_links_lie_under_a_root_path(tmp_path: Path) -> None:
    root = "/fedcs/v1"
    with site("sqlite", tmp_path, "", api_root=root) as here, logged_in(here.service) as operator:
        task_id = task_with_rounds(here, [0.5] * 25)["task_id"]
        page = operator.get(f"dashboard/tasks/{task_id}?threshold=50").text
        links = re.findall(r' (?:href|src|action)="([^"#]+)', page)
        assert [link for link in links if not link.startswith((f"{root}/", "data:"))] == []
        for path in ("/metrics.csv", "/models"):
            assert f"{root}/dashboard/tasks/{task_id}{path}" in page
            assert operator.get(f"dashboard/tasks/{task_id}{path}").status_code == 200


def _arrivals(page: httpx.Response, task_id: str) -> list[str]:
    """What the table of arrivals says of a task, threshold by threshold."""
    assert page.status_code == 200, page.text
    found = re.search(rf'<tr id="arrivals-{task_id}">(.*?)</tr>', page.text, re.DOTALL)
    assert found is not None
    cells = re.findall(r'<td data-label="[^"]*" class="number"><span>([^<]*)', found.group(1))
    return [cell.strip() for cell in cells[1:]]
