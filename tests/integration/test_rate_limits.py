"""How often a key may ask, over real HTTP."""

import time
from collections.abc import Iterator

import httpx
import pytest

from tests.integration.cell import UNKNOWN_KEY, as_client, assert_problem, enrol, enrol_one, without_key
from tests.running_service import running_service


@pytest.fixture(scope="module")
def strict_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client may ask three times in two seconds, an operator twenty times in five."""
    with running_service(
        tmp_path_factory.mktemp("data"), client_rate_limit="3/2 second", operator_rate_limit="20/5 second"
    ) as client:
        yield client


def test_a_key_that_asks_too_often_is_told_when_to_come_again(strict_service: httpx.Client) -> None:
    _, key = enrol_one(strict_service)
    with as_client(strict_service, key) as client:
        assert [client.get("/assignments").status_code for _ in range(3)] == [200, 200, 200]
        refused = client.get("/assignments")
        problem = assert_problem(refused, 429, "TOO_MANY_REQUESTS")
        assert "3 per 2 second" in problem["detail"]
        wait_s = int(refused.headers["retry-after"])
        assert 1 <= wait_s <= 2
        assert_problem(client.get("/rounds"), 429, "TOO_MANY_REQUESTS")
        time.sleep(wait_s)
        assert client.get("/assignments").status_code == 200


def test_another_key_is_not_affected(strict_service: httpx.Client) -> None:
    client_id, greedy = enrol_one(strict_service)
    _, modest = enrol_one(strict_service)
    further = strict_service.post(f"/clients/{client_id}/keys", json={}).json()["api_key"]
    with as_client(strict_service, greedy) as client:
        assert 429 in [client.get("/assignments").status_code for _ in range(4)]
        for key in (modest, further):
            with as_client(strict_service, key) as other:
                assert other.get("/assignments").status_code == 200
        assert strict_service.get("/clients").status_code == 200


def test_operator_keys_have_a_limit_of_their_own(strict_service: httpx.Client) -> None:
    made = strict_service.post("/keys", json={"scope": "read"}).json()["api_key"]
    with as_client(strict_service, made) as reader:
        answers = [reader.get("/tasks").status_code for _ in range(25)]
    assert answers == [200] * 20 + [429] * 5


def test_refused_requests_do_nothing(strict_service: httpx.Client) -> None:
    ((client_id, key),) = enrol(strict_service).items()
    body = {"client_id": client_id, "throughput_bps": 1, "compute_samples_per_s": 1, "data_samples": 1}
    with as_client(strict_service, key) as client:
        statuses = [client.post("/reports", json=body).status_code for _ in range(5)]
    stored = strict_service.get(f"/clients/{client_id}/reports").headers["x-total-count"]
    assert statuses == [201, 201, 201, 429, 429]
    assert stored == "3"


def test_what_is_open_and_what_has_no_key_is_not_counted(strict_service: httpx.Client) -> None:
    with without_key(strict_service) as stranger:
        assert {stranger.get("/healthz").status_code for _ in range(50)} == {200}
    with as_client(strict_service, UNKNOWN_KEY) as stranger:
        assert {stranger.get("/clients").status_code for _ in range(50)} == {401}
