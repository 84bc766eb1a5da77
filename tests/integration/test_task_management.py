"""Operators finish, change and delete tasks and look at their models, over real HTTP."""

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
    started_round,
)
from tests.integration.rounds_setup import eventually, get_round, get_task


def test_an_operator_finishes_changes_and_deletes_a_task(service_on_each: httpx.Client) -> None:
    service = service_on_each
    opened, _ = started_round(service, 1)
    path = f"/tasks/{opened['task_id']}"
    changed = service.patch(path, json={"name": "night", "max_rounds": 7, "final_deadline_s": None})
    assert changed.status_code == 200, changed.text
    assert (changed.json()["name"], changed.json()["max_rounds"]) == ("night", 7)
    assert_problem(service.delete(path), 409, "TASK_NOT_OVER")
    assert_problem(service.patch(path, json={"target_accuracy": 0.5}), 409, "NO_DATASET")
    finished = service.post(f"{path}/finish").json()
    assert (finished["state"], finished["outcome"]) == ("finished", "FINISHED_BY_OPERATOR")
    assert finished["detail"] == "An operator finished the task."
    assert get_round(service, opened["round_id"])["outcome"] == "TOO_FEW_UPDATES"
    assert service.post(f"{path}/finish").json() == finished
    assert_problem(service.patch(path, json={"max_rounds": 9}), 409, "TASK_OVER")
    assert service.delete(path).status_code == 204
    for gone in (path, f"{path}/models", f"{path}/models/latest", f"{path}/metrics"):
        assert_problem(service.get(gone), 404, "TASK_NOT_FOUND")
    assert_problem(service.delete(path), 404, "TASK_NOT_FOUND")
    assert_problem(service.get(f"/rounds/{opened['round_id']}"), 404, "ROUND_NOT_FOUND")


def test_a_task_without_a_model_is_cancelled_not_finished(service: httpx.Client) -> None:
    path = f"/tasks/{create_task(service)['task_id']}"
    assert_problem(service.post(f"{path}/finish"), 409, "MODEL_NOT_READY")
    cancelled = service.post(f"{path}/cancel").json()
    assert (cancelled["state"], cancelled["outcome"]) == ("cancelled", "CANCELLED_BY_OPERATOR")
    assert_problem(service.post(f"{path}/finish"), 409, "TASK_OVER")


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"max_rounds": 0}, "/max_rounds"),
        ({"max_rounds": 1.5}, "/max_rounds"),
        ({"name": None}, "/name"),
        ({"target_accuracy": 1.1}, "/target_accuracy"),
        ({"final_deadline_s": 0}, "/final_deadline_s"),
        ({"clock": "wall"}, "/clock"),
    ],
)
def test_changes_that_make_no_sense_are_refused(
    service: httpx.Client, change: dict[str, Any], param: str
) -> None:
    path = f"/tasks/{create_task(service)['task_id']}"
    problem = assert_problem(service.patch(path, json=change), 422, "INVALID_REQUEST")
    assert problem["invalid_params"][0]["param"] == param


def test_the_versions_of_a_model_are_listed_and_the_latest_is_found(service_on_each: httpx.Client) -> None:
    service = service_on_each
    path = f"/tasks/{create_task(service)['task_id']}/models"
    assert service.get(path).json() == []
    assert_problem(service.get(f"{path}/latest"), 404, "MODEL_NOT_FOUND")
    model = set_model(service, path.split("/")[2])
    (version,) = service.get(path).json()
    assert (version["version"], version["size_bytes"], version["accuracy"]) == (0, len(model), None)
    latest = service.get(f"{path}/latest")
    assert (latest.content, latest.headers["etag"]) == (model, f'"{version["digest"]}"')
    for unknown in ("newest", "-1", "01", "1e3"):
        assert_problem(service.get(f"{path}/{unknown}"), 422, "INVALID_REQUEST")
    for not_initial in ("1", "latest"):
        assert_problem(service.put(f"{path}/{not_initial}", content=model), 422, "INVALID_REQUEST")


@pytest.mark.parametrize(("field", "known"), [("model", "paper-cnn"), ("dataset", "fashion-mnist")])
def test_an_unknown_network_or_data_set_is_refused_with_the_known_names(
    service: httpx.Client, field: str, known: str
) -> None:
    response = service.post("/tasks", json={"round_deadline_s": 180, field: "resnet-9000"})
    (wrong,) = assert_problem(response, 422, "INVALID_REQUEST")["invalid_params"]
    assert wrong["param"] == f"/{field}"
    assert known in wrong["reason"]
    listed = {"model": "/networks", "dataset": "/datasets"}[field]
    names = [client["name"] for client in service.get(listed).json()]
    assert known in names
    for name in (*names, "my_company.learning:make"):
        assert create_task(service, **{field: name})[field] == name


def test_without_a_data_set_no_training_can_be_asked_for(service: httpx.Client) -> None:
    opened, keys = started_round(service)
    body = {"round_id": opened["round_id"], "client_id": next(iter(keys)), "partition": 0}
    assert_problem(service.post("/trainings", json=body), 409, "NO_DATASET")


