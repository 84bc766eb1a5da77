"""``/tasks``: their terms, and the beginning and the end of their lives."""

from typing import Any

import httpx
import pytest

from tests.integration.cell import (
    as_client,
    assert_problem,
    create_task,
    enrol_one,
    make_model,
    open_round,
    set_model,
    started_round,
)
from tests.integration.rounds_setup import get_round, get_task, upload_as


def test_a_task_begins_without_a_model(service_on_each: httpx.Client) -> None:
    task = create_task(service_on_each, name="signs", clock="wall", labels={"vehicle": "bus"})
    assert (task["state"], task["model_version"], task["rounds"]) == ("initializing", None, 0)
    assert (task["ended_at"], task["outcome"], task["elapsed_s"]) == (None, None, 0)
    assert (task["local_epochs"], task["policy"], task["slot_enforcement"]) == (5, "fedcs", "deadline")
    assert task["labels"] == {"vehicle": "bus"}
    assert get_task(service_on_each, task["task_id"]) == task


@pytest.mark.parametrize(
    ("terms", "param"),
    [
        ({"target_accuracy": 0.9}, "/target_accuracy"),
        ({"selection_s": 100, "aggregation_s": 80}, "/round_deadline_s"),
        ({"round_deadline_s": 0}, "/round_deadline_s"),
        ({"round_deadline_s": "180"}, "/round_deadline_s"),
        ({"final_deadline_s": -1}, "/final_deadline_s"),
        ({"request_fraction": 0}, "/request_fraction"),
        ({"request_fraction": 1.01}, "/request_fraction"),
        ({"clock": "lunar"}, "/clock"),
        ({"policy": "best"}, "/policy"),
        ({"policy_parameters": {"boldness": 1}}, "/policy_parameters/boldness"),
        ({"policy_parameters": None}, "/policy_parameters"),
        ({"aggregation": "best"}, "/aggregation"),
        ({"aggregation_parameters": {"boldness": 1}}, "/aggregation_parameters/boldness"),
        ({"aggregation_parameters": {"weight_cap_factor": 0.5}}, "/aggregation_parameters/weight_cap_factor"),
        (
            {"aggregation": "uniform", "aggregation_parameters": {"weight_cap_factor": 3}},
            "/aggregation_parameters/weight_cap_factor",
        ),
        ({"aggregation_parameters": None}, "/aggregation_parameters"),
        (
            {"aggregation": "trimmed-mean", "aggregation_parameters": {"trim": 0.5}},
            "/aggregation_parameters/trim",
        ),
        ({"aggregation": "krum"}, "/min_updates"),
        ({"aggregation": "krum", "min_updates": 4}, "/min_updates"),
        (
            {"aggregation": "multi-krum", "aggregation_parameters": {"byzantine": 2}, "min_updates": 6},
            "/min_updates",
        ),
        ({"aggregation": "median", "update_encoding": "int8-topk"}, "/update_encoding"),
        ({"aggregation": "trimmed-mean", "update_encoding": "int8-topk"}, "/update_encoding"),
        ({"aggregation": "krum", "update_encoding": "int8-topk", "min_updates": 5}, "/update_encoding"),
        ({"aggregation": "multi-krum", "update_encoding": "int8-topk", "min_updates": 5}, "/update_encoding"),
        ({"update_clip_factor": 0.99}, "/update_clip_factor"),
        ({"update_clip_factor": "2"}, "/update_clip_factor"),
        ({"slot_enforcement": "loose"}, "/slot_enforcement"),
        ({"slot_grace_s": -0.1}, "/slot_grace_s"),
        ({"idle_timeout_s": 0}, "/idle_timeout_s"),
        ({"max_update_norm": 0}, "/max_update_norm"),
        ({"max_update_norm": 1.1e12}, "/max_update_norm"),
        ({"report_window_s": -1}, "/report_window_s"),
        ({"report_max_age_s": 0}, "/report_max_age_s"),
        ({"model_size_bytes": 0}, "/model_size_bytes"),
        ({"resource_blocks": 0}, "/resource_blocks"),
        ({"min_clients": 0}, "/min_clients"),
        ({"min_updates": 0}, "/min_updates"),
        ({"local_epochs": 1.5}, "/local_epochs"),
        ({"learning_rate": 0}, "/learning_rate"),
        ({"gradient_clip_norm": 0}, "/gradient_clip_norm"),
        ({"gradient_clip_norm": "1"}, "/gradient_clip_norm"),
        ({"local_momentum": -0.1}, "/local_momentum"),
        ({"local_momentum": 1}, "/local_momentum"),
        ({"local_momentum": None}, "/local_momentum"),
        ({"weight_decay": -1e-9}, "/weight_decay"),
        ({"weight_decay": 1.1e6}, "/weight_decay"),
        ({"proximal_mu": -0.1}, "/proximal_mu"),
        ({"proximal_mu": 1.1e6}, "/proximal_mu"),
        ({"calibrated_loss": 1}, "/calibrated_loss"),
        ({"seed": -1}, "/seed"),
        ({"labels": {"a b": "c"}}, "/labels/a b"),
        ({"labels": {"a": 1}}, "/labels/a"),
        ({"model": "../etc passwd"}, "/model"),
        ({"deadline": 5}, "/deadline"),
    ],
)
def test_terms_that_make_no_sense_are_refused(
    terms: dict[str, Any], param: str, service: httpx.Client
) -> None:
    response = service.post("/tasks", json={"round_deadline_s": 180, **terms})
    problem = assert_problem(response, 422, "INVALID_REQUEST")
    assert problem["invalid_params"][0]["param"].startswith(param)


