"""The page of a round over real HTTP: its figures are those of the API, and not everybody may close it."""

import csv
import io
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

import httpx
import pytest

from operator_api.dashboard.round_table import GROUPS
from tests.dashboard_session import csrf_token, logged_in
from tests.integration.cell import (
    as_client,
    assert_problem,
    create_task,
    enrol,
    enrol_one,
    fresh_name,
    open_round,
    report,
    report_all,
    set_model,
    started_round,
    without_key,
)
from tests.integration.rounds_setup import get_round, quick_round, upload_as
from tests.running_service import running_service

COLUMNS = (
    "client_id",
    "order",
    "update_s",
    "upload_s",
    "window_start_s",
    "window_end_s",
    "elapsed_s",
    "actual_update_s",
    "actual_upload_s",
)
TIMES = ("selection_s", "aggregation_s", "distribution_s", "elapsed_s")


@pytest.fixture
def operator(service: httpx.Client) -> Iterator[httpx.Client]:
    with logged_in(service) as client:
        yield client


def _page(operator: httpx.Client, round_id: str, **query: str | int) -> str:
    """With all columns."""
    answer = operator.get(f"/dashboard/rounds/{round_id}", params={"columns": list(GROUPS), **query})
    assert answer.status_code == 200, answer.text
    return answer.text


def _table(page: str) -> list[list[str]]:
    """The text of each cell, row by row."""
    body = page.split("<tbody", 1)[1].split("</tbody>", 1)[0]
    rows = re.findall(r"<tr id=.*?</tr>", body, re.DOTALL)
    cells = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row, re.DOTALL) for row in rows]
    return [[unescape(re.sub(r"<[^>]*>", "", cell)).strip() for cell in row] for row in cells]


def test_a_client_that_took_the_place_of_another_names_it(
    service: httpx.Client, operator: httpx.Client
) -> None:
    labels = {"cell": fresh_name("cell")}
    keys = enrol(service, 3, labels)
    report_all(service, list(keys), throughput_bps=1e6, compute_samples_per_s=100, data_samples=20)
    terms = {"model_size_bytes": 1_250_000, "round_deadline_s": 40, "local_epochs": 1}
    task = create_task(service, labels=labels, clock="wall", dispatch="on_ready", **terms)
    set_model(service, task["task_id"])
    opened = open_round(service, task["task_id"])
    declining = opened["schedule"]["slots"][0]["client_id"]
    with as_client(service, keys[declining]) as client:
        assert client.post(f"/rounds/{opened['round_id']}/decline", json={"reason": "no"}).is_success
    link = f'in the place of <a class="name" href="/dashboard/clients/{declining}">'
    assert f"Selected {link}" in _page(operator, opened["round_id"])
    activity = operator.get(f"/dashboard/activity?about={opened['round_id']}&group=channel").text
    assert link in activity


def _outcomes(page: str) -> dict[str, str]:
    return {row[0]: row[1] for row in _table(page)}


def _tile(page: str, name: str) -> str:
    found = re.search(rf'id="{name}">([^<]*)<', page)
    assert found is not None, name
    return found.group(1)


def _mixed_round(service: httpx.Client) -> tuple[dict[str, Any], dict[str, str], dict[str, str]]:
    """A simulated round with candidates of every kind; their ids by kind, and their keys by id."""
    labels = {"cell": fresh_name("cell")}
    names = ("good", "late", "refused", "silent", "slow", "empty", "mute")
    keys = enrol(service, len(names), labels)
    ids = dict(zip(names, keys, strict=True))
    report_all(service, [ids[name] for name in names[:4]])
    report(service, ids["slow"], throughput_bps=5_000)
    report(service, ids["empty"], data_samples=0)
    task = create_task(service, labels=labels, selection_s=1.5, aggregation_s=2.5, clock="simulated")
    set_model(service, task["task_id"])
    return open_round(service, task["task_id"]), ids, keys


