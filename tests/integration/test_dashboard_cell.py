"""The data of the cell page against what is known of the cell, and what the page refuses."""

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from tests.dashboard_session import logged_in
from tests.integration.cell import (
    as_client,
    assert_problem,
    create_task,
    enrol,
    enrol_one,
    fresh_name,
    open_round,
    report,
    report_all,
    resources,
    set_model,
    without_key,
)
from tests.running_service import running_service

DATA = "/dashboard/data/cell"


@pytest.fixture(scope="module")
def cell_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with running_service(tmp_path_factory.mktemp("cell"), report_min_throughput_bps="1e-320") as client:
        yield client


@pytest.fixture(scope="module")
def looking(cell_service: httpx.Client) -> Iterator[httpx.Client]:
    with logged_in(cell_service) as client:
        yield client


def test_a_cell_without_clients_reports_and_rounds(looking: httpx.Client, cell_service: httpx.Client) -> None:
    found = looking.get(DATA).json()
    assert (found["enrolled"], found["round"], found["fairness"]) == (0, None, None)
    assert found["map"]["client_id"] == []
    assert found["distributions"]["data_samples"] == {"edges": [], "clients": [], "median": None}
    client_id, _ = enrol_one(cell_service)
    task = create_task(cell_service)
    assert looking.get(DATA).json()["enrolled"] == 1
    without_round = looking.get(DATA, params={"task_id": task["task_id"]}).json()
    assert without_round["round"] is None
    fairness = without_round["fairness"]
    assert (fairness["rounds"], fairness["jain"], fairness["never"]) == (0, None, 1)
    assert fairness["least"] == {"client_id": [client_id], "times": [0]}


def test_all_numbers_against_a_calculation_of_ones_own(
    looking: httpx.Client, cell_service: httpx.Client
) -> None:
    labels = {"cell": fresh_name()}
    keys = enrol(cell_service, 40, labels)
    silent, removed, *clients = keys
    rng = np.random.default_rng(3)
    known: dict[str, dict[str, Any]] = {}
    for client_id in [removed, *clients]:
        report(cell_service, client_id, throughput_bps=5e8, data_samples=1)  # an older one
        known[client_id] = resources(
            client_id,
            throughput_bps=float(np.exp(rng.uniform(np.log(1e4), np.log(2e7)))),
            compute_samples_per_s=float(rng.uniform(10, 100)),
            data_samples=int(rng.integers(100, 1000)),
            report_resource_blocks=int(rng.choice([10, 20])),
        )
    cell_service.post("/reports/batch", json={"reports": list(known.values())})
    task = create_task(cell_service, labels=labels, name="own", round_deadline_s=60, model_size_bytes=10**6)
    set_model(cell_service, task["task_id"])
    times: Counter[str] = Counter()
    selected: list[str] = []
    first = open_round(cell_service, task["task_id"])
    for slot in first["schedule"]["slots"]:
        times[slot["client_id"]] += 1
    cell_service.post(f"/rounds/{first['round_id']}/close")
    slow = known[next(duration for duration in times if duration != removed)]
    slow["throughput_bps"] = 1e4
    report(cell_service, **slow)
    second = open_round(cell_service, task["task_id"])
    for slot in second["schedule"]["slots"]:
        times[slot["client_id"]] += 1
        selected.append(slot["client_id"])
    assert 0 < len(selected) < len(clients)
    assert slow["client_id"] not in selected
    cell_service.delete(f"/clients/{removed}")
    del known[removed]

    found = looking.get(DATA).json()
    assert found == looking.get(DATA, params={"task_id": task["task_id"]}).json()
    assert found["round"] == {
        "task": "own",
        "round_id": second["round_id"],
        "number": 2,
        "state": "scheduled",
        "selected": len(selected),
        "removed": int(removed in selected),
    }
    drawn = found["map"]
    assert sorted(drawn["client_id"]) == sorted(known)
    rates = {item: _mbps_per_ten_blocks(known[item]) for item in known}
    distances = {item: _distance_m(rate * 1e6) for item, rate in rates.items()}
    for place, client_id in enumerate(drawn["client_id"]):
        assert drawn["throughput_mbps"][place] == pytest.approx(rates[client_id])
        far = math.hypot(drawn["x_m"][place], drawn["y_m"][place])
        assert far == pytest.approx(min(distances[client_id], drawn["edge_m"]), abs=0.2)
        assert drawn["selected"][place] == (client_id in selected)
    assert drawn["beyond_edge"] == sum(item > drawn["edge_m"] for item in distances.values()) <= 1
    columns = {
        "throughput_mbps": list(rates.values()),
        "compute_samples_per_s": [item["compute_samples_per_s"] for item in known.values()],
        "data_samples": [item["data_samples"] for item in known.values()],
    }
    for name, values in columns.items():
        _assert_counted(found["distributions"][name], values)

    enrolled = [key for key in keys if key != removed]
    numbers = [times[item] for item in enrolled]
    fairness = found["fairness"]
    assert (fairness["rounds"], fairness["clients"]) == (2, len(enrolled))
    assert fairness["jain"] == pytest.approx(
        sum(numbers) ** 2 / (len(numbers) * sum(number**2 for number in numbers))
    )
    assert fairness["times"] == {
        "from": list(range(max(numbers) + 1)),
        "width": 1,
        "clients": [numbers.count(number) for number in range(max(numbers) + 1)],
    }
    assert fairness["never"] == numbers.count(0)
    ranked = sorted(enrolled, key=lambda duration: (-times[duration], enrolled.index(duration)))[:5]
    assert fairness["most"] == {"client_id": ranked, "times": [times[item] for item in ranked]}
    ranked = sorted(enrolled, key=lambda duration: (times[duration], enrolled.index(duration)))[:5]
    assert fairness["least"] == {"client_id": ranked, "times": [times[item] for item in ranked]}
    assert silent in fairness["least"]["client_id"]


