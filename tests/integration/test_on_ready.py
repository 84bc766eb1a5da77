"""Granting the channel over HTTP, on both clocks, to devices that know ready and to others."""

import asyncio
from contextlib import ExitStack
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import numpy as np
import pytest

from client_sim.on_ready import OnReadyRound
from client_sim.round_simulation import Absence, SimulatedSlot, round_rng, simulate_round
from client_sim.scenario import Behaviour
from client_sim.traces import NS_PER_S, Trace
from client_sim.uplinks import RoundUplinks, TraceUplinks
from fedcs_client import Device, Resources, endpoints
from fedcs_client.api import ApiError, AsyncApi
from services.contract.assignments import ChannelResponse, ReadyResponse
from services.contract.rounds import RoundResponse, ScheduleResponse
from services.domain.nanoseconds import to_ns, to_seconds
from tests.databases import KINDS, new_database
from tests.in_process_service import TimedService
from tests.integration.cell import (
    as_client,
    assert_problem,
    create_task,
    enrol,
    enrol_one,
    fresh_name,
    make_model,
    open_round,
    report,
    set_model,
    upload,
)
from tests.integration.rounds_setup import eventually, get_round, quick_round, slot_of, upload_as
from tests.plain_channel import PlainDevice, plain_uploads
from tests.running_service import OPERATOR_KEY, service_process


def _ready(service: httpx.Client, key: str, round_id: str, **body: object) -> httpx.Response:
    with as_client(service, key) as client:
        return client.post(f"/rounds/{round_id}/ready", json=body)


def _random_cell(
    service: httpx.Client, clients: int, seed: int, **terms: object
) -> tuple[str, dict[str, str]]:
    """A task whose clients differ; its id, and their keys."""
    rng = np.random.default_rng(seed)
    labels = {"cell": fresh_name("cell")}
    keys = enrol(service, clients, labels)
    for client_id in keys:
        report(
            service,
            client_id,
            throughput_bps=float(rng.uniform(1e6, 8e6)),
            compute_samples_per_s=float(rng.uniform(10, 100)),
            data_samples=int(rng.integers(100, 1000)),
        )
    task = create_task(service, labels=labels, model_size_bytes=5_000_000, dispatch="on_ready", **terms)
    set_model(service, task["task_id"])
    return task["task_id"], keys


class _Calls:
    """The calls of the devices of a simulated round."""

    def __init__(self, api: AsyncApi, round_id: str, keys: dict[str, str]) -> None:
        self._api = api
        self._round_id = round_id
        self._keys = keys

    async def ready(self, client_id: str, elapsed_s: float, throughput_bps: float | None) -> ReadyResponse:
        call = endpoints.mark_ready(self._round_id, throughput_bps=throughput_bps, elapsed_s=elapsed_s)
        return await self._api.send(call, key=self._keys[client_id])

    async def upload(self, slot: SimulatedSlot) -> ChannelResponse | None:
        call = endpoints.upload_update(
            self._round_id,
            slot.client_id,
            b"" if slot.late else make_model(1),
            10,
            elapsed_s=slot.upload_end_s,
            upload_s=slot.upload_s,
        )
        try:
            return await self._api.send(call, key=self._keys[slot.client_id])
        except ApiError as error:
            if not (slot.late and error.problem.cause == "DEADLINE_PASSED"):
                raise
            return None

    async def schedule(self) -> ScheduleResponse:
        return await self._api.send(endpoints.get_schedule(self._round_id))


def _run(
    service: httpx.Client,
    opened: RoundResponse,
    keys: dict[str, str],
    simulated: list[SimulatedSlot],
    behaviour: Behaviour,
    *,
    uplinks: RoundUplinks | None = None,
) -> ScheduleResponse:
    """Run the devices of a simulated round; the schedule after it."""
    schedule = opened.schedule
    assert schedule is not None

    async def run() -> ScheduleResponse:
        async with AsyncApi(str(service.base_url), OPERATOR_KEY) as api:
            calls = _Calls(api, opened.round_id, keys)
            rng = round_rng(opened.number, 2)
            await OnReadyRound(schedule, simulated, behaviour, rng, calls, uplinks=uplinks).run()
            return await calls.schedule()

    return asyncio.run(run())


def _plain(schedule: ScheduleResponse, simulated: list[SimulatedSlot], *, fresh: bool) -> dict[str, int]:
    """When the uploads end, by the plain simulation."""
    begin_ns = to_ns(schedule.selection_s) + to_ns(schedule.distribution_s)
    devices = [
        PlainDevice(
            number, begin_ns + to_ns(device.update_s), to_ns(slot.upload_s), to_ns(device.upload_s), fresh
        )
        for number, (slot, device) in enumerate(zip(schedule.slots, simulated, strict=True))
    ]
    ends = plain_uploads(devices, to_ns(schedule.round_deadline_s))
    return {simulated[number].client_id: end_ns for number, end_ns in ends.items()}


