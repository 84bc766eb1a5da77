import asyncio
import time
from collections.abc import Callable

import httpx
import pytest

from client_sim import calls
from client_sim.api_client import AsyncApi
from client_sim.fleet import Fleet
from client_sim.load_devices import LoadDevices
from client_sim.load_latency import Measured, Operation
from client_sim.load_round import LoadRounds
from client_sim.load_settings import LoadSettings

READY = {"status": "ok", "checks": {}}
PROBLEM = {"type": "about:blank", "title": "Conflict", "status": 409, "detail": "-", "cause": "ROUND_OPEN"}


def api_answering(answer: Callable[[httpx.Request], httpx.Response]) -> AsyncApi:
    return AsyncApi("http://test", "key", patience_s=0, transport=httpx.MockTransport(answer))


def refuse(_request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused")


def test_latency_counts_from_when_a_call_was_due() -> None:
    async def send() -> Measured:
        measured = Measured(api_answering(lambda _: httpx.Response(200, json=READY)), 1)
        await measured.send(Operation.REPORT, calls.readiness(), due_s=time.monotonic() - 7)
        await measured.send(Operation.REPORT, calls.readiness())
        return measured

    measured = asyncio.run(send())
    held_up_s, other_s = measured.tallies[Operation.REPORT].latencies_s
    assert held_up_s >= 7 > other_s
    assert (measured.answers, measured.errors) == (2, 0)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (lambda _: httpx.Response(503), "503 Service Unavailable"),
        (lambda _: httpx.Response(429, headers={"Retry-After": "1"}), "429 Too Many Requests"),
        (lambda _: httpx.Response(409, json=PROBLEM), "409 ROUND_OPEN"),
        (lambda _: httpx.Response(500), "500 UNKNOWN"),
        (lambda _: httpx.Response(200, text="?"), "wrong answer"),
        (refuse, "ConnectError"),
    ],
)
def test_a_call_is_sent_once_and_its_error_has_a_kind(
    answer: Callable[[httpx.Request], httpx.Response], kind: str
) -> None:
    sent = []

    def count(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return answer(request)

    async def send() -> Measured:
        measured = Measured(api_answering(count), 1)
        assert await measured.send(Operation.UPLOAD, calls.readiness()) is None
        return measured

    tally = asyncio.run(send()).tallies[Operation.UPLOAD]
    assert (dict(tally.errors), list(tally.latencies_s), len(sent)) == ({kind: 1}, [], 1)


@pytest.mark.parametrize(("duration_s", "errors"), [(0.0, {"no answer by the end": 1}), (60.0, {})])
def test_what_the_user_breaks_off_is_no_error(duration_s: float, errors: dict[str, int]) -> None:
    async def never(_request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(60)
        raise AssertionError

    async def break_off() -> Measured:
        api = AsyncApi("http://test", "key", patience_s=0, transport=httpx.MockTransport(never))
        measured = Measured(api, duration_s)
        sending = measured.send(Operation.REPORT, calls.readiness())
        call = asyncio.create_task(sending)
        await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        return measured

    assert dict(asyncio.run(break_off()).tallies[Operation.REPORT].errors) == errors


def test_reports_that_were_held_up_by_a_slow_one_count_as_slow() -> None:
    # One answer that takes 0.4 s holds up the reports due meanwhile: all are sent, and none looks fast.
    report = {
        "client_id": "c", "throughput_bps": 1.0, "compute_samples_per_s": 1.0, "data_samples": 1,
        "report_resource_blocks": 10, "observed_at": "2026-01-01T12:00:00Z", "task_id": None,
        "received_at": "2026-01-01T12:00:00Z", "radio": None,
    }  # fmt: skip
    reports = 0

    async def answer(request: httpx.Request) -> httpx.Response:
        nonlocal reports
        if request.url.path == "/clients/batch":
            enrolled = {
                "client_id": "c", "labels": {}, "enrolled_at": "2026-01-01T12:00:00Z", "key_id": "0" * 16,
                "api_key": "key",
            }  # fmt: skip
            return httpx.Response(201, json={"clients": [enrolled]})
        reports += 1
        await asyncio.sleep(0.4 if reports == 1 else 0)
        return httpx.Response(201, json=report)

    async def run() -> Measured:
        settings = LoadSettings(clients=1, long_polls=0)
        api = AsyncApi("http://test", "key", patience_s=0, transport=httpx.MockTransport(answer))
        fleet = Fleet.draw(settings.scenario(), "fleet")
        await fleet.enrol(api)
        measured = Measured(api, 0.5)
        devices = LoadDevices(measured, fleet, LoadRounds(api, measured, "task", 5), 0.1, 1)
        await devices.keep_reporting(0)
        return measured

    first_s, second_s, third_s, *others = asyncio.run(run()).tallies[Operation.REPORT].latencies_s
    assert len(others) == 2
    assert (first_s >= 0.4, second_s >= 0.29, third_s >= 0.19) == (True, True, True)
