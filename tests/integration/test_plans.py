"""``POST /plans`` over real HTTP, from the right and from every wrong side."""

import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from services.contract.plans import PlanResponse
from services.domain.nanoseconds import NEVER_NS
from services.domain.resources import LocalWork, ResourceReports, estimate_times
from services.domain.selection import POLICIES
from services.domain.selection.fedcs import costs_ns
from tests.integration.plan_requests import candidate, cell, example
from tests.running_service import running_service


def assert_problem(response: httpx.Response, status: int, cause: str) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = response.json()
    assert (problem["status"], problem["cause"]) == (status, cause)
    assert problem["title"]
    assert problem["detail"]
    return problem


def test_the_example_gives_the_documented_answer(service: httpx.Client) -> None:
    response = service.post("/plans", json=example())
    assert response.status_code == 200
    assert response.json() == PlanResponse.model_json_schema()["examples"][0]


def test_slots_follow_from_the_request(service: httpx.Client) -> None:
    plan = service.post("/plans", json=cell(100, selection_s=2, aggregation_s=3, resource_blocks=5)).json()
    assert plan["slots"]
    assert plan["total_s"] == pytest.approx(5 + plan["distribution_s"] + plan["elapsed_s"])
    assert plan["total_s"] < 180
    for number, slot in enumerate(plan["slots"], start=1):
        assert slot["order"] == number
        assert slot["window_end_s"] == pytest.approx(2 + plan["distribution_s"] + slot["upload_end_s"])
        assert (slot["resource_block_first"], slot["resource_block_count"]) == (0, 5)
    assert plan["slots"][-1]["upload_end_s"] == plan["elapsed_s"]
    assert len(plan["slots"]) + len(plan["not_selected"]) == 100


@pytest.mark.parametrize("policy", list(POLICIES))
def test_every_policy_answers(policy: str, service: httpx.Client) -> None:
    plan = service.post("/plans", json=cell(200, policy=policy, seed=5)).json()
    assert plan["policy"] == policy
    assert plan["upper_bound_exact"] is True
    selected = len(plan["slots"])
    assert selected == 200 if policy == "fl" else 0 < selected <= plan["upper_bound"]
    assert {item["cost_s"] is None for item in plan["not_selected"]} <= {policy != "fedcs"}
    if policy == "optimal":
        assert selected == plan["upper_bound"]


@pytest.mark.parametrize("policy", list(POLICIES))
def test_downloads_of_another_size_change_the_distribution(policy: str, service: httpx.Client) -> None:
    request = cell(100, policy=policy, model_size_bytes=4_000_000)
    same = service.post("/plans", json=request).json()
    sizes = {"upload_size_bytes": 4_000_000, "download_size_bytes": 4_000_000}
    assert {name: same[name] for name in sizes} == sizes
    assert service.post("/plans", json=request | sizes | {"model_size_bytes": 1}).json() == same

    plan = service.post("/plans", json=request | {"download_size_bytes": 2_000_000}).json()
    assert (plan["upload_size_bytes"], plan["download_size_bytes"]) == (4_000_000, 2_000_000)
    slowest_s = max(slot["upload_s"] for slot in plan["slots"])
    assert plan["distribution_s"] == pytest.approx(slowest_s / 2, abs=1e-8)
    assert plan["upper_bound"] >= same["upper_bound"]

    smaller = service.post("/plans", json=request | {"upload_size_bytes": 1_000_000}).json()
    assert (smaller["upload_size_bytes"], smaller["download_size_bytes"]) == (1_000_000, 4_000_000)
    slowest_s = max(slot["upload_s"] for slot in smaller["slots"])
    assert smaller["distribution_s"] == pytest.approx(4 * slowest_s, abs=1e-8)


