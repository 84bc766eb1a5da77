"""Load on the real stack: what goes well, what is refused, and what breaks in the middle."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import httpx
import pytest

from client_sim import load_test
from client_sim.load_report import LoadReport, Operation
from client_sim.load_test import LoadProgress, LoadSettings, run_load_test
from fedcs_client.api import ApiError, AsyncApi
from fedcs_client.endpoints import Call
from services.errors import FedCSError
from tests.integration.cell import UNKNOWN_KEY
from tests.running_service import OPERATOR_KEY, running_service, service_process
from tests.running_stack import Stack, running_stack

Answer = TypeVar("Answer")
TOO_MANY = "429 Too Many Requests"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running_stack(tmp_path_factory.mktemp("stack"), "--processes", "1") as running:
        yield running


def ignore(_progress: LoadProgress) -> None:
    """Nobody looks."""


def put_under_load(
    url: httpx.URL | str,
    settings: LoadSettings,
    on_tick: Callable[[LoadProgress], None] = ignore,
    key: str = OPERATOR_KEY,
) -> LoadReport:
    async def run() -> LoadReport:
        async with AsyncApi(str(url), key, retry_timeout_s=0) as api:
            return await run_load_test(api, settings, on_tick)

    return asyncio.run(run())


def clients_enrolled(service: httpx.Client) -> int:
    return int(service.get("/clients").headers["X-Total-Count"])


@pytest.mark.parametrize(
    ("clients", "duration_s"), [(40, 4), pytest.param(200, 5, marks=pytest.mark.long)], ids=["few", "many"]
)
def test_many_clients_without_an_error(clients: int, duration_s: int, stack: Stack) -> None:
    settings = LoadSettings(
        clients=clients,
        duration_s=duration_s,
        report_every_s=1,
        round_every_s=1,
        model_bytes=20_000,
        long_polls=clients // 4,
        poll_wait_s=1,
    )
    ticks: list[LoadProgress] = []
    report = put_under_load(stack.service.base_url, settings, ticks.append)

    assert {name: figures.errors for name, figures in report.operations.items() if figures.errors} == {}
    figures = report.operations
    assert figures[Operation.REPORT].count == clients * duration_s
    assert sum(figures[Operation.REPORT].per_10_s) == clients * duration_s
    assert figures[Operation.LONG_POLL].count >= 1
    assert report.rounds == figures[Operation.OPEN_ROUND].count == figures[Operation.AGGREGATION].count >= 1
    assert figures[Operation.DOWNLOAD].count == figures[Operation.UPLOAD].count
    assert figures[Operation.UPLOAD].count >= clients // 20 * report.rounds
    assert not report.ended_early

    task = stack.service.get("/tasks").json()[0]
    assert (task["name"], task["state"], task["model_version"]) == ("load test", "cancelled", report.rounds)
    rounds = stack.service.get(f"/tasks/{task['task_id']}/metrics").json()["rounds"]
    assert sum(round_["received"] for round_ in rounds) == figures[Operation.UPLOAD].count

    assert report.memory is not None
    assert len(report.memory.samples) >= 2
    assert report.memory.last_mb > 20
    assert (report.clients_left, clients_enrolled(stack.service)) == (0, 0)
    stages = list(dict.fromkeys(tick.stage for tick in ticks))
    assert stages == ["enrolling clients", "under load", "cleaning up"]
    assert max(tick.answers for tick in ticks) > 0


class InterruptedApi(AsyncApi):
    """Enrols clients, and is interrupted before it has the answer."""

    async def send(self, call: Call[Answer], key: str | None = None) -> Answer:
        answer = await super().send(call, key)
        if call.path == "/clients/batch":
            raise asyncio.CancelledError
        return answer


def test_interrupted_while_it_enrols_it_leaves_no_clients(stack: Stack) -> None:
    async def run() -> None:
        async with InterruptedApi(str(stack.service.base_url), OPERATOR_KEY, retry_timeout_s=0) as api:
            await run_load_test(api, LoadSettings(clients=50, duration_s=60, long_polls=10), ignore)

    before = clients_enrolled(stack.service)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run())
    assert clients_enrolled(stack.service) == before


def test_cancelled_it_tells_what_it_has(stack: Stack) -> None:
    settings = LoadSettings(
        clients=50, duration_s=60, report_every_s=1, round_every_s=30, long_polls=10, keep_clients=True
    )

    async def run() -> LoadReport:
        async with AsyncApi(str(stack.service.base_url), OPERATOR_KEY, retry_timeout_s=0) as api:
            load = asyncio.create_task(run_load_test(api, settings, lambda tick: stop(tick, load)))
            return await load

    def stop(tick: LoadProgress, load: asyncio.Task[LoadReport]) -> None:
        if tick.answers >= 20 and not load.cancelling():
            load.cancel()

    report = asyncio.run(run())
    assert report.ended_early
    assert 0 < report.duration_s < 60
    assert report.operations[Operation.REPORT].count >= 20
    assert report.errors == 0
    assert (report.clients_left, clients_enrolled(stack.service)) == (50, 50)


def test_a_wrong_key_is_one_clear_error(stack: Stack) -> None:
    with pytest.raises(ApiError, match=r"POST /clients/batch: 401 Unauthorized: .+") as refused:
        put_under_load(stack.service.base_url, LoadSettings(clients=2, long_polls=0), key=UNKNOWN_KEY)
    assert "\n" not in str(refused.value)


def test_nobody_there_is_one_clear_error() -> None:
    with pytest.raises(FedCSError, match=r"^http://127.0.0.1:1 cannot be used: .+"):
        put_under_load("http://127.0.0.1:1", LoadSettings(clients=2, long_polls=0))


def test_what_is_refused_is_counted_by_its_kind(tmp_path: Path) -> None:
    settings = LoadSettings(clients=30, duration_s=3, report_every_s=1, round_every_s=3, long_polls=5)
    with running_service(tmp_path, client_rate_limit="1/hour") as service:
        report = put_under_load(service.base_url, settings)
    figures = report.operations
    assert figures[Operation.REPORT].count + figures[Operation.REPORT].errors[TOO_MANY] == 90
    assert figures[Operation.REPORT].count <= 2 * 30  # the window may end once
    assert set(figures[Operation.REPORT].errors) == {TOO_MANY}
    assert report.rounds == 0
    assert figures[Operation.AGGREGATION].errors == {"failed": 1}
    assert report.clients_left == 0


def test_a_service_killed_in_the_middle(tmp_path: Path) -> None:
    settings = LoadSettings(clients=40, duration_s=4, report_every_s=1, round_every_s=1, long_polls=10)
    with service_process(tmp_path, tmp_path / "log") as (service, process):

        def kill(tick: LoadProgress) -> None:
            if tick.elapsed_s >= 1 and tick.answers >= 20:
                process.kill()

        report = put_under_load(service.base_url, settings, kill)
    reports = report.operations[Operation.REPORT]
    assert reports.count > 0
    assert reports.count + sum(reports.errors.values()) == 40 * 4  # none is left out
    assert "ConnectionRefusedError" in reports.errors
    assert report.operations[Operation.EVENTS].errors
    assert (report.rounds, report.clients_left, report.ended_early) == (0, 40, False)


def test_what_is_never_answered_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_test, "_DRAIN_S", 0.5)
    settings = LoadSettings(clients=40, duration_s=2, report_every_s=1, round_every_s=2, long_polls=0)
    with service_process(tmp_path, tmp_path / "log") as (service, process):

        def halt(tick: LoadProgress) -> None:
            is_over = tick.stage == "cleaning up"
            if is_over or tick.elapsed_s >= 1:
                process.send_signal(signal.SIGCONT if is_over else signal.SIGSTOP)

        report = put_under_load(service.base_url, settings, halt)
    reports = report.operations[Operation.REPORT]
    unanswered = reports.errors["no answer by the end"]
    # Two of each, unless one waited for its first answer when the service stood still.
    assert 0 < unanswered <= 40
    assert 40 * 2 - unanswered <= reports.count + unanswered <= 40 * 2
    assert report.clients_left == 0
