"""Every request of the corpus gets one of its answers: a problem wherever the API answers."""

import random
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.hostile.http_corpus import HostileRequest, hostile_requests
from tests.hostile.raw_http import address_of, exchange
from tests.integration.cell import UNKNOWN_KEY, enrol_one
from tests.running_service import OPERATOR_KEY, service_process

KINDS = [request.kind for request in hostile_requests(OPERATOR_KEY, UNKNOWN_KEY, random.Random(8))]


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log") / "api.log"


@pytest.fixture(scope="module")
def logged_service(tmp_path_factory: pytest.TempPathFactory, log: Path) -> Iterator[httpx.Client]:
    with service_process(tmp_path_factory.mktemp("data"), log) as (client, _):
        yield client


@pytest.fixture(scope="module")
def corpus(logged_service: httpx.Client) -> list[HostileRequest]:
    _, key = enrol_one(logged_service)
    return hostile_requests(OPERATOR_KEY, key, random.Random(8))


@pytest.mark.parametrize("number", range(len(KINDS)), ids=KINDS)
def test_it_is_refused(number: int, corpus: list[HostileRequest], logged_service: httpx.Client) -> None:
    hostile = corpus[number]
    answer = exchange(address_of(logged_service), hostile.content)
    assert answer.status in hostile.statuses, answer
    is_page = answer.headers.get("content-type", "").startswith("text/html")
    is_token_error = answer.headers.get("content-type") == "application/json"  # as RFC 6749 wants them
    if answer.status >= 400 and not is_page and not is_token_error:
        assert answer.problem["detail"]


def test_nothing_of_all_that_was_an_error_of_ours(log: Path, logged_service: httpx.Client) -> None:
    assert logged_service.get("/healthz").status_code == 200
    assert "Traceback" not in log.read_text()
