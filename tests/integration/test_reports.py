"""Resource reports over real HTTP: one, many, and what becomes of them."""

import json
import signal
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.domain.radio import RadioModel, throughput_from_rsrp, throughput_from_sinr
from tests.integration.cell import (
    as_client,
    assert_problem,
    create_task,
    enrol,
    enrol_one,
    fresh_name,
    report,
    resources,
)
from tests.running_service import running_service, service_process


def history(service: httpx.Client, client_id: str) -> list[dict[str, Any]]:
    """A client's reports, up to a hundred."""
    response = service.get(f"/clients/{client_id}/reports", params={"per_page": 100})
    assert response.status_code == 200, response.text
    reports: list[dict[str, Any]] = response.json()
    return reports


def test_a_report_is_answered_as_it_is_kept(service_on_each: httpx.Client) -> None:
    client_id, key = enrol_one(service_on_each)
    task_id = create_task(service_on_each)["task_id"]
    before = datetime.now(UTC)
    with as_client(service_on_each, key) as client:
        answer = report(
            client,
            client_id,
            throughput_bps=1.5e6,
            observed_at="2026-01-01T13:00:00.123456+01:00",
            task_id=task_id,
            report_resource_blocks=25,
            sinr=40,
        ).json()
        received_at = datetime.fromisoformat(answer.pop("received_at"))
        assert before <= received_at <= datetime.now(UTC)
        assert answer == {
            "client_id": client_id,
            "task_id": task_id,
            "throughput_bps": 1.5e6,
            "compute_samples_per_s": 50,
            "data_samples": 200,
            "report_resource_blocks": 25,
            "cell_id": None,
            "observed_at": "2026-01-01T12:00:00.123456Z",
            "radio": {"sinr": 40},
        }
        (kept,) = history(client, client_id)
        assert datetime.fromisoformat(kept.pop("received_at")) == received_at
        assert kept == answer
        assert history(service_on_each, client_id) == history(client, client_id)


def test_an_operator_reports_for_a_client(service_on_each: httpx.Client) -> None:
    client_id, _ = enrol_one(service_on_each)
    report(service_on_each, client_id)
    assert len(history(service_on_each, client_id)) == 1


def test_a_client_reports_and_reads_for_itself_only(service_on_each: httpx.Client) -> None:
    _, key = enrol_one(service_on_each)
    other, _ = enrol_one(service_on_each)
    with as_client(service_on_each, key) as client:
        assert_problem(client.post("/reports", json=resources(other)), 403, "FORBIDDEN")
        assert_problem(client.get(f"/clients/{other}/reports"), 403, "FORBIDDEN")
        assert_problem(client.get(f"/clients/{fresh_name()}/reports"), 403, "FORBIDDEN")
        assert_problem(client.post("/reports/batch", json={"reports": [resources(other)]}), 403, "FORBIDDEN")
    assert history(service_on_each, other) == []


def test_the_history_is_newest_first_by_observation(service_on_each: httpx.Client) -> None:
    client_id, _ = enrol_one(service_on_each)
    for number, observed_at in enumerate(("12:00:02", "12:00:01", "12:00:03", "12:00:02")):
        report(service_on_each, client_id, data_samples=number, observed_at=f"2026-01-01T{observed_at}Z")
    report(service_on_each, client_id, data_samples=4)
    assert [event["data_samples"] for event in history(service_on_each, client_id)] == [4, 2, 3, 0, 1]


@pytest.mark.parametrize("ahead", [timedelta(seconds=30), timedelta(days=3650)])
def test_what_is_observed_in_the_future_is_observed_now(
    ahead: timedelta, service_on_each: httpx.Client
) -> None:
    client_id, _ = enrol_one(service_on_each)
    before = datetime.now(UTC)
    answer = report(service_on_each, client_id, observed_at=(before + ahead).isoformat()).json()
    assert answer["observed_at"] == answer["received_at"]
    assert before <= datetime.fromisoformat(answer["observed_at"]) <= datetime.now(UTC)
    assert history(service_on_each, client_id) == [answer]


