"""``/cells`` over HTTP: cells, clients in them, and who holds which resource blocks."""

from typing import Any

import httpx
import pytest

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
    resources,
    set_model,
)
from tests.integration.rounds_setup import QUICK, event_stream


def _cell(service: httpx.Client, resource_blocks: int = 20, **fields: object) -> str:
    body = {"cell_id": fresh_name("cell"), "resource_blocks": resource_blocks, **fields}
    response = service.post("/cells", json=body)
    assert response.status_code == 201, response.text
    cell_id: str = response.json()["cell_id"]
    return cell_id


def _clients_in(service: httpx.Client, cell_id: str, number: int = 1) -> dict[str, str]:
    asked = [{"client_id": fresh_name(), "cell_id": cell_id} for _ in range(number)]
    response = service.post("/clients/batch", json={"clients": asked})
    assert response.status_code == 201, response.text
    keys = {client["client_id"]: client["api_key"] for client in response.json()["clients"]}
    report_all(service, list(keys), **QUICK)
    return keys


def _task(service: httpx.Client, *cells: str, **terms: object) -> str:
    task = create_task(
        service, **{"clock": "wall", "cells": list(cells), "allow_busy_clients": True, **terms}
    )
    set_model(service, task["task_id"])
    task_id: str = task["task_id"]
    return task_id


def _invalid(response: httpx.Response) -> list[str]:
    problem = assert_problem(response, 422, "INVALID_REQUEST")
    return [field["param"] for field in problem["invalid_params"]]


def test_a_cell_can_be_added_shown_listed_changed_and_removed(service_on_each: httpx.Client) -> None:
    service = service_on_each
    cell_id = fresh_name("cell")
    body = {"cell_id": cell_id, "name": "North tower", "resource_blocks": 25, "radio": {"carrier_ghz": 3.5}}
    added = service.post("/cells", json=body)
    assert added.status_code == 201, added.text
    shown = service.get(f"/cells/{cell_id}").json()
    assert shown == added.json()
    assert (shown["resource_blocks"], shown["clients"], shown["resource_blocks_held"]) == (25, 0, 0)
    assert (shown["radio"]["carrier_ghz"], shown["radio"]["noise_figure_db"]) == (3.5, 1.0)
    listed = service.get("/cells", params={"per_page": 100}).json()
    assert {"default", cell_id} <= {client["cell_id"] for client in listed}
    changed = service.patch(f"/cells/{cell_id}", json={"resource_blocks": 30})
    assert changed.json() == shown | {"resource_blocks": 30}
    assert service.patch(f"/cells/{cell_id}", json={}).json() == changed.json()
    assert service.delete(f"/cells/{cell_id}").status_code == 204
    for method in ("GET", "DELETE"):
        assert_problem(service.request(method, f"/cells/{cell_id}"), 404, "CELL_NOT_FOUND")
    assert_problem(service.patch(f"/cells/{cell_id}", json={}), 404, "CELL_NOT_FOUND")
    assert_problem(service.get(f"/cells/{cell_id}/allocations"), 404, "CELL_NOT_FOUND")


def test_a_cell_without_an_id_gets_one_and_the_default_cell_stays(service: httpx.Client) -> None:
    added = service.post("/cells", json={})
    assert added.json()["cell_id"].startswith("cell-")
    assert added.json()["resource_blocks"] == 100
    assert_problem(service.delete("/cells/default"), 409, "CELL_IN_USE")
    assert_problem(service.post("/cells", json={"cell_id": "default"}), 409, "CELL_EXISTS")


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"cell_id": "no spaces"}, "/cell_id"),
        ({"cell_id": ""}, "/cell_id"),
        ({"resource_blocks": 0}, "/resource_blocks"),
        ({"resource_blocks": 10_001}, "/resource_blocks"),
        ({"resource_blocks": "10"}, "/resource_blocks"),
        ({"radio": {"carrier_ghz": 0}}, "/radio/carrier_ghz"),
        ({"radio": {"antennas": 2}}, "/radio/antennas"),
        ({"colour": "red"}, "/colour"),
    ],
)
def test_a_cell_that_cannot_be_is_refused(service: httpx.Client, body: dict[str, Any], param: str) -> None:
    assert _invalid(service.post("/cells", json=body)) == [param]


def test_a_cell_that_a_task_names_stays_until_the_task_ends(service: httpx.Client) -> None:
    cell_id = _cell(service)
    task_id = _task(service, cell_id)
    assert_problem(service.delete(f"/cells/{cell_id}"), 409, "CELL_IN_USE")
    service.post(f"/tasks/{task_id}/cancel").raise_for_status()
    assert service.delete(f"/cells/{cell_id}").status_code == 204


