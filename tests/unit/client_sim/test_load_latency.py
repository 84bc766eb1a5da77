import asyncio
import time
from collections.abc import Callable

import httpx
import pytest

from client_sim.fleet import Fleet
from client_sim.load_report import CallRecorder, Operation
from client_sim.load_round import LoadDevices, LoadRounds
from client_sim.load_test import LoadSettings
from fedcs_client import endpoints
from fedcs_client.api import AsyncApi

READY = {"status": "ok", "checks": {}}
PROBLEM = {"type": "about:blank", "title": "Conflict", "status": 409, "detail": "-", "cause": "ROUND_OPEN"}


def api_answering(answer: Callable[[httpx.Request], httpx.Response]) -> AsyncApi:
    return AsyncApi("http://test", "key", retry_timeout_s=0, transport=httpx.MockTransport(answer))


def refuse(_request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused")


def test_latency_counts_from_when_a_call_was_due() -> None:
    async def send() -> CallRecorder:
        recorder = CallRecorder(api_answering(lambda _: httpx.Response(200, json=READY)), 1)
        await recorder.send(Operation.REPORT, endpoints.readiness(), due_s=time.monotonic() - 7)
        await recorder.send(Operation.REPORT, endpoints.readiness())
        return recorder

    recorder = asyncio.run(send())
    held_up_s, other_s = recorder.stats[Operation.REPORT].latencies_s
    assert held_up_s >= 7 > other_s
    assert (recorder.answers, recorder.errors) == (2, 0)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (lambda _: httpx.Response(503), "503 Service Unavailable"),
        (lambda _: httpx.Response(429, headers={"Retry-After": "1"}), "429 Too Many Requests"),
        (lambda _: httpx.Response(409, json=PROBLEM), "409 ROUND_OPEN"),
        (lambda _: httpx.Response(500), "500 UNKNOWN"),
        (lambda _: httpx.Response(200, text="?"), "invalid response"),
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

    async def send() -> CallRecorder:
        recorder = CallRecorder(api_answering(count), 1)
        assert await recorder.send(Operation.UPLOAD, endpoints.readiness()) is None
        return recorder

    tally = asyncio.run(send()).stats[Operation.UPLOAD]
    assert (dict(tally.errors), list(tally.latencies_s), len(sent)) == ({kind: 1}, [], 1)


@pytest.mark.parametrize(("duration_s", "errors"), [(0.0, {"no answer by the end": 1}), (60.0, {})])
def test_what_the_user_breaks_off_is_no_error(duration_s: float, errors: dict[str, int]) -> None:
    async def never(_request: httpx.Request) -> httpx.Response:
        await asyncio.sleep(60)
        raise AssertionError

    async def break_off() -> CallRecorder:
        api = AsyncApi("http://test", "key", retry_timeout_s=0, transport=httpx.MockTransport(never))
        recorder = CallRecorder(api, duration_s)
        sending = recorder.send(Operation.REPORT, endpoints.readiness())
        call = asyncio.create_task(sending)
        await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        return recorder

    assert dict(asyncio.run(break_off()).stats[Operation.REPORT].errors) == errors


def test_reports_that_were_held_up_by_a_slow_one_count_as_slow() -> None:
    # One answer that takes 0.4 s holds up the reports due meanwhile: all are sent, and none looks fast.
    report = {
        "client_id": "c", "throughput_bps": 1.0, "compute_samples_per_s": 1.0, "data_samples": 1,
        "report_resource_blocks": 10, "observed_at": "2026-01-01T12:00:00Z", "task_id": None,
        "received_at": "2026-01-01T12:00:00Z", "radio": None, "cell_id": None,
    }  # fmt: skip
    reports = 0

    async def answer(request: httpx.Request) -> httpx.Response:
        nonlocal reports
        if request.url.path == "/clients/batch":
            enrolled = {
                "client_id": "c", "labels": {}, "cell_id": "default", "enrolled_at": "2026-01-01T12:00:00Z",
                "key_id": "0" * 16, "api_key": "key",
            }  # fmt: skip
            return httpx.Response(201, json={"clients": [enrolled]})
        reports += 1
        await asyncio.sleep(0.4 if reports == 1 else 0)
        return httpx.Response(201, json=report)

    async def run() -> CallRecorder:
        settings = LoadSettings(clients=1, long_polls=0)
        api = AsyncApi("http://test", "key", retry_timeout_s=0, transport=httpx.MockTransport(answer))
        fleet = Fleet.draw(settings.scenario(), "fleet")
        await fleet.enrol(api)
        recorder = CallRecorder(api, 0.5)
        devices = LoadDevices(recorder, fleet, LoadRounds(api, recorder, "task", 5), 0.1, 1)
        await devices.report_loop(0)
        return recorder

    first_s, second_s, third_s, *others = asyncio.run(run()).stats[Operation.REPORT].latencies_s
    assert len(others) == 2
    assert (first_s >= 0.4, second_s >= 0.29, third_s >= 0.19) == (True, True, True)
