"""``/metrics`` over real HTTP, read as Prometheus would."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from services.domain.jobs import JobKind
from services.domain.rounds import RoundState
from services.domain.tasks import TaskState
from tests.integration.cell import (
    UNKNOWN_KEY,
    as_client,
    assert_problem,
    create_task,
    enrol,
    enrol_one,
    fresh_name,
    make_model,
    started_round,
    upload,
)
from tests.running_service import running_service

Labels = frozenset[tuple[str, str]]


class Metrics:
    """What ``/metrics`` says at one moment."""

    def __init__(self, service: httpx.Client) -> None:
        response = service.get("/metrics")
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
        families = list(text_string_to_metric_families(response.text))
        self.types = {family.name: family.type for family in families}
        self._values: dict[tuple[str, Labels], float] = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in families
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float:
        return self._values.get((name, frozenset(labels.items())), 0.0)

    def labels(self, name: str, label: str) -> set[str]:
        """The values of a label that a metric has."""
        return {dict(labels)[label] for known, labels in self._values if known == name}


def test_all_metrics_are_there_with_their_types(service_on_each: httpx.Client) -> None:
    metrics = Metrics(service_on_each)
    assert {
        "fedcs_rounds": "gauge",
        "fedcs_tasks": "gauge",
        "fedcs_jobs": "gauge",
        "fedcs_open_slots": "gauge",
        "fedcs_model_accuracy": "gauge",
        "fedcs_clients": "gauge",
        "fedcs_selected_clients": "counter",
        "fedcs_oldest_unpublished_job_seconds": "gauge",
        "fedcs_updates": "counter",
        "fedcs_upload_bytes": "counter",
        "fedcs_upload_bytes_saved": "counter",
        "fedcs_slot_lateness_seconds": "histogram",
        "fedcs_lease_expiries": "counter",
        "fedcs_http_request_seconds": "histogram",
    }.items() <= metrics.types.items()


def test_alarms_can_be_set_before_anything_happened(service_on_each: httpx.Client) -> None:
    metrics = Metrics(service_on_each)
    assert metrics.labels("fedcs_rounds", "state") == {state.value for state in RoundState}
    assert metrics.labels("fedcs_tasks", "state") == {state.value for state in TaskState}
    assert metrics.labels("fedcs_updates_total", "outcome") == {
        "received",
        "repeated",
        "late",
        "rejected",
        "declined",
    }
    assert metrics.labels("fedcs_lease_expiries_total", "kind") == {kind.value for kind in JobKind}


def test_clients_tasks_rounds_and_slots_are_counted(database_url: str, tmp_path: Path) -> None:
    # A service of its own: rounds of other tests would end in between.
    with running_service(tmp_path, database_url=database_url) as service:
        opened, _ = started_round(service, 3)
        running = Metrics(service)
        assert running.value("fedcs_clients") == 3
        assert running.value("fedcs_selected_clients_total") == 3
        assert running.value("fedcs_tasks", state="running") == 1
        assert running.value("fedcs_rounds", state=opened["state"]) == 1
        assert running.value("fedcs_open_slots", outcome="pending") == 3
        service.post(f"/tasks/{opened['task_id']}/cancel").raise_for_status()
        ended = Metrics(service)
        assert ended.value("fedcs_rounds", state=opened["state"]) == 0
        assert ended.value("fedcs_rounds", state="cancelled") == 1
        assert ended.value("fedcs_open_slots", outcome="pending") == 0


def test_updates_are_counted_by_what_became_of_them(service_on_each: httpx.Client) -> None:
    opened, keys = started_round(service_on_each, 3)
    (in_time, in_time_key), (late, late_key), (bad, bad_key) = keys.items()
    round_id = opened["round_id"]
    before = Metrics(service_on_each)
    elapsed_s = 179
    with as_client(service_on_each, in_time_key) as client:
        assert upload(client, round_id, in_time, fedcs_elapsed_s=str(elapsed_s)).status_code == 201
        assert upload(client, round_id, in_time, fedcs_elapsed_s=str(elapsed_s)).status_code == 200
    with as_client(service_on_each, bad_key) as client:
        assert_problem(upload(client, round_id, bad, b"no tensors"), 422, "BAD_TENSORS")
    with as_client(service_on_each, late_key) as client:
        response = upload(client, round_id, late, fedcs_elapsed_s="181")
        assert_problem(response, 409, "DEADLINE_PASSED")
    after = Metrics(service_on_each)
    rises = {
        outcome: after.value("fedcs_updates_total", outcome=outcome)
        - before.value("fedcs_updates_total", outcome=outcome)
        for outcome in ("received", "repeated", "late", "rejected")
    }
    assert rises == {"received": 1, "repeated": 1, "late": 1, "rejected": 1}
    uploaded = after.value("fedcs_upload_bytes_total") - before.value("fedcs_upload_bytes_total")
    assert uploaded == len(make_model(seed=1))
    slot = next(item for item in opened["schedule"]["slots"] if item["client_id"] == in_time)
    lateness_s = elapsed_s - slot["window_end_s"]
    assert 1 < lateness_s < 300
    name = "fedcs_slot_lateness_seconds"
    assert after.value(f"{name}_sum") - before.value(f"{name}_sum") == pytest.approx(lateness_s)
    buckets = {
        le: after.value(f"{name}_bucket", le=le) - before.value(f"{name}_bucket", le=le)
        for le in ("0.0", "1.0", "300.0")
    }
    assert buckets == {"0.0": 0, "1.0": 0, "300.0": 1}


def test_a_job_that_no_broker_takes_gets_older(service_on_each: httpx.Client) -> None:
    create_task(service_on_each)
    first = Metrics(service_on_each)
    second = Metrics(service_on_each)
    name = "fedcs_oldest_unpublished_job_seconds"
    assert 0 < first.value(name) < second.value(name)
    assert sum(first.value("fedcs_jobs", state=state) for state in first.labels("fedcs_jobs", "state")) >= 1


def test_requests_are_counted_by_route_and_not_by_address(service: httpx.Client) -> None:
    client_ids = list(enrol(service, 3))
    before = Metrics(service)
    for client_id in client_ids:
        service.get(f"/clients/{client_id}")
    service.get(f"/clients/{fresh_name()}")
    strange = fresh_name("strange")
    service.get(f"/{strange}")
    after = Metrics(service)

    def rise(status: str) -> float:
        labels = {"method": "GET", "route": "/clients/{client_id}", "status": status}
        name = "fedcs_http_request_seconds_count"
        return after.value(name, **labels) - before.value(name, **labels)

    assert (rise("200"), rise("404")) == (3, 1)
    routes = after.labels("fedcs_http_request_seconds_count", "route")
    assert not any(client_id in route for client_id in [*client_ids, strange] for route in routes)


@pytest.fixture(scope="module")
def closed_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with running_service(tmp_path_factory.mktemp("data"), metrics_open="false") as client:
        yield client


def test_metrics_are_open_unless_they_are_closed(service: httpx.Client, closed_service: httpx.Client) -> None:
    assert httpx.get(service.base_url.join("/metrics"), timeout=60).status_code == 200
    response = httpx.get(closed_service.base_url.join("/metrics"), timeout=60)
    assert_problem(response, 401, "UNAUTHENTICATED")
    assert response.headers["www-authenticate"] == "Bearer"
    assert httpx.get(closed_service.base_url.join("/healthz"), timeout=60).status_code == 200


def test_closed_metrics_are_for_operators(closed_service: httpx.Client) -> None:
    assert Metrics(closed_service).value("fedcs_clients") >= 0
    read_key = closed_service.post("/keys", json={"scope": "read"}).json()["api_key"]
    _, client_key = enrol_one(closed_service)
    with as_client(closed_service, read_key) as reader:
        assert reader.get("/metrics").status_code == 200
    with as_client(closed_service, client_key) as client:
        assert_problem(client.get("/metrics"), 403, "FORBIDDEN")
    with as_client(closed_service, UNKNOWN_KEY) as stranger:
        assert_problem(stranger.get("/metrics"), 401, "UNAUTHENTICATED")