def test_clients_are_in_a_cell_and_move_by_patch_or_by_report(service: httpx.Client) -> None:
    north, south = _cell(service), _cell(service)
    client_id, key = enrol_one(service)
    assert service.get(f"/clients/{client_id}").json()["cell_id"] == "default"
    moved = service.patch(f"/clients/{client_id}", json={"cell_id": north, "labels": {"city": "Bonn"}})
    assert (moved.json()["cell_id"], moved.json()["labels"]) == (north, {"city": "Bonn"})
    assert [client["client_id"] for client in service.get("/clients", params={"cell_id": north}).json()] == [
        client_id
    ]
    with as_client(service, key) as client:
        sent = report(client, client_id, cell_id=south)
        assert sent.json()["cell_id"] == south
        assert client.get(f"/clients/{client_id}/reports").json()[0]["cell_id"] == south
    assert service.get(f"/clients/{client_id}").json()["cell_id"] == south
    report(service, client_id)
    assert service.get(f"/clients/{client_id}").json()["cell_id"] == south
    assert service.get(f"/cells/{south}").json()["clients"] == 1
    assert_problem(service.delete(f"/cells/{south}"), 409, "CELL_IN_USE")


def test_a_cell_that_is_unknown_is_named_as_the_error(service: httpx.Client) -> None:
    client_id, _ = enrol_one(service)
    assert _invalid(service.post("/clients", json={"cell_id": "nowhere"})) == ["/cell_id"]
    batch = {"clients": [{}, {"cell_id": "nowhere"}]}
    assert _invalid(service.post("/clients/batch", json=batch)) == ["/clients/1/cell_id"]
    assert _invalid(service.patch(f"/clients/{client_id}", json={"cell_id": "nowhere"})) == ["/cell_id"]
    body = resources(client_id, cell_id="nowhere")
    assert _invalid(service.post("/reports", json=body)) == ["/cell_id"]
    once = {"Idempotency-Key": fresh_name()}
    assert _invalid(service.post("/reports", json=body, headers=once)) == ["/cell_id"]
    stored = service.post("/reports/batch", json={"reports": [resources(client_id), body]}).json()
    assert [result["cause"] for result in stored["results"]] == [None, "CELL_NOT_FOUND"]
    task = {"round_deadline_s": 180, "cells": ["default", "nowhere"]}
    assert _invalid(service.post("/tasks", json=task)) == ["/cells/1"]
    assert_problem(service.patch("/clients/nobody", json={}), 404, "CLIENT_NOT_FOUND")


@pytest.mark.parametrize(
    ("terms", "param"),
    [
        ({"resource_blocks": 21}, "/resource_blocks"),
        ({"resource_blocks": 30, "min_resource_blocks": 21}, "/min_resource_blocks"),
        ({"resource_blocks": 10, "min_resource_blocks": 11}, "/min_resource_blocks"),
        ({"min_resource_blocks": 0}, "/min_resource_blocks"),
        ({"priority": 1001}, "/priority"),
        ({"cells": []}, "/cells"),
        ({"cells": ["default", "default"]}, "/cells"),
    ],
)
def test_a_task_that_its_cells_cannot_serve_is_refused(
    service: httpx.Client, terms: dict[str, Any], param: str
) -> None:
    task = {"round_deadline_s": 180, "cells": [_cell(service, 20)], **terms}
    assert _invalid(service.post("/tasks", json=task)) == [param]
    fitting = task | {"cells": [_cell(service, 20)], "resource_blocks": 30, "min_resource_blocks": 20}
    fitting["priority"] = -1000
    assert service.post("/tasks", json=fitting).status_code == 201


def test_the_throughput_of_a_measurement_goes_by_the_radio_of_the_cell(service: httpx.Client) -> None:
    narrow = _cell(service, radio={"max_bits_per_hz": 1.0})
    client_id, _ = enrol_one(service)
    body = resources(client_id, throughput_bps=..., sinr=127)
    assert service.post("/reports", json=body).json()["throughput_bps"] == 8_640_000
    in_narrow = service.post("/reports", json=body | {"cell_id": narrow}).json()
    assert in_narrow["throughput_bps"] == 1_800_000
    assert service.post("/reports", json=body).json()["throughput_bps"] == 1_800_000  # it is there now
    service.post("/reports/batch", json={"reports": [body]}).raise_for_status()
    newest = service.get(f"/clients/{client_id}/reports").json()[0]
    assert (newest["throughput_bps"], newest["radio"]) == (1_800_000, {"sinr": 127})


