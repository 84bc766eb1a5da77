"""Charts and plans wait for each other, and nobody else waits for them."""

import asyncio
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from operator_api.service import ComputePool
from services import gantt
from tests.in_process_service import asgi_service
from tests.integration.cell import assert_problem, content_digest, make_model, resources
from tests.integration.plan_requests import example

MOST = 50
"""Charts and plans that are under way or wait."""
NEVER_S = 60.0


async def enrol(service: httpx.AsyncClient, client_id: str) -> dict[str, str]:
    enrolled = await service.post("/clients", json={"client_id": client_id})
    assert enrolled.status_code == 201, enrolled.text
    return {"Authorization": f"Bearer {enrolled.json()['api_key']}"}


async def open_round(service: httpx.AsyncClient) -> str:
    await enrol(service, "selected")
    assert (await service.post("/reports", json=resources("selected"))).status_code == 201
    terms = {"round_deadline_s": 180, "request_fraction": 1, "model_size_bytes": 1000, "clock": "simulated"}
    task_id = (await service.post("/tasks", json=terms)).json()["task_id"]
    model = make_model()
    await service.put(f"/tasks/{task_id}/models/0", content=model, headers=content_digest(model))
    opened = await service.post("/rounds", json={"task_id": task_id})
    assert opened.status_code == 201, opened.text
    round_id: str = opened.json()["round_id"]
    return round_id


def test_a_report_is_answered_while_charts_and_plans_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()

    def held(*_: Any) -> bytes:
        assert go_on.wait(NEVER_S)
        return b"<svg/>"

    monkeypatch.setattr(gantt, "draw_gantt", held)

    async def ask() -> list[httpx.Response]:
        async with asgi_service(tmp_path) as (service, _):
            path = f"/rounds/{await open_round(service)}/schedule"
            charts = [
                asyncio.create_task(service.get(path, headers={"Accept": "image/svg+xml"}))
                for _ in range(MOST + 5)
            ]
            try:
                async with asyncio.timeout(NEVER_S / 2):
                    key = await enrol(service, "reporting")
                    report = await service.post("/reports", json=resources("reporting"), headers=key)
                    assert report.status_code == 201
                    assert (await service.get(path)).status_code == 200
                    while sum(chart.done() for chart in charts) < 5:
                        await asyncio.sleep(0.01)
                    plan = await service.post("/plans", json=example())
                    assert_problem(plan, 503, "SERVICE_BUSY")
            finally:
                go_on.set()
            return await asyncio.gather(*charts)

    answers = asyncio.run(ask())
    assert Counter(answer.status_code for answer in answers) == {200: MOST, 503: 5}
    for answer in answers:
        if answer.status_code == 503:
            assert_problem(answer, 503, "SERVICE_BUSY")
            assert int(answer.headers["retry-after"]) > 0
        else:
            assert answer.headers["content-type"] == "image/svg+xml"


def test_there_is_room_again_when_work_has_ended_or_failed() -> None:
    def fail() -> None:
        raise ValueError

    async def work() -> None:
        pool = ComputePool()
        for _ in range(2):
            assert await asyncio.gather(*(pool.run(int, number) for number in range(MOST))) == [*range(MOST)]
            failed = await asyncio.gather(*(pool.run(fail) for _ in range(MOST)), return_exceptions=True)
            assert {type(error) for error in failed} == {ValueError}
        pool.stop()

    asyncio.run(work())