@pytest.mark.parametrize(("seed", "fresh"), [(0, True), (1, False), (2, True), (3, False)])
def test_service_and_simulator_agree_with_a_plain_simulation(
    service: httpx.Client, seed: int, fresh: bool
) -> None:
    task_id, keys = _random_cell(service, 10, seed, planning_factor=0.8)
    opened = RoundResponse.model_validate(open_round(service, task_id))
    assert opened.schedule is not None
    behaviour = Behaviour(uncertainty=0.4, fresh_throughput=fresh)
    simulated = simulate_round(opened.schedule, behaviour, round_rng(seed, 1))

    ended = _run(service, opened, keys, simulated, behaviour)
    found = {
        slot.client_id: to_ns(slot.elapsed_s or 0.0)
        for slot in ended.slots
        if slot.outcome == "received" and slot.replaces is None
    }
    if not any(slot.replaces for slot in ended.slots):
        assert found == _plain(opened.schedule, simulated, fresh=fresh)
    intervals = sorted(
        (slot.granted_s or 0.0, slot.elapsed_s or 0.0) for slot in ended.slots if slot.outcome == "received"
    )
    assert len(intervals) >= 2
    assert all(before[1] <= after[0] for before, after in pairwise(intervals))


def test_a_device_that_is_away_loses_its_grant_and_uploads_when_it_is_back(service: httpx.Client) -> None:
    task_id, keys = _random_cell(service, 4, 4, round_deadline_s=3000.0)
    opened = RoundResponse.model_validate(open_round(service, task_id))
    assert opened.schedule is not None
    begin_s = opened.schedule.selection_s + opened.schedule.distribution_s
    first, second, *others = sorted(
        simulate_round(opened.schedule, Behaviour(), round_rng(4, 1)), key=lambda device: device.update_s
    )
    ready_s, upload_s = begin_s + first.update_s, first.upload_s
    absence = Absence(to_ns(ready_s + upload_s / 2), to_ns(ready_s + 3 * upload_s))
    first = replace(first, absence=absence)
    second = replace(second, update_s=first.update_s + upload_s / 4)
    by_id = {device.client_id: device for device in (first, second, *others)}
    simulated = [by_id[slot.client_id] for slot in opened.schedule.slots]
    ended = {slot.client_id: slot for slot in _run(service, opened, keys, simulated, Behaviour()).slots}
    assert [slot.outcome for slot in ended.values()] == ["received"] * 4
    assert {client_id: slot.lapses for client_id, slot in ended.items()} == dict.fromkeys(keys, 0) | {
        first.client_id: 1
    }
    assert ended[second.client_id].granted_s == pytest.approx(ready_s + 2 * upload_s, abs=1e-6)
    assert (ended[first.client_id].granted_s or 0.0) >= to_seconds(absence.back_ns)


def test_uploads_take_what_the_uplink_gives_from_the_grant_on(service: httpx.Client) -> None:
    task_id, keys = _random_cell(service, 4, 5, round_deadline_s=3000.0)
    opened = RoundResponse.model_validate(open_round(service, task_id))
    assert opened.schedule is not None
    trace = Trace([0, NS_PER_S], [4_000_000, 0], 2 * NS_PER_S)
    replayed = TraceUplinks([trace] * 4, [0] * 4, 2 * NS_PER_S)
    uplinks = RoundUplinks(replayed, list(keys).index, opened.schedule, 0.0)
    simulated = simulate_round(opened.schedule, Behaviour(), round_rng(5, 1), uplinks)
    ended = _run(service, opened, keys, simulated, Behaviour(), uplinks=uplinks).slots
    assert [(slot.outcome, slot.lapses) for slot in ended] == [("received", 0)] * 4
    for slot in ended:  # 40 Mbit at 4 Mbit/s in every other second
        assert (slot.elapsed_s or 0.0) - (slot.granted_s or 0.0) == pytest.approx(20, abs=1.01)
        assert slot.actual_upload_s == pytest.approx((slot.elapsed_s or 0.0) - (slot.granted_s or 0.0))