@pytest.mark.parametrize(
    "observed_at", ["0001-01-01T00:00:00+14:00", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59-12:00"]
)
def test_the_ends_of_the_calendar_do_no_harm(observed_at: str, service_on_each: httpx.Client) -> None:
    client_id, _ = enrol_one(service_on_each)
    answer = report(service_on_each, client_id, observed_at=observed_at).json()
    assert history(service_on_each, client_id) == [answer]


@pytest.mark.parametrize("observed_at", ["2026-01-01T12:00:00", "yesterday", "2026-02-30T00:00:00Z", 7, ""])
def test_what_is_no_moment_is_refused(observed_at: object, service: httpx.Client) -> None:
    client_id, _ = enrol_one(service)
    response = service.post("/reports", json=resources(client_id, observed_at=observed_at))
    problem = assert_problem(response, 422, "INVALID_REQUEST")
    assert [item["param"] for item in problem["invalid_params"]] == ["/observed_at"]


def test_a_report_of_an_unknown_client_or_task_is_refused(service_on_each: httpx.Client) -> None:
    client_id, _ = enrol_one(service_on_each)
    response = service_on_each.post("/reports", json=resources(fresh_name()))
    assert_problem(response, 404, "CLIENT_NOT_FOUND")
    response = service_on_each.post("/reports", json=resources(client_id, task_id="task-none"))
    assert_problem(response, 404, "TASK_NOT_FOUND")
    once = {"Idempotency-Key": fresh_name()}
    response = service_on_each.post("/reports", json=resources(client_id, task_id="task-none"), headers=once)
    assert_problem(response, 404, "TASK_NOT_FOUND")
    assert history(service_on_each, client_id) == []


RADIO = RadioModel(resource_blocks=25)


@pytest.mark.parametrize(
    ("given", "throughput_bps"),
    [
        ({"ul_nongbr_throughput_ue": 1400}, 1_400_000),
        ({"sinr": 66}, throughput_from_sinr(RADIO, 66)),
        ({"rsrp": 40}, throughput_from_rsrp(RADIO, 40)),
        ({"rsrp": 40, "sinr": 66}, throughput_from_sinr(RADIO, 66)),
        ({"rsrp": 40, "sinr": 66, "ul_nongbr_throughput_ue": 1}, 1000),
        ({"rsrp": 40, "sinr": 66, "ul_nongbr_throughput_ue": 1, "throughput_bps": 700}, 700),
        ({"throughput_bps": None, "sinr": None, "rsrp": 40}, throughput_from_rsrp(RADIO, 40)),
        ({"sinr": 0}, throughput_from_sinr(RADIO, 0)),
        ({"rsrp": 0}, throughput_from_rsrp(RADIO, 0)),
        ({"sinr": 127}, 25 * 180_000 * 4.8),
        ({"rsrp": 97}, 25 * 180_000 * 4.8),
    ],
)
def test_throughput_follows_from_radio_measurements(
    given: dict[str, int | None], throughput_bps: float, service: httpx.Client
) -> None:
    client_id, _ = enrol_one(service)
    answer = report(
        service, client_id, **({"throughput_bps": ..., "report_resource_blocks": 25} | given)
    ).json()
    assert answer["throughput_bps"] == pytest.approx(throughput_bps, rel=1e-12)
    measured = {
        name: value for name, value in given.items() if value is not None and name != "throughput_bps"
    }
    assert answer["radio"] == measured
    assert history(service, client_id) == [answer]


@pytest.mark.parametrize(
    "given", [{}, {"throughput_bps": None}, {"sinr": None, "rsrp": None, "ul_nongbr_throughput_ue": None}]
)
def test_a_report_needs_a_throughput_or_what_it_follows_from(
    given: dict[str, None], service: httpx.Client
) -> None:
    client_id, _ = enrol_one(service)
    response = service.post("/reports", json=resources(client_id, **({"throughput_bps": ...} | given)))
    problem = assert_problem(response, 422, "INVALID_REQUEST")
    assert [item["param"] for item in problem["invalid_params"]] == ["/throughput_bps"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("throughput_bps", 0),
        ("throughput_bps", -1),
        ("throughput_bps", 1.1e15),
        ("throughput_bps", 1e-300),
        ("throughput_bps", 99.9),
        ("throughput_bps", 100.1e9),
        ("throughput_bps", "1000"),
        ("throughput_bps", True),
        ("throughput_bps", float("nan")),
        ("throughput_bps", float("inf")),
        ("compute_samples_per_s", 0),
        ("compute_samples_per_s", 0.00099),
        ("compute_samples_per_s", 1.01e7),
        ("compute_samples_per_s", None),
        ("compute_samples_per_s", ...),
        ("data_samples", -1),
        ("data_samples", 1.5),
        ("data_samples", 10**9 + 1),
        ("data_samples", 10**12 + 1),
        ("data_samples", ...),
        ("report_resource_blocks", 0),
        ("report_resource_blocks", 1001),
        ("ul_nongbr_throughput_ue", 0),
        ("ul_nongbr_throughput_ue", 10**9 + 1),
        ("sinr", -1),
        ("sinr", 128),
        ("rsrp", -1),
        ("rsrp", 98),
        ("rsrp", 1.5),
        ("client_id", ...),
        ("task_id", "a b"),
        ("task_id", ""),
        ("battery", 1),
    ],
)
def test_a_bad_report_is_named(name: str, value: object, service: httpx.Client) -> None:
    client_id, _ = enrol_one(service)
    bad = resources(client_id, **{name: value})
    for path, body, param in (
        ("/reports", bad, f"/{name}"),
        ("/reports/batch", {"reports": [resources(client_id), bad]}, f"/reports/1/{name}"),
    ):
        content = json.dumps(body)
        response = service.post(path, content=content, headers={"Content-Type": "application/json"})
        problem = assert_problem(response, 422, "INVALID_REQUEST")
        assert [item["param"] for item in problem["invalid_params"]] == [param]
    assert history(service, client_id) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("throughput_bps", 100),
        ("throughput_bps", 100e9),
        ("compute_samples_per_s", 0.001),
        ("compute_samples_per_s", 1e7),
        ("data_samples", 0),
        ("data_samples", 10**9),
        ("data_samples", 200.0),
        ("report_resource_blocks", 1000),
    ],
)
def test_the_limits_themselves_are_kept_exactly(
    name: str, value: float, service_on_each: httpx.Client
) -> None:
    client_id, _ = enrol_one(service_on_each)
    report(service_on_each, client_id, **{name: value})
    (kept,) = history(service_on_each, client_id)
    assert kept[name] == value