def test_the_chart_is_drawn_from_what_the_api_says(service: httpx.Client, operator: httpx.Client) -> None:
    opened, ids, keys = _mixed_round(service)
    round_id = opened["round_id"]
    times = {"fedcs_elapsed_s": "30.25", "fedcs_update_s": "20.5", "fedcs_upload_s": "0.75"}
    assert upload_as(service, keys[ids["good"]], round_id, ids["good"], **times).status_code == 201
    path = f"/dashboard/data/rounds/{round_id}"
    chart = operator.get(path).json()
    shown = get_round(service, round_id)
    schedule = shown["schedule"]
    for name in COLUMNS:
        assert chart["slots"][name] == [slot[name] for slot in schedule["slots"]], name
    assert chart["slots"]["outcome"] == [slot["outcome"] for slot in schedule["slots"]]
    assert {name: chart[name] for name in TIMES} == {name: schedule[name] for name in TIMES}
    assert (chart["round_deadline_s"], chart["clock"], chart["is_open"]) == (180, "simulated", True)
    assert (chart["state"], chart["selected"], chart["duration_s"]) == ("collecting", 4, None)
    service.post(f"/rounds/{round_id}/close")
    closed = operator.get(path).json()
    assert closed["state"] == "aggregating"
    assert sorted(closed["slots"]["outcome"]) == ["missed", "missed", "missed", "received"]


def test_without_a_deadline_there_is_no_line(service: httpx.Client, operator: httpx.Client) -> None:
    opened, _ = started_round(service, 2, policy="fl")
    path = f"/dashboard/data/rounds/{opened['round_id']}"
    assert operator.get(path).json()["round_deadline_s"] is None
    page = _page(operator, opened["round_id"])
    assert _tile(page, "deadline") == "none"


def test_every_candidate_has_its_reason(service: httpx.Client, operator: httpx.Client) -> None:
    opened, ids, keys = _mixed_round(service)
    round_id = opened["round_id"]
    assert upload_as(service, keys[ids["good"]], round_id, ids["good"]).status_code == 201
    assert (
        upload_as(service, keys[ids["late"]], round_id, ids["late"], fedcs_elapsed_s="999").status_code == 409
    )
    assert (
        upload_as(service, keys[ids["refused"]], round_id, ids["refused"], update=b"no tensors").status_code
        == 422
    )
    page = _page(operator, round_id)
    expected = {"good": "received", "late": "late", "refused": "pending", "silent": "pending"}
    expected |= {"slow": "too slow", "empty": "no data", "mute": "no report"}
    assert _outcomes(page) == {ids[name]: outcome for name, outcome in expected.items()}
    service.post(f"/rounds/{round_id}/close")

    page = _page(operator, round_id)
    expected |= {"refused": "rejected", "silent": "missed"}
    assert _outcomes(page) == {ids[name]: outcome for name, outcome in expected.items()}
    assert [row[0] for row in _table(page)[:4]] == [s["client_id"] for s in opened["schedule"]["slots"]]
    why = {row[0]: row[2] for row in _table(page)}
    shown = get_round(service, round_id)["schedule"]
    rejection = next(s["last_rejection"] for s in shown["slots"] if s["client_id"] == ids["refused"])
    assert rejection
    assert why[ids["refused"]] == f"It sent once what was no acceptable update: {rejection}"
    assert why[ids["late"]] == "Its update came at 16 min 39 s, too late."
    assert why[ids["silent"]] == "Nothing came."
    assert why[ids["slow"]].startswith("Too slow: would not finish before the deadline. It adds ")
    (slow,) = (row for row in _table(page) if row[0] == ids["slow"])
    (left_out,) = (candidate for candidate in shown["not_selected"] if candidate["client_id"] == ids["slow"])
    assert slow[3:] == [
        "–",
        "0.005",
        "50.000",
        "200",
        f"{left_out['cost_s']:,.3f}",
        f"{left_out['update_s']:,.3f}",
        "–",
        f"{left_out['upload_s']:,.3f}",
        *["–"] * 13,
        "default",
    ]
    for name, number in {"asked": 7, "selected": 4, "received": 1, "late": 1, "missed": 1}.items():
        assert _tile(page, name) == str(number)
    assert (_tile(page, "rejected"), _tile(page, "discarded")) == ("1", "0")
    assert _tile(page, "upper-bound") == str(shown["upper_bound"])