def test_without_a_seed_a_task_draws_one_and_records_it(service_on_each: httpx.Client) -> None:
    tasks = [create_task(service_on_each) for _ in range(3)]
    assert len({task["seed"] for task in tasks}) == 3
    assert all(0 <= task["seed"] < 2**53 for task in tasks)
    assert [get_task(service_on_each, task["task_id"])["seed"] for task in tasks] == [
        task["seed"] for task in tasks
    ]
    assert create_task(service_on_each, seed=0)["seed"] == 0


def test_a_task_needs_a_round_deadline(service: httpx.Client) -> None:
    assert_problem(service.post("/tasks", json={}), 422, "INVALID_REQUEST")


def test_time_for_the_round_just_remains(service: httpx.Client) -> None:
    assert create_task(service, selection_s=100, aggregation_s=79.9)["state"] == "initializing"


def test_a_target_accuracy_with_a_data_set_is_accepted(service: httpx.Client) -> None:
    assert create_task(service, target_accuracy=0.9, dataset="cifar-10")["target_accuracy"] == 0.9


def test_the_longest_step_is_as_it_was_set(service_on_each: httpx.Client) -> None:
    assert create_task(service_on_each)["max_update_norm"] is None
    task = create_task(service_on_each, max_update_norm=2.5)
    assert task["max_update_norm"] == 2.5
    assert get_task(service_on_each, task["task_id"]) == task


def test_updates_are_clipped_unless_the_task_says_not(service_on_each: httpx.Client) -> None:
    task = create_task(service_on_each)
    assert (task["update_clip_factor"], task["aggregation_parameters"]) == (2.0, {})
    task = create_task(
        service_on_each, update_clip_factor=None, aggregation_parameters={"weight_cap_factor": None}
    )
    assert task["update_clip_factor"] is None
    assert task["aggregation_parameters"] == {"weight_cap_factor": None}
    assert get_task(service_on_each, task["task_id"]) == task


@pytest.mark.parametrize("encoding", ["float16", "int8"])
def test_krum_takes_dense_encodings_and_just_enough_updates(service: httpx.Client, encoding: str) -> None:
    task = create_task(
        service,
        aggregation="krum",
        aggregation_parameters={"byzantine": 2},
        min_updates=7,
        update_encoding=encoding,
    )
    assert (task["aggregation_parameters"], task["min_updates"]) == ({"byzantine": 2}, 7)


def test_optimizers_take_sparse_updates(service: httpx.Client) -> None:
    assert create_task(service, aggregation="fedadam", update_encoding="int8-topk")["state"] == "initializing"


def test_the_aggregators_are_listed_with_their_parameters(service: httpx.Client) -> None:
    response = service.get("/aggregators")
    assert response.status_code == 200
    listed = {item["name"]: item for item in response.json()}
    assert set(listed) == {
        *("weighted", "uniform", "median", "trimmed-mean", "krum", "multi-krum"),
        *("server-momentum", "fedadam", "fedyogi"),
    }
    assert all(item["summary"].endswith(".") for item in listed.values())
    assert listed["uniform"]["parameters"] == []
    (parameter,) = listed["weighted"]["parameters"]
    assert (parameter["name"], parameter["default"]) == ("weight_cap_factor", 3.0)
    assert parameter["description"]
    _, key = enrol_one(service)
    with as_client(service, key) as client:
        assert client.get("/aggregators").json() == response.json()


def test_no_round_without_an_initial_model(service_on_each: httpx.Client) -> None:
    task_id = create_task(service_on_each)["task_id"]
    assert_problem(service_on_each.post("/rounds", json={"task_id": task_id}), 409, "MODEL_NOT_READY")
    set_model(service_on_each, task_id)
    assert get_task(service_on_each, task_id)["state"] == "ready"
    open_round(service_on_each, task_id)
    assert get_task(service_on_each, task_id)["state"] == "running"


def test_no_round_when_none_would_end_by_the_final_deadline(service: httpx.Client) -> None:
    task_id = create_task(service, round_deadline_s=180, final_deadline_s=179)["task_id"]
    set_model(service, task_id)
    assert_problem(service.post("/rounds", json={"task_id": task_id}), 409, "TASK_OVER")


