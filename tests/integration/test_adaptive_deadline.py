"""Adaptive deadlines over HTTP: plans, schedules, metrics, and what is refused."""

from typing import Any

import httpx
import pytest

from tests.integration.cell import (
    assert_problem,
    create_task,
    enrol,
    fresh_name,
    open_round,
    report_all,
    set_model,
)

CANDIDATES = [
    {"client_id": f"c{number}", "throughput_bps": 8e6, "compute_samples_per_s": 500, "data_samples": 100}
    for number in range(20)
]
PLAN = {"round_deadline_s": 180, "model_size_bytes": 1_000_000, "candidates": CANDIDATES}


def best_count(noise_scale: float) -> int:
    """Each client updates and uploads in a second."""
    return min(range(1, 21), key=lambda clients: (2 + clients) * (1 + noise_scale / clients))


@pytest.mark.parametrize("noise_scale", [0.5, 4.0, 30.0])
def test_a_plan_has_the_best_deadline_for_its_noise_scale(noise_scale: float, service: httpx.Client) -> None:
    asked = PLAN | {"deadline_mode": "adaptive", "noise_scale": noise_scale, "min_round_deadline_s": 1}
    plan: dict[str, Any] = service.post("/plans", json=asked).json()
    assert len(plan["slots"]) == best_count(noise_scale)
    assert plan["noise_scale"] == noise_scale
    assert plan["round_deadline_s"] == pytest.approx(1.1 * plan["total_s"])
    assert 1 <= len(plan["deadline_tradeoff"]) <= 100
    assert min(point["relative_cost"] for point in plan["deadline_tradeoff"]) == 1


def test_a_fixed_plan_has_its_own_deadline(service: httpx.Client) -> None:
    plan = service.post("/plans", json=PLAN).json()
    assert (plan["round_deadline_s"], plan["noise_scale"], plan["deadline_tradeoff"]) == (180, None, None)
    without = service.post("/plans", json=PLAN | {"policy": "fl"}).json()
    assert without["round_deadline_s"] is None


@pytest.mark.parametrize("path", ["/plans", "/tasks"])
@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("deadline_mode", {"deadline_mode": "adaptive", "policy": "fl"}),
        ("deadline_mode", {"deadline_mode": "sometimes"}),
        ("min_round_deadline_s", {"deadline_mode": "adaptive", "min_round_deadline_s": 181}),
        ("min_round_deadline_s", {"min_round_deadline_s": 0}),
        ("deadline_slack", {"deadline_slack": 1.1}),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    path: str, field: str, changes: dict[str, object], service: httpx.Client
) -> None:
    body = PLAN if path == "/plans" else {"round_deadline_s": 180}
    problem = assert_problem(service.post(path, json=body | changes), 422, "INVALID_REQUEST")
    assert field in str(problem["invalid_params"])


def test_the_shortest_deadline_matters_in_adaptive_mode_only(service: httpx.Client) -> None:
    assert create_task(service, round_deadline_s=5)["min_round_deadline_s"] == 10


def test_an_adaptive_round_shows_its_deadline_and_the_trade_off(service: httpx.Client) -> None:
    labels = {"cell": fresh_name("cell")}
    report_all(service, list(enrol(service, 12, labels)))
    task = create_task(service, labels=labels, deadline_mode="adaptive", min_round_deadline_s=1)
    assert task["learning_rate_decay_s"] == 180
    set_model(service, task["task_id"])
    schedule = open_round(service, task["task_id"])["schedule"]
    assert schedule["noise_scale"] == 4
    assert schedule["round_deadline_s"] == pytest.approx(1.1 * schedule["total_s"])
    assert len(schedule["deadline_tradeoff"]) == 12
    (metrics,) = service.get(f"/tasks/{task['task_id']}/metrics").json()["rounds"]
    assert metrics["round_deadline_s"] == schedule["round_deadline_s"]
    assert metrics["measured_noise_scale"] is None
