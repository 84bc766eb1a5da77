"""The typed client's stream of events, across breaks."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest

from fedcs_client import endpoints
from fedcs_client.api import ApiError, AsyncApi, UnreachableError
from services.contract.common import EventResponse
from services.contract.tasks import TaskRequest
from services.domain.tasks import Clock
from tests.integration.cell import create_task, enrol_one
from tests.integration.scripted_server import answer, scripted_server
from tests.restarted_service import RestartedService, restarted_service
from tests.running_service import OPERATOR_KEY

TASK = TaskRequest(round_deadline_s=180.0, clock=Clock.SIMULATED)
STREAM = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def restarted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RestartedService]:
    with restarted_service(tmp_path_factory.mktemp("data")) as service:
        yield service


async def next_of(events: AsyncIterator[EventResponse], how_many: int) -> list[EventResponse]:
    async with asyncio.timeout(30):
        return [await anext(events) for _ in range(how_many)]


def test_what_happens_after_it_is_entered_is_told(service: httpx.Client) -> None:
    async def follow() -> None:
        async with AsyncApi(str(service.base_url), OPERATOR_KEY) as api:
            other = (await api.send(endpoints.create_task(TASK))).task_id
            async with api.events() as events:
                task_id = (await api.send(endpoints.create_task(TASK))).task_id
                async with api.events(task_id=task_id) as own_events:
                    await api.send(endpoints.cancel_task(other))
                    await api.send(endpoints.cancel_task(task_id))
                    assert [event.kind for event in await next_of(own_events, 1)] == ["task.cancelled"]
                told = await next_of(events, 3)
            assert [(event.kind, event.task_id) for event in told] == [
                ("task.initializing", task_id),
                ("task.cancelled", other),
                ("task.cancelled", task_id),
            ]

    asyncio.run(follow())


def test_nothing_is_missed_and_nothing_told_twice_across_restarts(restarted: RestartedService) -> None:
    async def follow() -> None:
        async with AsyncApi(restarted.url, OPERATOR_KEY) as api, api.events() as events:
            made = []
            told = []
            for restarts in range(2):
                made += [create_task(restarted.service)["task_id"] for _ in range(2)]
                if restarts:  # at first it breaks before anything was told
                    told += await next_of(events, 1)
                await asyncio.to_thread(restarted.kill)
                await asyncio.to_thread(restarted.start)
                made.append(create_task(restarted.service)["task_id"])
            told += await next_of(events, len(made) - len(told))
            assert [event.task_id for event in told] == made
            first = told[0].number
            assert [event.number for event in told] == list(range(first, first + len(made)))

    asyncio.run(follow())


def test_a_stream_that_breaks_is_resumed_after_the_last_whole_event() -> None:
    example = EventResponse.model_validate(EventResponse.model_json_schema()["examples"][0])
    events = [example.model_copy(update={"number": number}) for number in (8, 9)]
    first, second = (
        f"event: x\ndata: {event.model_dump_json()}\nid: {event.number}\n\n".encode() for event in events
    )
    head = STREAM.encode()
    broken = (
        head + b"id: 7\n\n",
        head + first + second[:-1],
        answer("503 Service Unavailable"),
        head + second,
    )

    async def follow(url: str) -> None:
        async with AsyncApi(url, OPERATOR_KEY) as api, api.events() as stream:
            assert await next_of(stream, 2) == events

    with scripted_server(*broken) as server:
        asyncio.run(follow(server.url))
    assert [server.header(request, "Last-Event-ID") for request in range(4)] == [None, "7", "8", "8"]


def test_events_are_not_for_clients(service: httpx.Client) -> None:
    _, key = enrol_one(service)

    async def follow() -> None:
        async with AsyncApi(str(service.base_url), key) as api, api.events():
            pass

    with pytest.raises(ApiError, match="403 Forbidden"):
        asyncio.run(follow())


def test_a_service_that_does_not_come_back_is_told() -> None:
    async def follow(url: str) -> None:
        async with AsyncApi(url, OPERATOR_KEY, retry_timeout_s=0.3) as api, api.events() as events:
            await next_of(events, 1)

    with scripted_server(STREAM.encode() + b"id: 7\n\n") as server, pytest.raises(UnreachableError):
        asyncio.run(follow(server.url))