def test_tasks_are_listed_newest_first_and_by_state(service: httpx.Client) -> None:
    older, newer = create_task(service), create_task(service)
    set_model(service, older["task_id"])
    listed = [item["task_id"] for item in service.get("/tasks").json()]
    assert listed[:2] == [newer["task_id"], older["task_id"]]
    ready = service.get("/tasks", params={"state": "ready"}).json()
    assert ready[0]["task_id"] == older["task_id"]
    assert {item["state"] for item in ready} == {"ready"}
    assert_problem(service.get("/tasks", params={"state": "asleep"}), 422, "INVALID_REQUEST")


def test_there_is_no_task_of_another_name(service: httpx.Client) -> None:
    assert_problem(service.get("/tasks/task-0"), 404, "TASK_NOT_FOUND")
    assert_problem(service.get("/tasks/task-0/metrics"), 404, "TASK_NOT_FOUND")
    assert_problem(service.get("/tasks/task-0/models/0"), 404, "TASK_NOT_FOUND")
    assert_problem(service.put("/tasks/task-0/models/0", content=make_model()), 404, "TASK_NOT_FOUND")
    assert_problem(service.post("/tasks/task-0/cancel"), 404, "TASK_NOT_FOUND")
    assert_problem(service.post("/rounds", json={"task_id": "task-0"}), 404, "TASK_NOT_FOUND")


def test_cancelling_ends_the_task_and_its_round(service_on_each: httpx.Client) -> None:
    service = service_on_each
    opened, keys = started_round(service, 2)
    round_id, (first, second) = opened["round_id"], list(keys)
    assert upload_as(service, keys[first], round_id, first).status_code == 201
    cancelled = service.post(f"/tasks/{opened['task_id']}/cancel")
    assert cancelled.status_code == 200
    assert cancelled.json()["state"] == "cancelled"
    assert cancelled.json()["ended_at"] is not None
    ended = get_round(service, round_id)
    assert ended["state"] == "cancelled"
    assert ended["ended_at"] is not None
    outcomes = {slot["client_id"]: slot["outcome"] for slot in ended["schedule"]["slots"]}
    assert outcomes == {first: "received", second: "missed"}
    assert_problem(upload_as(service, keys[second], round_id, second), 409, "ROUND_NOT_COLLECTING")
    assert_problem(service.post(f"/rounds/{round_id}/close"), 409, "ROUND_NOT_COLLECTING")
    assert_problem(service.post("/rounds", json={"task_id": opened["task_id"]}), 409, "TASK_OVER")
    model = service.put(f"/tasks/{opened['task_id']}/models/0", content=make_model())
    assert_problem(model, 409, "TASK_OVER")


def test_cancelling_twice_changes_nothing(service: httpx.Client) -> None:
    task_id = create_task(service)["task_id"]
    first = service.post(f"/tasks/{task_id}/cancel").json()
    assert service.post(f"/tasks/{task_id}/cancel").json() == first


def test_a_finished_task_cannot_be_cancelled(service: httpx.Client) -> None:
    opened, _ = started_round(service, 1, final_deadline_s=180)
    assert service.post(f"/rounds/{opened['round_id']}/close").json()["state"] == "failed"
    finished = get_task(service, opened["task_id"])
    assert (finished["state"], finished["elapsed_s"]) == ("finished", 180)
    assert finished["outcome"] == "FINAL_DEADLINE"
    assert "final deadline" in finished["detail"]
    assert_problem(service.post(f"/tasks/{opened['task_id']}/cancel"), 409, "TASK_OVER")


def test_metrics_tell_of_every_round(service_on_each: httpx.Client) -> None:
    service = service_on_each
    opened, keys = started_round(service, 2, min_updates=2, aggregation_s=3)
    task_id, (first, *_) = opened["task_id"], list(keys)
    response = upload_as(service, keys[first], opened["round_id"], first, fedcs_elapsed_s="40")
    assert response.status_code == 201
    service.post(f"/rounds/{opened['round_id']}/close")
    again = open_round(service, task_id)
    metrics = service.get(f"/tasks/{task_id}/metrics").json()
    assert metrics == {
        "task_id": task_id,
        "initial_accuracy": None,
        "rounds": [
            {
                "round_id": opened["round_id"],
                "number": 1,
                "state": "failed",
                "asked": 2,
                "selected": 2,
                "received": 1,
                "duration_s": 43,
                "elapsed_s": 180,
                "model_version": None,
                "round_deadline_s": 180,
                "measured_noise_scale": None,
                "accuracy": None,
                "device_accuracy": None,
                "loss": None,
                "evaluation_error": None,
            },
            {
                "round_id": again["round_id"],
                "number": 2,
                "state": "scheduled",
                "asked": 2,
                "selected": 2,
                "received": 0,
                "duration_s": None,
                "elapsed_s": None,
                "model_version": None,
                "round_deadline_s": 180,
                "measured_noise_scale": None,
                "accuracy": None,
                "device_accuracy": None,
                "loss": None,
                "evaluation_error": None,
            },
        ],
    }