def test_a_row_of_a_slot_says_what_the_schedule_says(service: httpx.Client, operator: httpx.Client) -> None:
    opened, _ = started_round(service, 1, resource_blocks=10)
    (slot,) = opened["schedule"]["slots"]
    ((client, outcome, _, *numbers),) = _table(_page(operator, opened["round_id"]))
    assert (client, outcome) == (slot["client_id"], "pending")
    times = ("update_s", "upload_s", "window_start_s", "window_end_s")
    update, upload_s, start, end = (f"{slot[name]:,.3f}" for name in times)
    expected = ["1", "1.000", "50.000", "200", "–", update, "–", upload_s, "–", start, end, "–"]
    expected += ["0", "10", f"{slot['time_slot_first']:,}", f"{slot['time_slot_count']:,}"]
    assert numbers == [*expected, *["–"] * 5, "default"]


def test_rows_by_outcome_and_by_page(service: httpx.Client, operator: httpx.Client) -> None:
    labels = {"cell": fresh_name("cell")}
    ids = list(enrol(service, 205, labels))
    report_all(service, ids[:3])
    report_all(service, ids[3:], data_samples=0)
    task = create_task(service, labels=labels)
    set_model(service, task["task_id"])
    opened = open_round(service, task["task_id"])
    round_id = opened["round_id"]
    pages = [_table(_page(operator, round_id, page=page)) for page in (1, 2, 3, 4)]
    assert [len(rows) for rows in pages] == [100, 100, 5, 0]
    drawn = [item["client_id"] for key in ("slots", "not_selected") for item in opened["schedule"][key]]
    assert [row[0] for rows in pages for row in rows] == drawn
    assert "Page 2 of 3" in _page(operator, round_id, page=2)
    assert "Page 4 of 3" in _page(operator, round_id, page=4)
    assert set(_outcomes(_page(operator, round_id, outcome="pending"))) == set(ids[:3])
    assert len(_table(_page(operator, round_id, outcome="NO_DATA", page=3))) == 2
    for none in ("discarded", "late", "SELECTED", "DEADLINE"):
        assert _table(_page(operator, round_id, outcome=none)) == []
    parts = operator.get(f"/dashboard/data/rounds/{round_id}/parts", params={"outcome": "pending"}).text
    assert set(_outcomes(parts)) == set(ids[:3])
    assert "<html" not in parts
    for wrong in ({"page": "0"}, {"page": "x"}, {"page": "9" * 30}, {"outcome": "<script>"}):
        answer = operator.get(f"/dashboard/rounds/{round_id}", params=wrong)
        assert answer.status_code == 422
        assert "<script>" not in answer.text
        assert_problem(
            operator.get(f"/dashboard/data/rounds/{round_id}/parts", params=wrong), 422, "INVALID_REQUEST"
        )


def test_too_few_clients_and_no_client(service: httpx.Client, operator: httpx.Client) -> None:
    labels = {"cell": fresh_name("cell")}
    client_id, _ = enrol_one(service, labels)
    report(service, client_id)
    task = create_task(service, labels=labels, min_clients=2)
    set_model(service, task["task_id"])
    failed = open_round(service, task["task_id"])
    assert failed["outcome"] == "TOO_FEW_CLIENTS"
    page = _page(operator, failed["round_id"])
    assert "the task needs 2 at least" in page
    assert "No client has a slot in this round." in page
    (row,) = _table(page)
    assert row[:3] == [client_id, "selected", "Would have been selected, but the round failed."]
    assert operator.get(f"/dashboard/data/rounds/{failed['round_id']}").json()["slots"]["order"] == []

    task = create_task(service, labels={"cell": fresh_name("nobody")})
    set_model(service, task["task_id"])
    nobody = open_round(service, task["task_id"])
    assert "No client was asked." in _page(operator, nobody["round_id"])


def test_clients_that_would_never_finish(service: httpx.Client, operator: httpx.Client) -> None:
    labels = {"cell": fresh_name("cell")}
    ids = list(enrol(service, 2, labels))
    report_all(service, ids, throughput_bps=100)
    task = create_task(service, labels=labels, policy="fl", model_size_bytes=10**13)
    set_model(service, task["task_id"])
    failed = open_round(service, task["task_id"])
    assert failed["outcome"] == "TOO_FEW_CLIENTS"
    page = _page(operator, failed["round_id"])
    assert {row[2] for row in _table(page)} == {"Too slow: the round would last longer than 18 years."}