def test_two_tasks_share_no_block_and_the_third_is_told_when_to_come_back(service: httpx.Client) -> None:
    cell_id = _cell(service, 20)
    _clients_in(service, cell_id, 2)
    rounds = [open_round(service, _task(service, cell_id)) for _ in range(2)]
    blocks = [round_["schedule"]["cells"][0] for round_ in rounds]
    assert [cell["resource_block_first"] for cell in blocks] == [0, 10]
    assert [cell["cell_id"] for cell in blocks] == [cell_id] * 2
    third = _task(service, cell_id)
    refused = service.post("/rounds", json={"task_id": third})
    assert_problem(refused, 409, "RESOURCE_BLOCKS_BUSY")
    assert 1 <= int(refused.headers["Retry-After"]) <= 60
    assert service.get(f"/cells/{cell_id}").json()["resource_blocks_held"] == 20
    held = service.get(f"/cells/{cell_id}/allocations").json()
    assert [round_["round_id"] for round_ in held] == [round_["round_id"] for round_ in rounds]
    assert [round_["held_until"] for round_ in held] == [None, None]
    service.post(f"/rounds/{rounds[0]['round_id']}/close").raise_for_status()
    opened = open_round(service, third)
    assert opened["schedule"]["slots"][0]["resource_block_first"] == 0
    past = service.get(f"/cells/{cell_id}/allocations", params={"to": held[1]["held_from"]}).json()
    assert [round_["round_id"] for round_ in past] == [rounds[0]["round_id"]]
    later = service.get(f"/cells/{cell_id}/allocations", params={"from": past[0]["held_until"]}).json()
    assert [round_["round_id"] for round_ in later] == [rounds[1]["round_id"], opened["round_id"]]
    assert_problem(
        service.get(f"/cells/{cell_id}/allocations", params={"from": "yesterday"}), 422, "INVALID_REQUEST"
    )


def test_a_round_over_two_cells_is_shown_by_cell_and_a_client_sees_its_own(service: httpx.Client) -> None:
    north, south = sorted((_cell(service, 20), _cell(service, 5)))
    keys = {cell: _clients_in(service, cell, 2) for cell in (north, south)}
    opened = open_round(service, _task(service, north, south, min_resource_blocks=5))
    schedule = opened["schedule"]
    assert [cell["cell_id"] for cell in schedule["cells"]] == [north, south]
    assert [(slot["cell_id"], slot["order"]) for slot in schedule["slots"]] == [
        (north, 1),
        (north, 2),
        (south, 1),
        (south, 2),
    ]
    assert schedule["elapsed_s"] == max(cell["elapsed_s"] for cell in schedule["cells"])
    assert schedule["distribution_s"] == max(cell["distribution_s"] for cell in schedule["cells"])
    path = f"/rounds/{opened['round_id']}/schedule"
    lines = service.get(path, headers={"Accept": "text/csv"}).text.splitlines()
    assert "cell_id" in lines[0].split(",")
    assert sum(south in line for line in lines) == 2
    drawn = service.get(path, headers={"Accept": "image/svg+xml"})
    assert drawn.status_code == 200
    assert south in drawn.text
    client_id, key = next(iter(keys[south].items()))
    with as_client(service, key) as client:
        seen = client.get(path).json()
        assert [cell["cell_id"] for cell in seen["cells"]] == [south]
        (assignment,) = client.get("/assignments").json()["assignments"]
    assert (assignment["slot"]["cell_id"], assignment["slot"]["client_id"]) == (south, client_id)


def test_a_client_of_an_open_round_is_busy_for_other_tasks(service: httpx.Client) -> None:
    cell_id = _cell(service, 50)
    (client_id,) = _clients_in(service, cell_id)
    open_round(service, _task(service, cell_id))
    refused = open_round(service, _task(service, cell_id, allow_busy_clients=False))
    assert (refused["state"], refused["outcome"]) == ("failed", "TOO_FEW_CLIENTS")
    (candidate,) = refused["schedule"]["not_selected"]
    assert (candidate["client_id"], candidate["reason"], candidate["cell_id"]) == (client_id, "BUSY", cell_id)


def test_cells_that_change_are_told_as_events(service: httpx.Client) -> None:
    with event_stream(service) as events:
        cell_id = _cell(service)
        service.patch(f"/cells/{cell_id}", json={"name": "North"}).raise_for_status()
        service.delete(f"/cells/{cell_id}").raise_for_status()
        told: list[str] = []
        while len(told) < 3:
            event = next(events)
            if event["data"].get("cell_id") == cell_id:
                told.append(event["kind"])
    assert told == ["cell.added", "cell.changed", "cell.removed"]


def test_a_labelled_task_over_all_cells_is_in_those_of_its_clients(service: httpx.Client) -> None:
    cell_id = _cell(service)
    labels = {"fleet": fresh_name("fleet")}
    keys = enrol(service, 2, labels)
    first, second = keys
    report(service, first, cell_id=cell_id)
    report(service, second)
    task = create_task(service, labels=labels)
    assert task["cells"] is None
    set_model(service, task["task_id"])
    opened = open_round(service, task["task_id"])
    assert [cell["cell_id"] for cell in opened["schedule"]["cells"]] == sorted([cell_id, "default"])