def test_a_simulated_round_that_grants_the_channel(service: httpx.Client) -> None:
    opened, keys = quick_round(service, 2, clock="simulated", dispatch="on_ready")
    (first, one), (second, other) = keys.items()
    round_id = opened["round_id"]
    granted = _ready(service, one, round_id, elapsed_s=1.5).json()
    assert granted["state"] == "granted"
    assert [(grant["client_id"], grant["granted_s"]) for grant in granted["grants"]] == [(first, 1.5)]
    waiting = _ready(service, other, round_id, elapsed_s=1.5)
    assert waiting.json() == {"state": "waiting", "grants": [], "replacements": []}
    assert_problem(_ready(service, other, round_id, elapsed_s=1.4), 409, "TIME_NOT_MONOTONIC")
    assert_problem(
        upload_as(service, other, round_id, second, fedcs_elapsed_s="1.5"), 409, "CHANNEL_NOT_GRANTED"
    )
    sent = upload_as(service, one, round_id, first, fedcs_elapsed_s="1.500001")
    assert [grant["client_id"] for grant in sent.json()["grants"]] == [second]
    again = upload_as(service, one, round_id, first, fedcs_elapsed_s="1.500001")
    assert (again.status_code, again.json()) == (200, sent.json())
    slot = slot_of(service, round_id, second)
    assert (slot["ready_s"], slot["granted_s"], slot["lapses"], slot["replaces"]) == (1.5, 1.500001, 0, None)
    assert get_round(service, round_id)["schedule"]["dispatch"] == "on_ready"


@pytest.mark.parametrize(
    ("terms", "param"),
    [
        ({"dispatch": "on_ready", "slot_enforcement": "strict"}, "/dispatch"),
        ({"dispatch": "at_random"}, "/dispatch"),
        ({"planning_factor": 0.8}, "/planning_factor"),
        ({"dispatch": "on_ready", "planning_factor": 0.4}, "/planning_factor"),
        ({"dispatch": "on_ready", "planning_factor": 2.1}, "/planning_factor"),
    ],
)
def test_terms_that_cannot_be(service: httpx.Client, terms: dict[str, Any], param: str) -> None:
    response = service.post("/tasks", json={"round_deadline_s": 180, **terms})
    assert response.status_code == 422
    assert [field["param"] for field in response.json()["invalid_params"]] == [param]


def test_ready_is_refused_in_a_planned_round(service: httpx.Client) -> None:
    opened, keys = quick_round(service, 1, clock="simulated")
    (key,) = keys.values()
    assert_problem(_ready(service, key, opened["round_id"], elapsed_s=1.0), 409, "NOT_ON_READY")
    assert slot_of(service, opened["round_id"], next(iter(keys)))["ready_s"] is None


def test_a_grant_comes_with_the_long_poll(service: httpx.Client) -> None:
    opened, keys = quick_round(service, 2, dispatch="on_ready")
    (first, one), (second, other) = keys.items()
    round_id = opened["round_id"]
    assert _ready(service, one, round_id).json()["state"] == "granted"
    assert _ready(service, other, round_id).json()["state"] == "waiting"
    with as_client(service, other) as client:
        before = client.get("/assignments")
        assert before.json()["assignments"][0]["channel"] == "waiting"
        found: list[httpx.Response] = []
        headers = {"If-None-Match": before.headers["ETag"]}

        def poll() -> None:
            found.append(client.get("/assignments", params={"wait_s": 60}, headers=headers))

        polling = Thread(target=poll)
        polling.start()
        upload_as(service, one, round_id, first, fedcs_elapsed_s=None)
        polling.join()
    (assignment,) = found[0].json()["assignments"]
    assert assignment["channel"] == "granted"
    assert slot_of(service, round_id, second)["granted_s"] is not None


def test_a_silent_client_loses_its_grant_to_the_next(timed: TimedService) -> None:
    service = timed.client
    opened, keys = quick_round(service, 2, dispatch="on_ready")
    (first, one), (second, other) = keys.items()
    round_id = opened["round_id"]
    _ready(service, one, round_id)
    _ready(service, other, round_id)
    timed.clock.advance(1.9)
    assert slot_of(service, round_id, second)["granted_s"] is None
    timed.clock.advance(0.2)
    eventually(lambda: slot_of(service, round_id, second)["granted_s"])
    assert slot_of(service, round_id, first)["lapses"] == 1
    refused = upload_as(service, one, round_id, first, fedcs_elapsed_s=None)
    assert_problem(refused, 409, "CHANNEL_NOT_GRANTED")
    assert int(refused.headers["Retry-After"]) >= 1
    assert upload_as(service, other, round_id, second, fedcs_elapsed_s=None).status_code == 201
    assert _ready(service, one, round_id).json()["state"] == "granted"
    metrics = service.get("/metrics").text
    assert 'fedcs_channel_decisions_total{decision="lapsed"} 1.0' in metrics
    assert 'fedcs_channel_decisions_total{decision="granted"} 3.0' in metrics


def test_a_client_that_does_not_know_ready_uploads_when_the_channel_is_free(service: httpx.Client) -> None:
    opened, keys = quick_round(service, 2, dispatch="on_ready")
    for client_id, key in keys.items():
        response = upload_as(service, key, opened["round_id"], client_id, fedcs_elapsed_s=None)
        assert response.status_code == 201, response.text


