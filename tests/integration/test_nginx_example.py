"""The example configuration of nginx, tried with a real one: TLS, client certificates, streams, addresses."""

import shutil
import ssl
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.docs.operations_guide import run_documented
from tests.integration.cell import (
    UNKNOWN_KEY,
    assert_problem,
    content_digest,
    create_task,
    enrol_one,
    make_model,
    resources,
    started_round,
)
from tests.integration.rounds_setup import event_stream, eventually
from tests.running_nginx import free_port, make_certificate, running_nginx
from tests.running_service import OPERATOR_KEY, running_service

pytestmark = pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "nginx.conf"
MAX_MODEL_BYTES = 300_000
LONG = {"wait_s": "60"}
GRANT = {"grant_type": "client_credentials"}


@dataclass(frozen=True)
class Front:
    """nginx before a service: where devices and operators come to."""

    devices_url: str
    operators_url: str
    directory: Path
    changes: Mapping[str, str]

    @contextmanager
    def with_limits(self, limits: Mapping[str, str]) -> Iterator[str]:
        """Another nginx with other limits; where devices come to."""
        devices = free_port()
        ports = {
            "listen 443 ": f"listen 127.0.0.1:{devices} ",
            "listen 8443 ": f"listen 127.0.0.1:{free_port()} ",
        }
        directory = self.directory / f"limited-{devices}"
        directory.mkdir()
        with running_nginx(directory, EXAMPLE.read_text(), {**self.changes, **ports, **limits}, devices):
            yield f"https://127.0.0.1:{devices}"

    @contextmanager
    def caller(
        self, url: str, key: str, *, with_certificate: bool = False, address: str = "127.0.0.1"
    ) -> Iterator[httpx.Client]:
        """Somebody who trusts the server's certificate, and may have one too."""
        tls = ssl.create_default_context(cafile=str(self.directory / "server.pem"))
        if with_certificate:
            tls.load_cert_chain(self.directory / "orchestrator.pem", self.directory / "orchestrator.key")
        headers = {"Authorization": f"Bearer {key}"}
        transport = httpx.HTTPTransport(verify=tls, local_address=address)
        with httpx.Client(base_url=url, headers=headers, transport=transport, timeout=30) as client:
            yield client


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    directory = tmp_path_factory.mktemp("front")
    make_certificate(directory)
    run_documented("Certificates for operators", directory)
    devices, operators = free_port(), free_port()
    with running_service(directory / "data", max_model_bytes=str(MAX_MODEL_BYTES)) as service:
        changes = {
            "127.0.0.1:8000": f"127.0.0.1:{service.base_url.port}",
            "/etc/fedcs/tls/": f"{directory}/",
        }
        ports = {
            "listen 443 ": f"listen 127.0.0.1:{devices} ",
            "listen 8443 ": f"listen 127.0.0.1:{operators} ",
        }
        with running_nginx(directory, EXAMPLE.read_text(), changes | ports, devices):
            yield Front(f"https://127.0.0.1:{devices}", f"https://127.0.0.1:{operators}", directory, changes)


@pytest.fixture
def operator(front: Front) -> Iterator[httpx.Client]:
    with front.caller(front.operators_url, OPERATOR_KEY, with_certificate=True) as client:
        yield client


def test_operators_need_a_certificate_and_a_key(front: Front, operator: httpx.Client) -> None:
    assert operator.get("/clients").status_code == 200
    with front.caller(front.operators_url, OPERATOR_KEY) as stranger:
        refused = stranger.get("/clients")
        assert refused.status_code == 400
        assert "No required SSL certificate was sent" in refused.text
    with front.caller(front.operators_url, UNKNOWN_KEY, with_certificate=True) as keyless:
        assert_problem(keyless.get("/clients"), 401, "UNAUTHENTICATED")


def test_devices_need_a_key_and_reach_what_devices_need(front: Front, operator: httpx.Client) -> None:
    client_id, key = enrol_one(operator)
    with front.caller(front.devices_url, key) as device:
        assert device.post("/reports", json=resources(client_id)).status_code == 201
        assert device.get("/assignments").status_code == 200
        assert device.get(f"/clients/{client_id}/reports").status_code == 200
        assert device.post(f"/clients/{client_id}/keys", json={}).status_code == 201
    with front.caller(front.devices_url, OPERATOR_KEY) as operator_without_certificate:
        for path in ("/rounds", f"/clients/{client_id}/reports", "/assignments"):
            assert_problem(operator_without_certificate.get(path), 403, "FORBIDDEN")
        report = operator_without_certificate.post("/reports", json=resources(client_id))
        assert_problem(report, 403, "FORBIDDEN")
        for path in ("/", "/clients", "/tasks", "/events", "/metrics", "/keys", "/reports/batch", "/docs"):
            assert operator_without_certificate.get(path).status_code == 404, path


