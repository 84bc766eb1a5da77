"""The typed client when things fail for a while: what is tried again, and that nothing is done twice."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from fedcs_client import endpoints, retry
from fedcs_client.api import Api, ApiError, AsyncApi, UnreachableError
from fedcs_client.endpoints import Body
from services.contract.tasks import TaskRequest
from services.domain.tasks import Clock
from tests.integration.cell import create_task, enrol_one, make_model, set_model, started_round
from tests.integration.cell import open_round as open_a_round
from tests.integration.cell import report as post_report
from tests.integration.rounds_setup import get_round, slot_of
from tests.integration.scripted_server import answer, scripted_server
from tests.restarted_service import RestartedService, restarted_service
from tests.running_service import OPERATOR_KEY, running_service

READY = answer("200 OK", b'{"status": "ready", "checks": {}}')
TASK = TaskRequest(round_deadline_s=180.0, clock=Clock.SIMULATED)


@pytest.fixture(scope="module")
def restarted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestartedService]:
    with restarted_service(tmp_path_factory.mktemp("data")) as service:
        yield service


@pytest.mark.parametrize(
    "failure",
    [
        pytest.param(b"", id="no answer"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", id="half an answer"),
        pytest.param(b"220 mail.example.org ESMTP\r\n\r\n", id="another protocol"),
        pytest.param(answer("200 OK", b"<html>Please log in</html>"), id="another page"),
        pytest.param(answer("502 Bad Gateway"), id="502"),
        pytest.param(answer("503 Service Unavailable"), id="503"),
        pytest.param(answer("504 Gateway Timeout"), id="504"),
        pytest.param(answer("507 Insufficient Storage"), id="507"),
        pytest.param(answer("429 Too Many Requests", b"", "Retry-After: 0"), id="429"),
    ],
)
def test_what_fails_for_now_is_tried_again(failure: bytes) -> None:
    with scripted_server(failure, READY) as server, Api(server.url, OPERATOR_KEY) as api:
        assert api.send(endpoints.readiness()).status == "ready"

    async def send() -> endpoints.Readiness:
        async with AsyncApi(server.url, OPERATOR_KEY) as async_api:
            return await async_api.send(endpoints.readiness())

    with scripted_server(failure, READY) as server:
        assert asyncio.run(send()).status == "ready"


@pytest.mark.parametrize("status", ["301 Moved Permanently", "400 Bad Request", "500 Internal Server Error"])
def test_other_answers_are_told_at_once(status: str) -> None:
    with scripted_server(answer(status, b"<html/>")) as server, Api(server.url, OPERATOR_KEY) as api:
        with pytest.raises(ApiError) as error:
            api.send(endpoints.readiness())
        assert str(error.value) == f"GET /readyz: {status}: The response has no problem details."


def test_all_attempts_of_what_is_done_once_have_one_key() -> None:
    refused = answer("409 Conflict", b"{}")
    with scripted_server(b"", b"", refused, refused) as server, Api(server.url, OPERATOR_KEY) as api:
        for _ in range(2):
            with pytest.raises(ApiError):
                api.send(endpoints.open_round("task-1"))
    keys = [server.header(request, "Idempotency-Key") for request in range(4)]
    assert keys[0] is not None
    assert keys[0] == keys[1] == keys[2]
    assert keys[3] not in (None, keys[0])


def test_a_paced_upload_begins_anew_with_every_attempt() -> None:
    def slowly(content: bytes) -> Iterator[bytes]:
        yield from (content[place : place + 7] for place in range(0, len(content), 7))

    async def slowly_async(content: bytes) -> AsyncIterator[bytes]:
        for chunk in slowly(content):
            yield chunk

    async def send(url: str) -> None:
        async with AsyncApi(url, OPERATOR_KEY) as async_api:
            await async_api.send(
                endpoints.upload_update("r", "c", Body(b"a model's content", slowly_async), 3)
            )

    done = answer(
        "201 Created",
        b'{"round_id":"r","client_id":"c","digest":"","size_bytes":1,"data_samples":3,'
        b'"grants":[],"replacements":[]}',
    )
    with scripted_server(b"", done, b"", done) as server:
        with Api(server.url, OPERATOR_KEY) as api:
            api.send(endpoints.upload_update("r", "c", Body(b"a model's content", slowly), 3))
        asyncio.run(send(server.url))
    for request, content in enumerate(server.requests):
        assert content.partition(b"\r\n\r\n")[2] == b"a model's content"
        assert server.header(request, "Content-Length") == "17"
        assert server.header(request, "Transfer-Encoding") is None
        assert server.header(request, "Fedcs-Elapsed-S") is None


class LosingAnswers(httpx.HTTPTransport):
    """A network on which the first answer is lost, after the service has done what it was asked."""

    has_lost = False

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = super().handle_request(request)
        if not self.has_lost:
            self.has_lost = True
            response.read()
            response.close()
            raise httpx.ReadError("the answer was lost")
        return response


def test_what_was_done_is_not_done_again(service: httpx.Client) -> None:
    before = int(service.get("/tasks").headers["x-total-count"])
    with Api(str(service.base_url), OPERATOR_KEY, transport=LosingAnswers()) as api:
        api.send(endpoints.create_task(TASK))
    assert int(service.get("/tasks").headers["x-total-count"]) == before + 1

    opened, keys = started_round(service)
    ((client_id, key),) = keys.items()
    with Api(str(service.base_url), key, transport=LosingAnswers()) as api:
        api.send(endpoints.upload_update(opened["round_id"], client_id, make_model(1), 200, elapsed_s=5.0))
    assert get_round(service, opened["round_id"])["received"] == 1


def test_a_wait_goes_on_when_the_service_is_restarted(restarted: RestartedService) -> None:
    client_id, key = enrol_one(restarted.service, {"cell": "waits"})
    post_report(restarted.service, client_id)
    task_id = create_task(restarted.service, labels={"cell": "waits"})["task_id"]
    set_model(restarted.service, task_id)
    with Api(restarted.url, key) as api, ThreadPoolExecutor(1) as thread:
        known = api.send(endpoints.assignments())
        waiting = thread.submit(api.send, endpoints.assignments(30.0, known))
        time.sleep(0.3)
        restarted.kill()
        assert not waiting.done()
        restarted.start()
        opened = open_a_round(restarted.service, task_id)
        assert waiting.result(timeout=30).assignments[0].round_id == opened["round_id"]


def test_an_upload_goes_on_when_the_service_is_restarted(restarted: RestartedService) -> None:
    opened, keys = started_round(restarted.service)
    ((client_id, key),) = keys.items()
    tries = 0

    def broken_once(content: bytes) -> Iterator[bytes]:
        nonlocal tries
        tries += 1
        yield content[:100]
        if tries == 1:
            restarted.kill()
            restarted.start()
        yield content[100:]

    body = Body(make_model(1), broken_once)
    with Api(restarted.url, key) as api:
        api.send(endpoints.upload_update(opened["round_id"], client_id, body, 200, elapsed_s=5.0))
    assert tries == 2
    assert get_round(restarted.service, opened["round_id"])["received"] == 1
    assert slot_of(restarted.service, opened["round_id"], client_id)["rejections"] == 0


def test_nobody_listens() -> None:
    with scripted_server() as nobody:
        url = nobody.url
    with Api(url, OPERATOR_KEY, retry_timeout_s=0.3) as api, pytest.raises(UnreachableError) as error:
        api.send(endpoints.readiness())
    assert str(error.value) == f"{url} cannot be used: [Errno 111] Connection refused"

    async def send() -> None:
        async with AsyncApi(url, OPERATOR_KEY, retry_timeout_s=0.3) as async_api:
            await async_api.send(endpoints.readiness())

    with pytest.raises(UnreachableError, match=rf"^{url} cannot be used: Connection refused$"):
        asyncio.run(send())


def test_a_service_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_SILENCE_S", 0.2)

    async def send(url: str) -> None:
        async with AsyncApi(url, OPERATOR_KEY, retry_timeout_s=0.1) as async_api:
            await async_api.send(endpoints.readiness())

    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with Api(url, OPERATOR_KEY, retry_timeout_s=0.1) as api, pytest.raises(UnreachableError) as error:
            api.send(endpoints.readiness())
        assert str(error.value) == f"{url} cannot be used: no answer in time"
        with pytest.raises(UnreachableError, match="no answer in time"):
            asyncio.run(send(url))


def test_a_client_that_asks_too_often_waits_as_told(tmp_path: Path) -> None:
    def ask_often(url: str, key: str, retry_timeout_s: float) -> list[int]:
        with Api(url, key, retry_timeout_s=retry_timeout_s) as api:
            return [len(api.send(endpoints.assignments()).assignments) for _ in range(5)]

    with running_service(tmp_path, client_rate_limit="2/second") as service:
        url = str(service.base_url)
        assert ask_often(url, enrol_one(service)[1], retry_timeout_s=60.0) == [0] * 5
        with pytest.raises(UnreachableError) as error:
            ask_often(url, enrol_one(service)[1], retry_timeout_s=0.5)
    assert str(error.value).endswith(
        "cannot be used: 429 Too Many Requests: The rate limit is 2 per 1 second."
    )