def test_policies_are_listed_for_any_key(service: httpx.Client) -> None:
    listed = service.get("/policies").json()
    assert [item["name"] for item in listed] == list(POLICIES)
    assert [item["name"] for item in listed if not item["honours_deadline"]] == ["fl"]
    assert all(item["summary"] and item["parameters"] == [] for item in listed)
    client = service.post("/clients", json={}).json()
    headers = {"Authorization": f"Bearer {client['api_key']}"}
    assert service.get("/policies", headers=headers).json() == listed


def test_a_hundred_thousand_candidates_are_answered_correctly(service: httpx.Client) -> None:
    request = cell(100_000)
    response = service.post("/plans", json=request)
    assert response.status_code == 200
    columns = ("throughput_bps", "compute_samples_per_s", "data_samples")
    throughput, rate, samples = (np.array([c[name] for c in request["candidates"]]) for name in columns)
    times = estimate_times(ResourceReports(throughput, rate, samples), LocalWork(18_300_000))
    expected: list[int] = []
    distribution_ns = elapsed_ns = 0
    while True:
        costs = costs_ns(times, distribution_ns, elapsed_ns)
        costs[expected] = NEVER_NS
        client = int(costs.argmin())
        if distribution_ns + elapsed_ns + costs[client] >= 180 * 10**9:
            break
        expected.append(client)
        elapsed_ns = max(elapsed_ns, int(times.update_ns[client])) + int(times.upload_ns[client])
        distribution_ns = max(distribution_ns, int(times.upload_ns[client]))
    plan = response.json()
    assert [slot["client_id"] for slot in plan["slots"]] == [f"c{client}" for client in expected]
    assert plan["total_s"] == pytest.approx((distribution_ns + elapsed_ns) / 1e9)
    assert len(plan["not_selected"]) == 100_000 - len(expected)


def test_a_client_without_data_is_not_selected(service: httpx.Client) -> None:
    request = example() | {"candidates": [candidate("empty", data_samples=0), candidate("full")]}
    plan = service.post("/plans", json=request | {"round_deadline_s": 1000}).json()
    assert [slot["client_id"] for slot in plan["slots"]] == ["full"]
    assert plan["not_selected"] == [{"client_id": "empty", "reason": "NO_DATA", "cost_s": None}]
    assert plan["upper_bound"] == 1


