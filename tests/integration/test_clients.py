"""Enrolment, and what is known of each client, over real HTTP."""

from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

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
    set_model,
    started_round,
    upload,
)

NEW = {
    "slots": 0,
    "received": 0,
    "late": 0,
    "rejected": 0,
    "missed": 0,
    "declined": 0,
    "refused": 0,
    "update_ratio": None,
    "upload_ratio": None,
    "update_spread": None,
    "upload_spread": None,
}


def is_enrolled(service: httpx.Client, client_id: str) -> bool:
    return service.get(f"/clients/{client_id}").status_code == 200


def test_an_enrolled_client_is_shown_with_its_labels(service_on_each: httpx.Client) -> None:
    client_id, labels = fresh_name(), {"vehicle": "bus", "zone": "Zürich/7 = 東"}
    before = datetime.now(UTC)
    enrolled = service_on_each.post("/clients", json={"client_id": client_id, "labels": labels})
    assert enrolled.status_code == 201
    answer = enrolled.json()
    assert (answer["client_id"], answer["labels"]) == (client_id, labels)
    assert before <= datetime.fromisoformat(answer["enrolled_at"]) <= datetime.now(UTC)
    assert answer["api_key"].startswith(f"fedcs_{answer['key_id']}_")
    shown = service_on_each.get(f"/clients/{client_id}")
    assert shown.status_code == 200
    assert shown.json() == {
        "client_id": client_id,
        "labels": labels,
        "cell_id": "default",
        "enrolled_at": answer["enrolled_at"],
        "record": NEW,
        "tasks": [],
        "implausible": [],
    }


def test_a_client_without_an_id_gets_one_of_its_own(service: httpx.Client) -> None:
    answers = [service.post("/clients", json={}).json() for _ in range(2)]
    batch = service.post("/clients/batch", json={"clients": [{}, {}]}).json()["clients"]
    ids = {answer["client_id"] for answer in [*answers, *batch]}
    assert len(ids) == 4
    assert all(is_enrolled(service, client_id) for client_id in ids)


def test_a_client_is_enrolled_once(service_on_each: httpx.Client) -> None:
    client_id, key = enrol_one(service_on_each, {"zone": "a"})
    response = service_on_each.post("/clients", json={"client_id": client_id, "labels": {"zone": "b"}})
    assert client_id in assert_problem(response, 409, "CLIENT_EXISTS")["detail"]
    assert service_on_each.get(f"/clients/{client_id}").json()["labels"] == {"zone": "a"}
    with as_client(service_on_each, key) as client:
        assert client.get("/assignments").status_code == 200


def test_a_batch_with_a_client_that_is_enrolled_enrols_nobody(service_on_each: httpx.Client) -> None:
    known, _ = enrol_one(service_on_each)
    new = [fresh_name() for _ in range(3)]
    asked = [{"client_id": client_id} for client_id in [*new, known]]
    response = service_on_each.post("/clients/batch", json={"clients": asked})
    assert known in assert_problem(response, 409, "CLIENT_EXISTS")["detail"]
    assert not any(is_enrolled(service_on_each, client_id) for client_id in new)


def test_a_batch_with_a_client_twice_is_refused_and_names_it(service: httpx.Client) -> None:
    first, twice = fresh_name(), fresh_name()
    asked = [{"client_id": item} for item in (first, twice, twice)]
    problem = assert_problem(service.post("/clients/batch", json={"clients": asked}), 422, "INVALID_REQUEST")
    assert [item["param"] for item in problem["invalid_params"]] == ["/clients/2/client_id"]
    assert not is_enrolled(service, first)


def test_a_batch_answers_in_the_order_asked(service_on_each: httpx.Client) -> None:
    asked = [{"client_id": fresh_name(), "labels": {"place": str(place)}} for place in range(20)]
    answer = service_on_each.post("/clients/batch", json={"clients": asked}).json()["clients"]
    assert [{"client_id": item["client_id"], "labels": item["labels"]} for item in answer] == asked
    assert len({item["api_key"] for item in answer}) == 20


