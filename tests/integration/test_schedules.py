"""``GET /rounds/{round_id}/schedule``: its forms, and how much of it a client sees."""

import csv
import io
import xml.etree.ElementTree as ET
from typing import Any

import httpx
import pytest

from tests.integration.cell import (
    as_client,
    assert_problem,
    create_task,
    enrol,
    fresh_name,
    open_round,
    report,
    set_model,
    started_round,
)
from tests.integration.rounds_setup import get_round


@pytest.fixture(scope="module")
def planned(service: httpx.Client) -> tuple[dict[str, Any], dict[str, str], str]:
    """A round with two slots and a client left out: the round, the keys, and who was left out."""
    labels = {"cell": fresh_name("cell")}
    keys = enrol(service, 3, labels)
    *selected, slow = keys
    for client_id in selected:
        report(service, client_id)
    report(service, slow, compute_samples_per_s=1)
    task = create_task(service, labels=labels)
    set_model(service, task["task_id"])
    return open_round(service, task["task_id"]), keys, slow


def _schedule(client: httpx.Client, opened: dict[str, Any], accept: str | None = None) -> httpx.Response:
    headers = {} if accept is None else {"Accept": accept}
    return client.get(f"/rounds/{opened['round_id']}/schedule", headers=headers)


@pytest.mark.parametrize("accept", [None, "application/json", "text/html", "image/svg+xml, application/json"])
def test_the_schedule_is_json_unless_asked_otherwise(
    accept: str | None, planned: tuple[dict[str, Any], dict[str, str], str], service: httpx.Client
) -> None:
    opened, _, _ = planned
    response = _schedule(service, opened, accept)
    assert response.headers["content-type"] == "application/json"
    assert response.json() == opened["schedule"]


def test_the_schedule_as_csv_has_a_line_for_each_candidate(
    planned: tuple[dict[str, Any], dict[str, str], str], service: httpx.Client
) -> None:
    opened, _, slow = planned
    response = _schedule(service, opened, "text/csv")
    assert response.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(response.text)))
    slots = opened["schedule"]["slots"]
    assert [row["client_id"] for row in rows] == [*(slot["client_id"] for slot in slots), slow]
    assert [row["selected"] for row in rows] == ["1", "1", "0"]
    assert float(rows[1]["window_start_s"]) == slots[1]["window_start_s"]
    assert rows[0]["outcome"] == "pending"
    assert (rows[2]["reason"], rows[2]["window_start_s"]) == ("DEADLINE", "")


def test_the_schedule_as_a_picture_shows_the_clients(
    planned: tuple[dict[str, Any], dict[str, str], str], service: httpx.Client
) -> None:
    response = _schedule(service, planned[0], "image/svg+xml")
    assert response.headers["content-type"].startswith("image/svg+xml")
    assert ET.fromstring(response.text).tag == "{http://www.w3.org/2000/svg}svg"
    for slot in planned[0]["schedule"]["slots"]:
        assert slot["client_id"] in response.text


def test_ids_that_are_formulas_or_hold_what_xml_cannot(service: httpx.Client) -> None:
    end, labels = fresh_name(), {"cell": fresh_name("cell")}
    formulas = [f"{start}{end}" for start in ("=1+", "+", "-", "@", " =", "\uff1d", "--><b>")]
    others = [f"{start}{end}" for start in ("\ufffe", "\uffff", "\x9b", "$x^2", "a=", "\u00e9")]
    asked = [{"client_id": client_id, "labels": labels} for client_id in formulas + others]
    assert service.post("/clients/batch", json={"clients": asked}).status_code == 201
    for client_id in formulas[1:] + others:
        report(service, client_id)
    report(service, formulas[0], compute_samples_per_s=1)
    task = create_task(service, labels=labels)
    set_model(service, task["task_id"])
    opened = open_round(service, task["task_id"])
    assert opened["selected"] == len(asked) - 1

    rows = list(csv.DictReader(io.StringIO(_schedule(service, opened, "text/csv").text)))
    assert {row["client_id"] for row in rows} == {f"'{item}" for item in formulas} | set(others)
    assert rows[-1]["client_id"] == f"'{formulas[0]}"
    picture = _schedule(service, opened, "image/svg+xml").text
    assert ET.fromstring(picture).tag == "{http://www.w3.org/2000/svg}svg"
    assert rf"\ufffe{end}" in picture


@pytest.mark.parametrize("accept", ["application/json", "text/csv", "image/svg+xml"])
def test_a_client_sees_its_own_slot_and_nobody_else(
    accept: str, planned: tuple[dict[str, Any], dict[str, str], str], service: httpx.Client
) -> None:
    opened, keys, _ = planned
    own = opened["schedule"]["slots"][0]["client_id"]
    with as_client(service, keys[own]) as client:
        shown = _schedule(client, opened, accept).text
        whole = client.get(f"/rounds/{opened['round_id']}").json()
    assert own in shown
    assert not [other for other in keys if other != own and other in shown]
    assert [slot["client_id"] for slot in whole["schedule"]["slots"]] == [own]
    assert whole["schedule"]["not_selected"] == []


@pytest.mark.parametrize("accept", ["application/json", "text/csv", "image/svg+xml"])
def test_a_client_that_was_left_out_sees_nothing(
    accept: str, planned: tuple[dict[str, Any], dict[str, str], str], service: httpx.Client
) -> None:
    opened, keys, slow = planned
    with as_client(service, keys[slow]) as client:
        assert_problem(_schedule(client, opened, accept), 403, "NOT_SELECTED")


@pytest.mark.parametrize("accept", ["application/json", "text/csv", "image/svg+xml"])
def test_a_failed_round_has_an_empty_schedule_in_every_form(accept: str, service: httpx.Client) -> None:
    task = create_task(service, labels={"cell": fresh_name("cell")})
    set_model(service, task["task_id"])
    response = _schedule(service, open_round(service, task["task_id"]), accept)
    assert response.status_code == 200
    assert response.headers["content-type"].startswith(accept)


def test_slots_tell_how_it_went(service: httpx.Client) -> None:
    opened, _ = started_round(service, 2)
    service.post(f"/rounds/{opened['round_id']}/close")
    rows = csv.DictReader(io.StringIO(_schedule(service, opened, "text/csv").text))
    assert [row["outcome"] for row in rows] == ["missed", "missed"]
    slots = get_round(service, opened["round_id"])["schedule"]["slots"]
    assert _schedule(service, opened).json()["slots"] == slots
