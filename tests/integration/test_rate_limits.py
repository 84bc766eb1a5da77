"""How often a client or an operator key may ask, over real HTTP. No window ends while the test counts."""

import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.integration.cell import (
    UNKNOWN_KEY,
    as_client,
    assert_problem,
    enrol,
    enrol_one,
    resources,
    without_key,
)
from tests.running_service import running_service


@pytest.fixture(scope="module")
def strict_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client may ask three times in an hour, an operator a hundred times."""
    limits = {"client_rate_limit": "3/hour", "operator_rate_limit": "100/hour"}
    with running_service(tmp_path_factory.mktemp("data"), **limits) as client:
        yield client


def test_a_key_that_asks_too_often_is_told_when_to_come_again(strict_service: httpx.Client) -> None:
    _, key = enrol_one(strict_service)
    with as_client(strict_service, key) as client:
        assert [client.get("/assignments").status_code for _ in range(3)] == [200, 200, 200]
        refused = client.get("/assignments")
        problem = assert_problem(refused, 429, "TOO_MANY_REQUESTS")
        assert "3 per 1 hour" in problem["detail"]
        assert 0 < int(refused.headers["retry-after"]) <= 3600
        assert_problem(client.get("/rounds"), 429, "TOO_MANY_REQUESTS")


def test_who_comes_again_when_told_is_let_in(tmp_path: Path) -> None:
    with running_service(tmp_path, client_rate_limit="1/2 second") as service:
        _, key = enrol_one(service)
        with as_client(service, key) as client:
            answers = (client.get("/assignments") for _ in range(1000))
            refused = next(answer for answer in answers if answer.status_code == 429)
            time.sleep(int(refused.headers["retry-after"]))
            assert client.get("/assignments").status_code == 200


def test_another_client_is_not_affected(strict_service: httpx.Client) -> None:
    _, greedy = enrol_one(strict_service)
    _, modest = enrol_one(strict_service)
    with as_client(strict_service, greedy) as client:
        assert 429 in [client.get("/assignments").status_code for _ in range(4)]
        with as_client(strict_service, modest) as other:
            assert other.get("/assignments").status_code == 200
        assert strict_service.get("/clients").status_code == 200


def test_operator_keys_have_a_limit_of_their_own(strict_service: httpx.Client) -> None:
    made = strict_service.post("/keys", json={"scope": "read"}).json()["api_key"]
    with as_client(strict_service, made) as reader:
        answers = [reader.get("/tasks").status_code for _ in range(105)]
    assert answers == [200] * 100 + [429] * 5


def test_refused_requests_do_nothing(strict_service: httpx.Client) -> None:
    ((client_id, key),) = enrol(strict_service).items()
    with as_client(strict_service, key) as client:
        statuses = [client.post("/reports", json=resources(client_id)).status_code for _ in range(5)]
    stored = strict_service.get(f"/clients/{client_id}/reports").headers["x-total-count"]
    assert statuses == [201, 201, 201, 429, 429]
    assert stored == "3"


def test_what_is_open_and_what_has_no_key_is_not_counted(strict_service: httpx.Client) -> None:
    with without_key(strict_service) as stranger:
        assert {stranger.get("/healthz").status_code for _ in range(50)} == {200}
    with as_client(strict_service, UNKNOWN_KEY) as stranger:
        assert {stranger.get("/clients").status_code for _ in range(50)} == {401}