def test_ten_thousand_clients_are_enrolled_at_once_and_not_one_more(service: httpx.Client) -> None:
    zone = fresh_name("zone")
    asked = [{"labels": {"zone": zone}} for _ in range(10_001)]
    problem = assert_problem(service.post("/clients/batch", json={"clients": asked}), 422, "INVALID_REQUEST")
    assert [item["param"] for item in problem["invalid_params"]] == ["/clients"]
    response = service.post("/clients/batch", json={"clients": asked[1:]})
    assert response.status_code == 201
    assert len({item["client_id"] for item in response.json()["clients"]}) == 10_000
    assert service.get("/clients", params={"label": f"zone={zone}"}).headers["x-total-count"] == "10000"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"client_id": ""}, "/client_id"),
        ({"client_id": "x" * 129}, "/client_id"),
        ({"client_id": "a\nb"}, "/client_id"),
        ({"client_id": "a\x00b"}, "/client_id"),
        ({"client_id": 7}, "/client_id"),
        ({"labels": {"": "a"}}, "/labels/"),
        ({"labels": {"a b": "a"}}, "/labels/a b"),
        ({"labels": {"x" * 65: "a"}}, f"/labels/{'x' * 65}"),
        ({"labels": {"a": "x" * 129}}, "/labels/a"),
        ({"labels": {"a": "\x7f"}}, "/labels/a"),
        ({"labels": {"a": 1}}, "/labels/a"),
        ({"labels": {str(number): "" for number in range(33)}}, "/labels"),
        ({"labels": None}, "/labels"),
        ({"api_key": "mine"}, "/api_key"),
    ],
)
def test_a_bad_enrolment_is_named(body: dict[str, Any], param: str, service: httpx.Client) -> None:
    problem = assert_problem(service.post("/clients", json=body), 422, "INVALID_REQUEST")
    (named,) = {item["param"].removesuffix("/[key]") for item in problem["invalid_params"]}
    assert named == param
    batch = service.post("/clients/batch", json={"clients": [{}, body]})
    problem = assert_problem(batch, 422, "INVALID_REQUEST")
    (named,) = {item["param"].removesuffix("/[key]") for item in problem["invalid_params"]}
    assert named == f"/clients/1{param}"


def test_an_empty_batch_is_refused(service: httpx.Client) -> None:
    assert_problem(service.post("/clients/batch", json={"clients": []}), 422, "INVALID_REQUEST")


def test_clients_are_listed_by_label(service_on_each: httpx.Client) -> None:
    zone = fresh_name("zone")
    buses = list(enrol(service_on_each, 2, {"zone": zone, "vehicle": "bus=red"}))
    trams = list(enrol(service_on_each, 1, {"zone": zone, "vehicle": "tram"}))
    other = list(enrol(service_on_each, 1, {"zone": f"{zone}-more", "vehicle": "tram"}))

    def listed(*labels: str) -> list[str]:
        response = service_on_each.get("/clients", params={"label": list(labels), "per_page": 100})
        assert response.headers["x-total-count"] == str(len(response.json()))
        return [client["client_id"] for client in response.json()]

    assert listed(f"zone={zone}") == buses + trams
    assert listed(f"zone={zone}", "vehicle=bus=red") == buses
    assert listed(f"zone={zone}", "vehicle=tram") == trams
    assert listed(f"zone={zone}", "vehicle=") == []
    assert listed(f"zone={zone}", f"zone={zone}-more") == []
    assert listed(f"zone={zone}-more") == other


@pytest.mark.parametrize("label", ["zone", "=a", "a b=c", "", "a=\x00", f"{'x' * 65}=a", f"a={'x' * 129}"])
def test_a_label_filter_that_is_none_is_refused(label: str, service: httpx.Client) -> None:
    problem = assert_problem(service.get("/clients", params={"label": label}), 422, "INVALID_REQUEST")
    assert problem["invalid_params"][0]["param"] == "label"


def test_too_many_label_filters_are_refused(service: httpx.Client) -> None:
    assert service.get("/clients", params={"label": ["a=b"] * 32}).status_code == 200
    assert_problem(service.get("/clients", params={"label": ["a=b"] * 33}), 422, "INVALID_REQUEST")


@pytest.mark.parametrize(
    "client_id", ["Zürich 7", "東京", "50%", "a?b#c", "a&b=c", "x" * 128, "'; --", "a+b"]
)
def test_a_client_of_any_name_can_be_used(client_id: str, service: httpx.Client) -> None:
    path = f"/clients/{quote(client_id, safe='')}"
    service.delete(path)
    key = service.post("/clients", json={"client_id": client_id}).json()["api_key"]
    with as_client(service, key) as client:
        report(client, client_id)
        assert client.get(f"{path}/reports").json()[0]["client_id"] == client_id
    assert service.get(path).json()["client_id"] == client_id
    assert service.delete(path).status_code == 204