def test_files_to_keep(service: httpx.Client, operator: httpx.Client) -> None:
    opened, _ = started_round(service, 2)
    path = f"/dashboard/rounds/{opened['round_id']}/schedule"
    table = operator.get(f"{path}.csv")
    rows = list(csv.DictReader(io.StringIO(table.text)))
    assert [row["client_id"] for row in rows] == [s["client_id"] for s in opened["schedule"]["slots"]]
    picture = operator.get(f"{path}.svg")
    assert picture.headers["content-type"] == "image/svg+xml"
    assert "<svg" in picture.text
    for answer, ending in ((table, "csv"), (picture, "svg")):
        name = f'attachment; filename="{opened["round_id"]}.{ending}"'
        assert answer.headers["content-disposition"] == name


def test_who_waits_for_reports_has_no_schedule(service: httpx.Client, operator: httpx.Client) -> None:
    labels = {"cell": fresh_name("cell")}
    client_id, _ = enrol_one(service, labels)
    task = create_task(service, labels=labels, report_window_s=600)
    set_model(service, task["task_id"])
    round_id = open_round(service, task["task_id"])["round_id"]
    page = _page(operator, round_id)
    assert "No schedule yet. Reports are awaited until 20" in page
    assert _outcomes(page) == {client_id: "asked"}
    assert "schedule.csv" not in page
    assert "Close the round" not in page
    for ending in ("csv", "svg"):
        answer = operator.get(f"/dashboard/rounds/{round_id}/schedule.{ending}")
        assert answer.status_code == 409
        assert "no clients have been selected yet" in answer.text
    token = csrf_token(operator)
    refused = operator.post(f"/dashboard/rounds/{round_id}/close", data={"csrf_token": token})
    assert refused.status_code == 409
    assert "The round is requesting." in refused.text
    assert get_round(service, round_id)["state"] == "requesting"


def test_close_a_round(service: httpx.Client, operator: httpx.Client) -> None:
    opened, keys = quick_round(service, 2)
    round_id = opened["round_id"]
    path = f"/dashboard/rounds/{round_id}/close"
    first = next(iter(keys))
    assert upload_as(service, keys[first], round_id, first, fedcs_elapsed_s=None).status_code == 201
    token = csrf_token(operator)
    with logged_in(service) as other:
        of_another_session = csrf_token(other)
    for wrong in ({}, {"csrf_token": ""}, {"csrf_token": of_another_session}):
        assert operator.post(path, data=wrong).status_code == 403
    key = service.post("/keys", json={"scope": "read"}).json()["api_key"]
    with logged_in(service, key) as reader:
        assert "Close the round" not in _page(reader, round_id)
        assert reader.post(path, data={"csrf_token": csrf_token(reader)}).status_code == 403
    with without_key(service) as stranger:
        refused = stranger.post(path, data={"csrf_token": token})
        assert (refused.status_code, refused.headers["location"]) == (303, "/dashboard/login")
    assert operator.get(path).status_code == 405
    assert get_round(service, round_id)["state"] == "collecting"

    assert "Close the round" in _page(operator, round_id)
    for _ in range(2):  # a closed round is no error
        closed = operator.post(path, data={"csrf_token": token})
        assert (closed.status_code, closed.headers["location"]) == (303, f"/dashboard/rounds/{round_id}")
    assert get_round(service, round_id)["state"] == "aggregating"
    assert "Close the round" not in _page(operator, round_id)