def test_a_radio_measurement_beyond_the_limits_is_named(service: httpx.Client) -> None:
    client_id, key = enrol_one(service)
    bad = resources(client_id, throughput_bps=..., ul_nongbr_throughput_ue=10**8 + 1)
    with as_client(service, key) as client:
        problem = assert_problem(client.post("/reports", json=bad), 422, "INVALID_REQUEST")
    assert problem["invalid_params"] == [
        {
            "param": "/ul_nongbr_throughput_ue",
            "reason": "This service accepts 100 to 1e+11 bit/s, not 1e+11",
        }
    ]
    response = service.post("/reports/batch", json={"reports": [resources(client_id), bad]})
    problem = assert_problem(response, 422, "INVALID_REQUEST")
    assert [item["param"] for item in problem["invalid_params"]] == ["/reports/1/ul_nongbr_throughput_ue"]
    assert history(service, client_id) == []
    report(service, client_id, throughput_bps=..., ul_nongbr_throughput_ue=10**8)


def test_every_figure_outside_the_limits_is_named(service: httpx.Client) -> None:
    client_id, _ = enrol_one(service)
    bad = resources(client_id, throughput_bps=1, compute_samples_per_s=1e9, data_samples=10**10)
    problem = assert_problem(service.post("/reports", json=bad), 422, "INVALID_REQUEST")
    named = [item["param"] for item in problem["invalid_params"]]
    assert named == ["/throughput_bps", "/compute_samples_per_s", "/data_samples"]
    many = {"reports": [bad] * 10_000}
    problem = assert_problem(service.post("/reports/batch", json=many), 422, "INVALID_REQUEST")
    assert len(problem["invalid_params"]) == 20


def test_the_limits_are_settings_and_in_the_openapi_document(tmp_path: Path) -> None:
    limits = {
        "report_min_throughput_bps": "2500",
        "report_max_throughput_bps": "3000000",
        "report_min_compute_samples_per_s": "5",
        "report_max_compute_samples_per_s": "6",
        "report_max_data_samples": "7",
    }
    inside: dict[str, object] = {"throughput_bps": 2500, "compute_samples_per_s": 5, "data_samples": 7}
    with running_service(tmp_path, **limits) as service:
        client_id, _ = enrol_one(service)
        report(service, client_id, **inside)
        weak = inside | {"throughput_bps": ..., "sinr": 0, "report_resource_blocks": 1}
        outside: list[tuple[str, dict[str, object]]] = [
            ("throughput_bps", inside | {"throughput_bps": 2499}),
            ("throughput_bps", inside | {"throughput_bps": 3_000_001}),
            ("sinr", weak),
            ("rsrp", weak | {"sinr": ..., "rsrp": 0, "report_resource_blocks": 1}),
            ("compute_samples_per_s", inside | {"compute_samples_per_s": 4.9}),
            ("compute_samples_per_s", inside | {"compute_samples_per_s": 6.1}),
            ("data_samples", inside | {"data_samples": 8}),
        ]
        for name, changes in outside:
            response = service.post("/reports", json=resources(client_id, **changes))
            problem = assert_problem(response, 422, "INVALID_REQUEST")
            assert [item["param"] for item in problem["invalid_params"]] == [f"/{name}"]
        schema = service.get("/openapi.json").json()["components"]["schemas"]["ReportRequest"]
    said = schema["properties"]
    assert (said["data_samples"]["minimum"], said["data_samples"]["maximum"]) == (0, 7)
    capability = said["compute_samples_per_s"]
    assert (capability["minimum"], capability["maximum"]) == (5, 6)
    throughput = said["throughput_bps"]["anyOf"][0]
    assert (throughput["minimum"], throughput["maximum"]) == (2500, 3e6)
    measured = said["ul_nongbr_throughput_ue"]["anyOf"][0]
    assert (measured["minimum"], measured["maximum"]) == (2.5, 3000)