@pytest.mark.parametrize("client_id", ["a/b", "/", ".", "..", "c1/reports"])
def test_a_name_that_no_path_can_hold_is_refused(client_id: str, service: httpx.Client) -> None:
    problem = assert_problem(service.post("/clients", json={"client_id": client_id}), 422, "INVALID_REQUEST")
    assert problem["invalid_params"][0]["param"] == "/client_id"


def test_a_record_tells_how_a_client_did(service_on_each: httpx.Client) -> None:
    labels = {"cell": fresh_name("cell")}
    keys = enrol(service_on_each, 2, labels)
    punctual, missing = keys
    report_all(service_on_each, list(keys))
    task = create_task(service_on_each, labels=labels)
    set_model(service_on_each, task["task_id"])
    opened = open_round(service_on_each, task["task_id"])
    slots = {slot["client_id"]: slot for slot in opened["schedule"]["slots"]}
    with as_client(service_on_each, keys[punctual]) as client:
        took = {
            "fedcs_update_s": str(slots[punctual]["update_s"] * 3),
            "fedcs_upload_s": str(slots[punctual]["upload_s"] * 2),
        }
        assert upload(client, opened["round_id"], punctual, None, **took).status_code == 201
    service_on_each.post(f"/rounds/{opened['round_id']}/close")
    record = service_on_each.get(f"/clients/{punctual}").json()["record"]
    assert record == NEW | {
        "slots": 1,
        "received": 1,
        "update_ratio": pytest.approx(3),
        "upload_ratio": pytest.approx(2),
        "update_spread": pytest.approx(0, abs=1e-6),
        "upload_spread": pytest.approx(0, abs=1e-6),
    }
    record = service_on_each.get(f"/clients/{missing}").json()["record"]
    assert record == NEW | {"slots": 1, "missed": 1}
    listed = service_on_each.get("/clients", params={"label": f"cell={labels['cell']}"}).json()
    assert [client["record"]["received"] for client in listed] == [1, 0]


def test_a_removed_client_is_gone_with_its_keys_and_reports(service_on_each: httpx.Client) -> None:
    client_id, key = enrol_one(service_on_each)
    report(service_on_each, client_id)
    with as_client(service_on_each, key) as client:
        assert client.get("/assignments").status_code == 200
        removed = service_on_each.delete(f"/clients/{client_id}")
        assert (removed.status_code, removed.content) == (204, b"")
        assert_problem(client.get("/assignments"), 401, "UNAUTHENTICATED")
    assert_problem(service_on_each.get(f"/clients/{client_id}"), 404, "CLIENT_NOT_FOUND")
    assert_problem(service_on_each.get(f"/clients/{client_id}/reports"), 404, "CLIENT_NOT_FOUND")
    assert_problem(service_on_each.delete(f"/clients/{client_id}"), 404, "CLIENT_NOT_FOUND")


def test_a_client_enrolled_again_starts_anew(service_on_each: httpx.Client) -> None:
    client_id, old_key = enrol_one(service_on_each, {"zone": "old"})
    report(service_on_each, client_id)
    service_on_each.delete(f"/clients/{client_id}")
    again = service_on_each.post("/clients", json={"client_id": client_id})
    assert again.status_code == 201
    assert service_on_each.get(f"/clients/{client_id}").json()["labels"] == {}
    assert service_on_each.get(f"/clients/{client_id}/reports").json() == []
    with as_client(service_on_each, old_key) as client:
        assert_problem(client.get("/assignments"), 401, "UNAUTHENTICATED")


def test_a_round_does_not_wait_for_a_removed_client(service_on_each: httpx.Client) -> None:
    opened, keys = started_round(service_on_each, 2)
    removed, staying = keys
    assert service_on_each.delete(f"/clients/{removed}").status_code == 204
    with as_client(service_on_each, keys[staying]) as client:
        assert upload(client, opened["round_id"], staying).status_code == 201
    shown = service_on_each.get(f"/rounds/{opened['round_id']}").json()
    assert (shown["state"], shown["received"]) == ("aggregating", 1)
    slots = {slot["client_id"]: slot["outcome"] for slot in shown["schedule"]["slots"]}
    assert slots == {removed: "missed", staying: "received"}


def test_clients_that_nobody_enrolled_are_not_found(service: httpx.Client) -> None:
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/reports")):
        response = service.request(method, f"/clients/{fresh_name()}{path}")
        assert_problem(response, 404, "CLIENT_NOT_FOUND")
    response = service.post(f"/clients/{fresh_name()}/keys", json={})
    assert_problem(response, 404, "CLIENT_NOT_FOUND")