def test_strangers_and_rounds_that_do_not_exist(service: httpx.Client, operator: httpx.Client) -> None:
    opened, _ = started_round(service, 1)
    page, chart = f"/dashboard/rounds/{opened['round_id']}", f"/dashboard/data/rounds/{opened['round_id']}"
    with without_key(service) as stranger:
        for path in (page, f"{page}/schedule.csv", f"{page}/schedule.svg"):
            answer = stranger.get(path)
            assert answer.status_code == 303
            assert answer.headers["location"].startswith("/dashboard/login?next=")
        for path in (chart, f"{chart}/parts"):
            assert_problem(stranger.get(path), 401, "UNAUTHENTICATED")
    for unknown in ("round-0000000000000000", "task-1"):
        for path in ("", "/schedule.csv", "/schedule.svg"):
            answer = operator.get(f"/dashboard/rounds/{unknown}{path}")
            assert answer.status_code == 404
            assert "Back to the overview" in answer.text
        for path in ("", "/parts"):
            assert_problem(operator.get(f"/dashboard/data/rounds/{unknown}{path}"), 404, "ROUND_NOT_FOUND")
        form = {"csrf_token": csrf_token(operator)}
        assert operator.post(f"/dashboard/rounds/{unknown}/close", data=form).status_code == 404
    assert operator.get(f"/dashboard/rounds/{'x' * 65}").status_code == 422


def test_the_rounds_of_a_task_lead_to_each_other(service: httpx.Client, operator: httpx.Client) -> None:
    first, _ = started_round(service, 1)
    assert 'rel="prev"' not in _page(operator, first["round_id"])
    assert 'rel="next"' not in _page(operator, first["round_id"])
    service.post(f"/rounds/{first['round_id']}/close")  # without an update it fails
    assert "Too few updates could be used: 0, and the task needs 1" in _page(operator, first["round_id"])
    second = open_round(service, first["task_id"])
    assert f'rel="next" href="/dashboard/rounds/{second["round_id"]}"' in _page(operator, first["round_id"])
    page = _page(operator, second["round_id"])
    assert f'rel="prev" href="/dashboard/rounds/{first["round_id"]}"' in page
    assert f'href="/dashboard/tasks/{first["task_id"]}"' in page


def test_under_a_root_path(tmp_path: Path) -> None:
    root = "/fedcs/v1"
    with running_service(tmp_path, api_root=root) as service:
        (client_id,) = enrol(service, 1)
        report(service, client_id)
        task = create_task(service)
        set_model(service, task["task_id"])
        first = open_round(service, task["task_id"])
        path = f"dashboard/rounds/{first['round_id']}"
        with logged_in(service) as operator:
            page = operator.get(path).text
            links = re.findall(r' (?:href|src|action)="([^"#]+)', page)
            assert f"{root}/{path}/close" in links
            assert [link for link in links if not link.startswith((f"{root}/", "data:"))] == []
            closed = operator.post(f"{path}/close", data={"csrf_token": csrf_token(operator)})
            assert (closed.status_code, closed.headers["location"]) == (303, f"{root}/{path}")
            assert operator.get(f"dashboard/data/rounds/{first['round_id']}").json()["state"] == "failed"


def test_a_round_over_two_cells_with_a_busy_client(service: httpx.Client, operator: httpx.Client) -> None:
    cells = [fresh_name("a-cell"), fresh_name("b-cell")]
    clients = [fresh_name() for _ in cells]
    for cell_id, client_id in zip(cells, clients, strict=True):
        service.post("/cells", json={"cell_id": cell_id, "resource_blocks": 20}).raise_for_status()
        service.post("/clients", json={"client_id": client_id, "cell_id": cell_id}).raise_for_status()
        report_all(service, [client_id])
    rounds = []
    for named in (cells[:1], cells):
        task = create_task(service, clock="wall", cells=named)
        set_model(service, task["task_id"])
        rounds.append(open_round(service, task["task_id"]))
    (first, *_), (second, *_) = (_table(_page(operator, item["round_id"])) for item in rounds)
    assert (first[0], first[-1]) == (clients[0], cells[0])
    assert (second[0], second[-1]) == (clients[1], cells[1])
    busy = _table(_page(operator, rounds[1]["round_id"]))[1]
    assert (busy[0], busy[1], busy[-1]) == (clients[0], "busy", cells[0])
    chart = operator.get(f"/dashboard/data/rounds/{rounds[1]['round_id']}").json()
    (slot,) = rounds[1]["schedule"]["slots"]
    assert chart["slots"]["begin_s"] == [pytest.approx(slot["window_start_s"] - slot["upload_start_s"])]