def test_nothing_fits_is_a_plan_too(service: httpx.Client) -> None:
    plan = service.post("/plans", json=example() | {"round_deadline_s": 1, "aggregation_s": 5}).json()
    assert (plan["slots"], plan["distribution_s"], plan["elapsed_s"], plan["upper_bound"]) == ([], 0, 0, 0)
    assert plan["total_s"] == 5


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"throughput_bps": float("nan")}, "/candidates/1/throughput_bps"),
        ({"throughput_bps": float("inf")}, "/candidates/1/throughput_bps"),
        ({"throughput_bps": 10**400}, "/candidates/1/throughput_bps"),
        ({"data_samples": float("inf")}, "/candidates/1/data_samples"),
        ({"data_samples": 10**400}, "/candidates/1/data_samples"),
        ({"throughput_bps": -1}, "/candidates/1/throughput_bps"),
        ({"throughput_bps": 0}, "/candidates/1/throughput_bps"),
        ({"throughput_bps": "1000000"}, "/candidates/1/throughput_bps"),
        ({"throughput_bps": True}, "/candidates/1/throughput_bps"),
        ({"throughput_bps": None}, "/candidates/1/throughput_bps"),
        ({"throughput_bps": ...}, "/candidates/1/throughput_bps"),
        ({"compute_samples_per_s": 0}, "/candidates/1/compute_samples_per_s"),
        ({"compute_samples_per_s": float("nan")}, "/candidates/1/compute_samples_per_s"),
        ({"data_samples": -1}, "/candidates/1/data_samples"),
        ({"data_samples": 1.5}, "/candidates/1/data_samples"),
        ({"data_samples": 10**30}, "/candidates/1/data_samples"),
        ({"client_id": "c1"}, "/candidates/1/client_id"),
        ({"client_id": ""}, "/candidates/1/client_id"),
        ({"client_id": "x" * 129}, "/candidates/1/client_id"),
        ({"client_id": "a\nb"}, "/candidates/1/client_id"),
        ({"client_id": 7}, "/candidates/1/client_id"),
        ({"speed/of~light": 1}, "/candidates/1/speed~1of~0light"),
    ],
)
def test_a_bad_report_is_named(change: dict[str, Any], param: str, service: httpx.Client) -> None:
    bad = candidate(**({"client_id": "c2"} | change))
    response = _post_json(service, example() | {"candidates": [candidate("c1"), bad]})
    problem = assert_problem(response, 422, "INVALID_REQUEST")
    assert [item["param"] for item in problem["invalid_params"]] == [param]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"policy": "random"}, "/policy"),
        ({"round_deadline_s": 0}, "/round_deadline_s"),
        ({"round_deadline_s": float("nan")}, "/round_deadline_s"),
        ({"round_deadline_s": 1e10}, "/round_deadline_s"),
        ({"selection_s": -1}, "/selection_s"),
        ({"aggregation_s": -0.1}, "/aggregation_s"),
        ({"model_size_bytes": 0}, "/model_size_bytes"),
        ({"upload_size_bytes": 0}, "/upload_size_bytes"),
        ({"download_size_bytes": 10**14}, "/download_size_bytes"),
        ({"download_size_bytes": "1000"}, "/download_size_bytes"),
        ({"policy_parameters": {"bold/ness": 1}}, "/policy_parameters/bold~1ness"),
        ({"policy_parameters": []}, "/policy_parameters"),
        ({"policy": "random", "policy_parameters": {"boldness": 1}}, "/policy"),
        ({"local_epochs": 0}, "/local_epochs"),
        ({"resource_blocks": 0}, "/resource_blocks"),
        ({"report_resource_blocks": 0}, "/report_resource_blocks"),
        ({"seed": -1}, "/seed"),
        ({"seed": 2**53}, "/seed"),
        ({"round_deadline_s": 10**400}, "/round_deadline_s"),
        ({"candidates": []}, "/candidates"),
        ({"candidates": {}}, "/candidates"),
        ({"unknown": 1}, "/unknown"),
    ],
)
def test_bad_terms_are_named(change: dict[str, Any], param: str, service: httpx.Client) -> None:
    problem = assert_problem(_post_json(service, example() | change), 422, "INVALID_REQUEST")
    assert [item["param"] for item in problem["invalid_params"]] == [param]


def test_one_candidate_too_many(service: httpx.Client) -> None:
    problem = assert_problem(service.post("/plans", json=cell(100_001)), 422, "INVALID_REQUEST")
    assert problem["invalid_params"][0]["param"] == "/candidates"


def test_of_many_errors_the_first_are_named(service: httpx.Client) -> None:
    bad = [candidate(f"c{number}", throughput_bps=-1) for number in range(30)]
    problem = assert_problem(
        service.post("/plans", json=example() | {"candidates": bad}), 422, "INVALID_REQUEST"
    )
    assert len(problem["invalid_params"]) == 20
    assert "29 more" in problem["detail"]


