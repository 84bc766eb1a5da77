import asyncio
from collections.abc import Iterator

import httpx
import numpy as np
import pytest

from client_sim.fleet import Fleet, FleetError
from client_sim.scenario import Scenario, load_scenario
from client_sim.synthetic_updates import synthetic_model
from fedcs_client import endpoints
from fedcs_client.api import ApiError, AsyncApi
from services.domain.radio import Cell
from tests.running_service import OPERATOR_KEY, running_service


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with running_service(tmp_path_factory.mktemp("service")) as client:
        yield client


def cell_of(clients: int, seed: int = 0) -> Scenario:
    small = load_scenario("small").changed(seed=seed)
    return small.model_copy(update={"cell": small.cell.model_copy(update={"clients": clients})})


def test_a_fleet_is_drawn_as_the_domain_draws_a_cell() -> None:
    fleet = Fleet.draw(load_scenario("paper-cifar-10"), "paper")
    drawn = Cell().draw_reports(1000, np.random.default_rng(0))
    assert fleet.reports.throughput_bps.tolist() == drawn.throughput_bps.tolist()
    assert fleet.reports.compute_samples_per_s.tolist() == drawn.compute_samples_per_s.tolist()
    assert fleet.reports.data_samples.tolist() == drawn.data_samples.tolist()
    nearest = int(fleet.distances_m.argmin())
    assert fleet.reports.throughput_bps[nearest] == drawn.throughput_bps.max()
    assert len(fleet) == len(fleet.distances_m) == 1000


def test_the_seed_makes_the_fleet() -> None:
    first, same, other = (Fleet.draw(cell_of(5, seed), "f") for seed in (1, 1, 2))
    assert first.distances_m.tolist() == same.distances_m.tolist() != other.distances_m.tolist()


def test_on_a_faster_clock() -> None:
    fleet, faster = Fleet.draw(cell_of(5), "f"), Fleet.draw(cell_of(5), "f", time_scale=20)
    assert faster.reports.throughput_bps.tolist() == (20 * fleet.reports.throughput_bps).tolist()
    assert faster.distances_m.tolist() == fleet.distances_m.tolist()


def test_a_device_out_of_reach_reports_the_least_that_a_service_accepts(service: httpx.Client) -> None:
    far = cell_of(40)
    far = far.model_copy(update={"cell": far.cell.model_copy(update={"radius_m": 20_000.0})})
    fleet = Fleet.draw(far, "far")
    assert fleet.reports.throughput_bps.min() == 100

    async def play() -> None:
        async with AsyncApi(str(service.base_url), OPERATOR_KEY) as api:
            await fleet.enrol(api)
            await fleet.report(api)

    asyncio.run(play())


def test_devices_go_by_numbers() -> None:
    fleet = Fleet.draw(cell_of(12), "run-7")
    assert [fleet.number(fleet.client_id(number)) for number in range(12)] == list(range(12))
    assert fleet.data_samples("run-7-11") == fleet.reports.data_samples[11]


def test_only_the_fleet_takes_part_in_its_task(service: httpx.Client) -> None:
    fleet, others = Fleet.draw(cell_of(12), "mine"), Fleet.draw(cell_of(5), "theirs")

    async def play() -> None:
        async with AsyncApi(str(service.base_url), OPERATOR_KEY) as api:
            for each in (others, fleet):
                await each.enrol(api)
                await each.report(api)
            terms = {"labels": fleet.labels, "request_fraction": 1.0, "policy": "fl"}
            task = await api.send(endpoints.create_task(cell_of(12).task.model_copy(update=terms)))
            await api.send(endpoints.put_initial_model(task.task_id, synthetic_model(2000, 0)))
            opened = await api.send(endpoints.open_round(task.task_id))
            assert opened.schedule is not None
            assert sorted(fleet.number(slot.client_id) for slot in opened.schedule.slots) == list(range(12))
            for slot in opened.schedule.slots:
                answer = await api.send(endpoints.assignments(), key=fleet.key(slot.client_id))
                assert [assignment.round_id for assignment in answer.assignments] == [opened.round_id]

    asyncio.run(play())
    kept = service.get("/clients/mine-3/reports").json()[0]
    assert kept["throughput_bps"] == fleet.reports.throughput_bps[3]
    assert kept["compute_samples_per_s"] == fleet.reports.compute_samples_per_s[3]
    assert kept["data_samples"] == fleet.data_samples("mine-3")
    assert service.get("/clients/mine-3").json()["labels"] == {"fleet": "mine"}


def test_more_devices_than_one_request_takes(service: httpx.Client) -> None:
    fleet = Fleet.draw(cell_of(10_001), "many")

    async def play() -> None:
        async with AsyncApi(str(service.base_url), OPERATOR_KEY) as api:
            await fleet.enrol(api)
            await fleet.enrol(api)  # those who are enrolled are not enrolled again
            await fleet.report(api)
            for client_id in ("many-0", "many-9999", "many-10000"):
                assert (await api.send(endpoints.assignments(), key=fleet.key(client_id))).assignments == []

    asyncio.run(play())
    for client_id in ("many-0", "many-9999", "many-10000"):
        assert service.get(f"/clients/{client_id}/reports").json()[0]["data_samples"] == fleet.data_samples(
            client_id
        )


def test_a_name_that_is_taken_is_refused(service: httpx.Client) -> None:
    async def play() -> None:
        async with AsyncApi(str(service.base_url), OPERATOR_KEY) as api:
            await Fleet.draw(cell_of(3), "twice").enrol(api)
            await Fleet.draw(cell_of(3), "twice").enrol(api)

    with pytest.raises(ApiError, match="twice-0"):
        asyncio.run(play())


def test_devices_that_nobody_enrolled_cannot_report(service: httpx.Client) -> None:
    async def play() -> None:
        async with AsyncApi(str(service.base_url), OPERATOR_KEY) as api:
            await Fleet.draw(cell_of(3), "strangers").report(api)

    with pytest.raises(FleetError, match="'strangers-0' was rejected: CLIENT_NOT_FOUND"):
        asyncio.run(play())


def test_devices_are_in_the_cells_of_the_scenario_in_turn() -> None:
    fleet = Fleet.draw(load_scenario("three-cells"), "fleet")
    assert [fleet.cell_id(number) for number in range(4)] == ["north", "south", "west", "north"]
    assert Fleet.draw(load_scenario("small"), "fleet").cell_id(0) == "default"