def test_a_rejected_upload_gives_the_grant_back(service: httpx.Client) -> None:
    opened, keys = quick_round(service, 2, dispatch="on_ready")
    (first, one), (second, other) = keys.items()
    round_id = opened["round_id"]
    _ready(service, one, round_id)
    _ready(service, other, round_id)
    response = upload_as(service, one, round_id, first, update=b"no tensors", fedcs_elapsed_s=None)
    assert_problem(response, 422, "BAD_TENSORS")
    assert slot_of(service, round_id, second)["granted_s"] is not None
    assert _ready(service, one, round_id).json()["state"] == "waiting"


def test_a_client_in_the_place_of_another_is_told(service: httpx.Client) -> None:
    labels = {"cell": fresh_name("cell")}
    keys = enrol(service, 3, labels)
    for client_id in keys:
        report(service, client_id, throughput_bps=1e6, compute_samples_per_s=100, data_samples=20)
    terms = {"model_size_bytes": 1_250_000, "round_deadline_s": 40, "local_epochs": 1}
    task = create_task(service, labels=labels, clock="wall", dispatch="on_ready", **terms)
    set_model(service, task["task_id"])
    opened = open_round(service, task["task_id"])
    assert opened["selected"] == 2, opened
    round_id = opened["round_id"]
    declining = opened["schedule"]["slots"][0]["client_id"]
    (waiting,) = (candidate["client_id"] for candidate in opened["schedule"]["not_selected"])
    with as_client(service, keys[waiting]) as client:
        assert client.get("/assignments").json()["assignments"] == []
        with as_client(service, keys[declining]) as other:
            assert other.post(f"/rounds/{round_id}/decline", json={"reason": "no"}).status_code == 200
        (assignment,) = client.get("/assignments").json()["assignments"]
    assert (assignment["round_id"], assignment["channel"]) == (round_id, "not_ready")
    assert slot_of(service, round_id, waiting)["replaces"] == declining


def test_a_device_of_the_client_library_waits_for_the_channel(service: httpx.Client) -> None:
    labels = {"cell": fresh_name("cell")}
    enrolled = [enrol_one(service, labels) for _ in range(3)]
    devices = [
        Device(
            str(service.base_url),
            client_id,
            key,
            report=lambda: Resources(8e6, 1e4, 200),
            train=lambda model, _assignment: model,
            poll_s=0.5,
        )
        for client_id, key in enrolled
    ]
    task = create_task(service, labels=labels, clock="wall", dispatch="on_ready")
    set_model(service, task["task_id"])
    living = [Thread(target=device.run) for device in devices]
    for thread in living:
        thread.start()
    try:
        for client_id, _ in enrolled:
            eventually(lambda client_id=client_id: service.get(f"/clients/{client_id}/reports").json())  # type: ignore[misc]
        round_id = open_round(service, task["task_id"])["round_id"]
        eventually(lambda: get_round(service, round_id)["state"] == "aggregating")
    finally:
        for device, thread in zip(devices, living, strict=True):
            device.stop()
            thread.join(timeout=60)
            device.close()
    assert get_round(service, round_id)["received"] == 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_grant_survives_the_death_of_the_process(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    postgres_url = request.getfixturevalue("postgres_url") if kind == "postgresql" else ""
    url = new_database(kind, tmp_path, postgres_url)
    with ExitStack() as running:
        processes = [
            running.enter_context(service_process(tmp_path, None, database_url=url)) for _ in range(2)
        ]
        (service, killed), (survivor, _) = processes
        opened, keys = quick_round(service, 3, dispatch="on_ready")
        round_id = opened["round_id"]
        holder, *others = keys
        assert _ready(service, keys[holder], round_id).json()["state"] == "granted"
        assert _ready(service, keys[others[0]], round_id).json()["state"] == "waiting"
        killed.kill()
        killed.wait()
        left = dict(keys)
        while left:  # each asks until it is granted: a grant may lapse on a slow machine, and comes again
            for client_id, key in list(left.items()):
                state = _ready(survivor, key, round_id).json().get("state")
                if state == "granted":
                    sent = upload(
                        survivor, round_id, client_id, authorization=f"Bearer {key}", fedcs_elapsed_s=None
                    )
                    if sent.status_code == 201:
                        del left[client_id]
                    else:
                        assert_problem(sent, 409, "CHANNEL_NOT_GRANTED")
        slots = get_round(survivor, round_id)["schedule"]["slots"]
        intervals = sorted((slot["granted_s"], slot["elapsed_s"]) for slot in slots)
        assert all(before[1] <= after[0] for before, after in pairwise(intervals))