@pytest.mark.parametrize(
    "body", [b"{", b"throughput", b"", b"[1, 2", b"\xff\xfe\x00", b"[" * 100_000, b"7" * 5_000]
)
def test_what_is_not_json_is_refused(body: bytes, service: httpx.Client) -> None:
    response = service.post("/plans", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code in (400, 422)
    assert response.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("body", [b"[]", b'"text"', b"null", b"7"])
def test_json_of_another_shape_is_refused(body: bytes, service: httpx.Client) -> None:
    response = service.post("/plans", content=body, headers={"Content-Type": "application/json"})
    assert_problem(response, 422, "INVALID_REQUEST")


def test_another_content_type_is_refused(service: httpx.Client) -> None:
    response = service.post("/plans", content=json.dumps(example()), headers={"Content-Type": "text/csv"})
    assert_problem(response, 415, "UNSUPPORTED_MEDIA_TYPE")


def test_a_client_that_would_never_finish_is_not_selected(service: httpx.Client) -> None:
    request = cell(20, policy="fl")
    request["candidates"].insert(7, candidate("never", throughput_bps=1e-300))
    request["candidates"].append(candidate("never-updates", compute_samples_per_s=1e-300))
    plan = service.post("/plans", json=request).json()
    assert len(plan["slots"]) == 20
    too_slow = {"reason": "TOO_SLOW", "cost_s": None}
    assert plan["not_selected"] == [
        {"client_id": "never", **too_slow},
        {"client_id": "never-updates", **too_slow},
    ]
    with_deadline = service.post("/plans", json=request | {"policy": "fedcs"}).json()
    reasons = {item["client_id"]: item["reason"] for item in with_deadline["not_selected"]}
    assert reasons["never"] == reasons["never-updates"] == "DEADLINE"


@pytest.mark.parametrize("header", [None, "Bearer wrong", "Bearer", "Basic dGVzdA==", "nonsense"])
def test_no_valid_key_no_plan(header: str | None, service: httpx.Client) -> None:
    headers = {} if header is None else {"Authorization": header}
    response = httpx.post(service.base_url.join("/plans"), json=example(), headers=headers, timeout=60)
    assert_problem(response, 401, "UNAUTHENTICATED")
    assert response.headers["www-authenticate"] == "Bearer"


def test_the_key_is_checked_before_the_body_is_read(service: httpx.Client) -> None:
    """A large body is announced and never sent; whoever waits for it would never answer."""
    address = (service.base_url.host, service.base_url.port or 80)
    with socket.create_connection(address, timeout=10) as connection:
        connection.sendall(
            b"POST /plans HTTP/1.1\r\nHost: service\r\nContent-Type: application/json\r\n"
            b"Content-Length: 60000000\r\nAuthorization: Bearer wrong\r\n\r\n"
        )
        assert connection.recv(1000).startswith(b"HTTP/1.1 401 ")


def test_other_methods_and_paths_are_problems_too(service: httpx.Client) -> None:
    assert_problem(service.get("/plans"), 405, "METHOD_NOT_ALLOWED")
    assert_problem(service.get("/nothing"), 404, "NOT_FOUND")


@pytest.fixture(scope="module")
def small_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with running_service(
        tmp_path_factory.mktemp("data"), max_json_bytes="1000", api_root="/fedcs/v1"
    ) as client:
        yield client


def test_a_body_over_the_limit_is_refused(small_service: httpx.Client) -> None:
    assert small_service.post("plans", json=example()).status_code == 200
    assert_problem(small_service.post("plans", json=cell(20)), 413, "BODY_TOO_LARGE")
    assert_problem(small_service.post("plans", json=cell(50_000)), 413, "BODY_TOO_LARGE")


def test_a_body_of_unknown_length_over_the_limit_is_refused(small_service: httpx.Client) -> None:
    def endless() -> Iterator[bytes]:
        yield from [b" " * 600] * 5

    response = small_service.post("plans", content=endless(), headers={"Content-Type": "application/json"})
    assert_problem(response, 413, "BODY_TOO_LARGE")


def test_paths_are_relative_to_the_api_root(small_service: httpx.Client) -> None:
    assert small_service.get("healthz").json() == {"status": "alive"}
    assert small_service.get("docs").status_code == 200
    assert "/fedcs/v1/plans" in small_service.get("openapi.json").json()["paths"]
    assert httpx.get(small_service.base_url.join("/healthz"), timeout=60).status_code == 404


def _post_json(service: httpx.Client, body: dict[str, Any]) -> httpx.Response:
    """Post with NaN and Infinity as Python writes them, which httpx would refuse."""
    content = json.dumps(body)
    return service.post("/plans", content=content, headers={"Content-Type": "application/json"})