def test_a_batch_has_one_result_for_each_report(service_on_each: httpx.Client) -> None:
    first, second = enrol(service_on_each, 2)
    stranger, task_id = fresh_name(), create_task(service_on_each)["task_id"]
    asked = [
        resources(first, data_samples=1),
        resources(stranger),
        resources(second, task_id="task-none"),
        resources(first, data_samples=2, task_id=task_id),
        resources(stranger, task_id="task-none"),
        resources(second, data_samples=3, throughput_bps=..., sinr=60),
    ]
    response = service_on_each.post("/reports/batch", json={"reports": asked})
    assert response.status_code == 201
    assert response.json() == {
        "stored": 3,
        "results": [
            {"client_id": first, "cause": None},
            {"client_id": stranger, "cause": "CLIENT_NOT_FOUND"},
            {"client_id": second, "cause": "TASK_NOT_FOUND"},
            {"client_id": first, "cause": None},
            {"client_id": stranger, "cause": "CLIENT_NOT_FOUND"},
            {"client_id": second, "cause": None},
        ],
    }
    assert sorted(event["data_samples"] for event in history(service_on_each, first)) == [1, 2]
    (kept,) = history(service_on_each, second)
    assert (kept["data_samples"], kept["radio"]) == (3, {"sinr": 60})
    assert kept["throughput_bps"] == throughput_from_sinr(RadioModel(), 60)


def test_ten_thousand_reports_come_at_once_and_not_one_more(service_on_each: httpx.Client) -> None:
    client_ids = list(enrol(service_on_each, 100))
    asked = [resources(client_ids[number % 100], data_samples=number) for number in range(10_001)]
    response = service_on_each.post("/reports/batch", json={"reports": asked})
    problem = assert_problem(response, 422, "INVALID_REQUEST")
    assert [item["param"] for item in problem["invalid_params"]] == ["/reports"]
    answer = service_on_each.post("/reports/batch", json={"reports": asked[:10_000]}).json()
    assert (answer["stored"], len(answer["results"])) == (10_000, 10_000)
    assert len(history(service_on_each, client_ids[7])) == 100
    assert_problem(service_on_each.post("/reports/batch", json={"reports": []}), 422, "INVALID_REQUEST")


def test_reports_that_come_at_once_are_all_stored(service_on_each: httpx.Client) -> None:
    client_ids = list(enrol(service_on_each, 10))
    asked = [(client_ids[number % 10], number) for number in range(300)]
    with ThreadPoolExecutor(32) as pool:
        statuses = list(
            pool.map(
                lambda report_: (
                    service_on_each.post(
                        "/reports", json=resources(report_[0], data_samples=report_[1])
                    ).status_code
                ),
                asked,
            )
        )
    assert set(statuses) == {201}
    stored = [
        (client_id, event["data_samples"])
        for client_id in client_ids
        for event in history(service_on_each, client_id)
    ]
    assert sorted(stored) == sorted(asked)


def test_one_bad_report_among_many_that_come_at_once_fails_alone(service_on_each: httpx.Client) -> None:
    client_ids = list(enrol(service_on_each, 20))
    asked = [*client_ids, *(fresh_name() for _ in range(20))]
    with ThreadPoolExecutor(40) as pool:
        answers = list(
            pool.map(lambda report_: service_on_each.post("/reports", json=resources(report_)), asked)
        )
    assert [answer.status_code for answer in answers] == [201] * 20 + [404] * 20
    assert all(len(history(service_on_each, client_id)) == 1 for client_id in client_ids)


def test_an_answered_report_outlives_the_process(tmp_path: Path) -> None:
    with service_process(tmp_path, None) as (service, process):
        client_ids = list(enrol(service, 8))
        with ThreadPoolExecutor(8) as pool:
            answers = list(
                pool.map(lambda report_: service.post("/reports", json=resources(report_)).json(), client_ids)
            )
        process.send_signal(signal.SIGKILL)
        process.wait()
    with service_process(tmp_path, None) as (service, _):
        assert [history(service, client_id) for client_id in client_ids] == [[item] for item in answers]