def test_an_update_reaches_the_service_as_it_is_sent(front: Front, operator: httpx.Client) -> None:
    opened, keys = started_round(operator)
    ((client_id, key),) = keys.items()
    path = f"/rounds/{opened['round_id']}/updates/{client_id}"
    incoming = front.directory / "data" / "models" / "incoming"
    update = make_model(seed=1)
    arrived: list[Path] = []

    def body() -> Iterator[bytes]:
        yield update[:100]
        arrived.extend(eventually(lambda: list(incoming.iterdir())))
        yield update[100:]

    headers = content_digest(update) | {"Fedcs-Data-Samples": "200", "Fedcs-Elapsed-S": "10"}
    with front.caller(front.devices_url, key) as device:
        assert device.get(f"/rounds/{opened['round_id']}/model").status_code == 200
        answer = device.put(path, content=body(), headers=headers)
        assert answer.status_code == 201, answer.text
    assert len(arrived) == 1, "before its second half was sent"


def test_the_service_says_what_is_too_large(operator: httpx.Client) -> None:
    task_id = create_task(operator)["task_id"]
    too_large = bytes(MAX_MODEL_BYTES + 1)
    answer = operator.put(f"/tasks/{task_id}/models/0", content=too_large)
    assert_problem(answer, 413, "BODY_TOO_LARGE")


def test_events_come_as_they_happen(operator: httpx.Client) -> None:
    with event_stream(operator) as events:
        task_id = create_task(operator)["task_id"]
        assert next(events)["task_id"] == task_id


def test_links_lead_back_through_the_proxy(front: Front, operator: httpx.Client) -> None:
    for _ in range(2):
        enrol_one(operator)
    following = operator.get("/clients", params={"per_page": 1}).links["next"]["url"]
    assert following.startswith(f"{front.operators_url}/clients")
    assert operator.get(following).status_code == 200


def test_devices_get_tokens_and_operators_do_not(front: Front, operator: httpx.Client) -> None:
    _, key = enrol_one(operator)
    reader = operator.post("/keys", json={"scope": "read"}).json()
    credentials = {key.split("_")[1]: key, "operator": OPERATOR_KEY, reader["key_id"]: reader["api_key"]}
    with front.caller(front.devices_url, "none") as caller:
        del caller.headers["Authorization"]
        statuses = [
            caller.post("/oauth2/token", data=GRANT | {"client_id": key_id, "client_secret": key}).status_code
            for key_id, key in credentials.items()
        ]
        too_large = caller.post("/oauth2/token", data={**GRANT, "client_id": "x" * 20_000})
    assert statuses == [200, 403, 403]
    assert too_large.status_code == 413
    form = {**GRANT, "client_id": "operator", "client_secret": OPERATOR_KEY}
    del operator.headers["Authorization"]
    token = operator.post("/oauth2/token", data=form).json()["access_token"]
    with front.caller(front.devices_url, token) as caller:
        assert_problem(caller.get("/rounds"), 403, "FORBIDDEN")


def test_one_address_may_send_only_so_many_requests(front: Front, operator: httpx.Client) -> None:
    """With a lower limit than the example's, so that it does not matter how fast the machine is."""
    _, key = enrol_one(operator)
    with front.with_limits({"rate=100r/s": "rate=1r/m", "burst=200": "burst=10"}) as url:
        with front.caller(url, key, address="127.0.0.5") as device:
            answers = [device.get("/assignments") for _ in range(12)]
        with front.caller(url, key, address="127.0.0.6") as other:
            assert other.get("/assignments").status_code == 200
    assert [answer.status_code for answer in answers] == [200] * 11 + [429]
    assert_problem(answers[-1], 429, "TOO_MANY_REQUESTS")
    assert answers[-1].headers["retry-after"] == "1"


def test_one_address_may_hold_only_so_many_connections(front: Front, operator: httpx.Client) -> None:
    _, key = enrol_one(operator)
    with (
        front.with_limits({"connections 200": "connections 2"}) as url,
        front.caller(url, key) as device,
        ThreadPoolExecutor(2) as threads,
    ):
        known = {"If-None-Match": device.get("/assignments").headers["etag"]}

        def poll() -> int:
            while (status := device.get("/assignments", params=LONG, headers=known).status_code) == 429:
                time.sleep(0.1)
            return status

        polls = [threads.submit(poll) for _ in range(2)]
        refused = eventually(lambda: found if (found := device.get("/assignments")).is_error else None)
        assert_problem(refused, 429, "TOO_MANY_REQUESTS")
        assert operator.delete(f"/keys/{key.split('_')[1]}").status_code == 204
        assert [ended.result() for ended in polls] == [401, 401]


def test_failed_attempts_count_for_the_callers_own_address(front: Front) -> None:
    form = {"grant_type": "client_credentials", "client_id": "operator", "client_secret": "wrong"}
    with front.caller(front.devices_url, "none", address="127.0.0.2") as guesser:
        del guesser.headers["Authorization"]
        statuses = [
            guesser.post(
                "/oauth2/token", data=form, headers={"X-Forwarded-For": f"192.0.2.{number}"}
            ).status_code
            for number in range(21)
        ]
    assert (set(statuses[:20]), statuses[20]) == ({401}, 429)
    with front.caller(front.devices_url, "none", address="127.0.0.3") as other:
        del other.headers["Authorization"]
        assert other.post("/oauth2/token", data=form).status_code == 401