def test_of_many_clients_a_sample_is_drawn_and_all_that_were_selected(tmp_path: Path) -> None:
    with running_service(tmp_path) as service, logged_in(service) as client:
        equal = list(enrol(service, 3))
        report_all(service, equal, data_samples=0)
        _assert_bars_around_one_value(client.get(DATA).json()["distributions"])

        labels = {"cell": fresh_name()}
        many, keys = enrol(service, 2100), enrol(service, 30, labels)
        report_all(service, [*many, *keys])
        task = create_task(service, labels=labels)
        set_model(service, task["task_id"])
        opened = open_round(service, task["task_id"])
        found = client.get(DATA).json()
        assert found["map"] == client.get(DATA).json()["map"]
    assert (found["enrolled"], found["sampled"]) == (2133, 2000)
    drawn = found["map"]
    chosen = [item for item, flag in zip(drawn["client_id"], drawn["selected"], strict=True) if flag]
    assert sorted(chosen) == sorted(slot["client_id"] for slot in opened["schedule"]["slots"])
    assert 2000 <= len(drawn["client_id"]) <= 2030
    assert sum(found["distributions"]["data_samples"]["clients"]) == 2000
    assert found["fairness"]["clients"] == 30


def test_what_is_refused(looking: httpx.Client, cell_service: httpx.Client) -> None:
    assert looking.get("/dashboard/cell").status_code == 200
    with without_key(cell_service) as stranger:
        away = stranger.get("/dashboard/cell")
        assert (away.status_code, away.headers["location"]) == (
            303,
            "/dashboard/login?next=%2Fdashboard%2Fcell",
        )
        assert_problem(stranger.get(DATA), 401, "UNAUTHENTICATED")
    with as_client(cell_service, enrol_one(cell_service)[1]) as client:
        assert_problem(client.get(DATA), 401, "UNAUTHENTICATED")
    for wrong, status, cause in (
        ("task-that-is-not", 404, "TASK_NOT_FOUND"),
        ("a b", 422, "INVALID_REQUEST"),
        ("", 422, "INVALID_REQUEST"),
        ("x" * 65, 422, "INVALID_REQUEST"),
    ):
        assert_problem(looking.get(DATA, params={"task_id": wrong}), status, cause)
        assert looking.get("/dashboard/cell", params={"task_id": wrong}).status_code == status


def test_a_client_with_next_to_no_throughput_is_drawn_as_well(
    looking: httpx.Client, cell_service: httpx.Client
) -> None:
    client_id, _ = enrol_one(cell_service)
    report(cell_service, client_id, throughput_bps=1e-320)
    found = looking.get(DATA)
    assert found.status_code == 200, found.text
    assert client_id in found.json()["map"]["client_id"]


def test_the_chosen_task_is_offered_even_without_a_round(
    looking: httpx.Client, cell_service: httpx.Client
) -> None:
    name = "</option><script>alert(1)</script>"
    task_id = create_task(cell_service, name=name)["task_id"]
    assert task_id not in looking.get("/dashboard/cell").text
    page = looking.get("/dashboard/cell", params={"task_id": task_id}).text
    assert f'<option value="{task_id}" selected>&lt;/option&gt;&lt;script&gt;' in page


