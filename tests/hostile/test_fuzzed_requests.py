"""Some hundreds of fuzzed requests of a fixed seed; ``make hostile`` sends many more."""

import random
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

import httpx
import pytest

from tests.hostile.fuzzed_requests import fuzzed_requests
from tests.hostile.raw_http import address_of, exchange
from tests.integration.cell import make_model, started_round
from tests.integration.rounds_setup import slot_of, upload_as
from tests.running_service import OPERATOR_KEY, service_process

REQUESTS = 600


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "api.log"


@pytest.fixture
def logged_service(tmp_path: Path, log: Path) -> Iterator[httpx.Client]:
    with service_process(tmp_path, log) as (client, _):
        yield client


def test_none_of_them_is_an_error_of_ours(logged_service: httpx.Client, log: Path) -> None:
    opened, keys = started_round(logged_service)
    ((client_id, key),) = keys.items()
    fuzzer = fuzzed_requests(random.Random(8), OPERATOR_KEY, client_id, key, opened["round_id"])
    failed = []
    for fuzzed in islice(fuzzer, REQUESTS):
        with suppress(TimeoutError):  # it announces more than it sends, and the service waits for that
            answer = exchange(address_of(logged_service), fuzzed.content, timeout_s=1)
            if answer.status >= 500:
                failed.append((fuzzed, answer))
    assert not failed
    assert "Traceback" not in log.read_text()
    assert slot_of(logged_service, opened["round_id"], client_id)["outcome"] == "pending"
    sent = upload_as(logged_service, key, opened["round_id"], client_id, update=make_model(1))
    assert sent.status_code == 201