def test_what_is_created_says_where_it_is_found(service: httpx.Client) -> None:
    client_id, _ = enrol_one(service, {"cell": (cell := fresh_name("cell"))})
    report(service, client_id)
    task = create_task(service, labels={"cell": cell})
    set_model(service, task["task_id"])
    slash = fresh_name("a b%")
    answers = {
        f"/clients/{slash.replace('%', '%25').replace(' ', '%20')}": service.post(
            "/clients", json={"client_id": slash}
        ),
        f"/clients/{client_id}/reports": service.post("/reports", json=resources(client_id)),
        "/tasks/task-": service.post("/tasks", json={"round_deadline_s": 180}),
        "/rounds/round-": service.post("/rounds", json={"task_id": task["task_id"]}),
        "/clients": service.post("/clients/batch", json={"clients": [{}]}),
    }
    for start, answer in answers.items():
        assert answer.status_code == 201, answer.text
        assert answer.headers["location"].startswith(start)
        assert service.get(answer.headers["location"]).status_code == 200
    made = service.post("/keys", json={"scope": "read"})
    assert service.delete(made.headers["location"]).status_code == 204
    documented = service.get("/openapi.json").json()["paths"]
    creating = [
        operation
        for path in documented.values()
        for operation in path.values()
        if "201" in operation["responses"]
    ]
    assert len(creating) > 8
    assert all("Location" in operation["responses"]["201"]["headers"] for operation in creating)


def test_a_repeated_creation_says_the_same_place(service: httpx.Client) -> None:
    headers = {"Idempotency-Key": fresh_name()}
    first, again = (service.post("/tasks", json={"round_deadline_s": 1}, headers=headers) for _ in range(2))
    assert first.headers["location"] == again.headers["location"] == f"/tasks/{first.json()['task_id']}"


def test_head_is_answered_as_get_without_a_body(service: httpx.Client) -> None:
    opened, keys = started_round(service)
    task_id, round_id, client_id = opened["task_id"], opened["round_id"], next(iter(keys))
    names = {"task_id": task_id, "round_id": round_id, "client_id": client_id, "version": "latest"}
    names["cell_id"] = "default"
    for path, operations in service.get("/openapi.json").json()["paths"].items():
        if "get" not in operations or "{training_id}" in path:
            continue
        if path in ("/events", "/assignments"):
            refused = service.head(path)
            assert (refused.status_code, "HEAD" in refused.headers["allow"]) == (405, False), path
            continue
        head = service.head(path.format(**names))
        assert (head.status_code, head.content) == (200, b""), path
        if path not in ("/metrics", "/readyz"):
            assert (
                head.headers["content-length"] == service.get(path.format(**names)).headers["content-length"]
            )
    with as_client(service, keys[client_id]) as client:
        assert client.head(f"/rounds/{round_id}/model").status_code == 200
    assert get_round(service, round_id)["state"] == "scheduled", "HEAD fetches nothing"
    assert service.head("/tasks/nothing").status_code == 404
    allowed = service.put(f"/tasks/{task_id}").headers["allow"]
    assert allowed == "DELETE, GET, HEAD, PATCH"


def test_an_unknown_query_parameter_is_refused(service: httpx.Client) -> None:
    problem = assert_problem(service.get("/tasks?pge=2&state=ready"), 422, "INVALID_REQUEST")
    (wrong,) = problem["invalid_params"]
    assert wrong["param"] == "pge"
    assert "page, per_page, state" in wrong["reason"]
    for path in ("/healthz?x=1", "/policies?x=1"):
        assert_problem(service.get(path), 422, "INVALID_REQUEST")
    assert_problem(service.post("/tasks?dry_run=1", json={"round_deadline_s": 1}), 422, "INVALID_REQUEST")


def test_a_report_window_ends_when_all_have_answered(service_on_each: httpx.Client) -> None:
    service = service_on_each
    labels = {"cell": fresh_name("cell")}
    first, second = enrol(service, 2, labels)
    task = create_task(service, labels=labels, report_window_s=1e6)
    set_model(service, task["task_id"])
    round_id = open_round(service, task["task_id"])["round_id"]
    report_all(service, [first])
    assert get_round(service, round_id)["state"] == "requesting"
    report_all(service, [second])
    eventually(lambda: get_round(service, round_id)["state"] == "scheduled")
    assert get_round(service, round_id)["selected"] == 2


def test_after_max_rounds_a_task_is_finished(service: httpx.Client) -> None:
    opened, _ = started_round(service, 1, max_rounds=1)
    service.post(f"/rounds/{opened['round_id']}/close").raise_for_status()
    ended = get_task(service, opened["task_id"])
    assert (ended["state"], ended["outcome"]) == ("finished", "MAX_ROUNDS")
    assert_problem(service.post("/rounds", json={"task_id": opened["task_id"]}), 409, "TASK_OVER")