def _mbps_per_ten_blocks(known: dict[str, Any]) -> float:
    return float(known["throughput_bps"] * 10 / known["report_resource_blocks"] / 1e6)


def _distance_m(throughput_bps: float) -> float:
    """By bisection on the formulas of the paper's Section IV-A."""
    low, high = 1.0, 1e6
    for _ in range(100):
        middle = math.sqrt(low * high)
        loss_db = 36.7 * math.log10(middle) + 22.7 + 26 * math.log10(2.5)
        snr_db = 20 - loss_db - (-174 + 10 * math.log10(1.8e6) + 1)
        rate = 1.8e6 * min(math.log2(1 + 10 ** ((snr_db - 1.6) / 10)), 4.8)
        if rate >= min(throughput_bps, 1.8e6 * 4.8) * (1 - 1e-12):
            low = middle
        else:
            high = middle
    return low


def _assert_counted(histogram: dict[str, Any], values: list[float]) -> None:
    edges = histogram["edges"]
    assert (edges[0], edges[-1]) == (pytest.approx(min(values)), pytest.approx(max(values)))
    assert histogram["median"] == pytest.approx(float(np.median(values)))
    counts = [0] * (len(edges) - 1)
    for value in values:
        counts[
            max([place for place in range(len(counts)) if edges[place] <= value * (1 + 1e-12)] or [0])
        ] += 1
    assert histogram["clients"] == counts


def _assert_bars_around_one_value(found: dict[str, Any]) -> None:
    for name, value in (("throughput_mbps", 1.0), ("compute_samples_per_s", 50), ("data_samples", 0)):
        edges = found[name]["edges"]
        assert edges[0] <= value <= edges[-1]
        assert edges == sorted(set(edges))
        assert (sum(found[name]["clients"]), found[name]["median"]) == (3, value)


def test_the_block_grid_of_a_cell_has_its_allocations_and_slots(
    looking: httpx.Client, cell_service: httpx.Client
) -> None:
    body = {"cell_id": "grid", "name": "Grid", "resource_blocks": 15}
    assert cell_service.post("/cells", json=body).status_code == 201
    asked = {"clients": [{"client_id": "in-grid", "cell_id": "grid"}]}
    assert cell_service.post("/clients/batch", json=asked).status_code == 201
    report(cell_service, "in-grid")
    rounds = []
    for name in ("first", "second"):
        task = create_task(
            cell_service,
            name=name,
            clock="wall",
            cells=["grid"],
            min_resource_blocks=5,
            allow_busy_clients=True,
        )
        set_model(cell_service, task["task_id"])
        rounds.append(open_round(cell_service, task["task_id"]))
    cell_service.post(f"/rounds/{rounds[0]['round_id']}/close").raise_for_status()
    found = looking.get(DATA, params={"cell_id": "grid"}).json()
    assert (found["enrolled"], found["map"]["client_id"]) == (1, ["in-grid"])
    grid = found["blocks"]
    assert (grid["name"], grid["resource_blocks"], grid["held"]) == ("Grid", 15, 5)
    held = grid["allocations"]
    assert (held["task"], held["first"], held["count"]) == (["first", "second"], [0, 10], [10, 5])
    assert held["round_id"] == [item["round_id"] for item in rounds]
    assert held["from_ms"][0] <= held["until_ms"][0]
    assert held["until_ms"][1] is None
    slot = rounds[1]["schedule"]["slots"][0]
    assert grid["slots"]["client_id"][-1] == "in-grid"
    lasts_ms = grid["slots"]["until_ms"][-1] - grid["slots"]["from_ms"][-1]
    assert lasts_ms == pytest.approx(1000 * slot["upload_s"], abs=1)
    assert looking.get(DATA).json()["blocks"] is None  # there are two cells
    page = looking.get("/dashboard/cell", params={"cell_id": "grid"})
    assert '<option value="grid" selected>Grid</option>' in page.text
    overview = looking.get("/").text
    assert "/dashboard/cell?cell_id=grid" in overview
    assert "5 of 15" in overview
    for path in (DATA, "/dashboard/cell"):
        assert looking.get(path, params={"cell_id": "nowhere"}).status_code == 404


def test_the_only_cell_is_shown_unless_another_is_chosen(tmp_path: Path) -> None:
    with running_service(tmp_path) as service, logged_in(service) as client:
        assert client.get(DATA).json()["blocks"]["cell_id"] == "default"
