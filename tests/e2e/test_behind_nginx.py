"""Two API processes behind nginx as documented: a whole round through it, in which one of them is killed."""

import re
import shutil
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen
from threading import Event, Thread
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import load, save

from tests.databases import new_database
from tests.e2e.hosted_cell import PATIENCE_S, HostedCell, hosted_cell
from tests.integration.cell import content_digest, open_round, report
from tests.integration.rounds_setup import event_stream, eventually
from tests.redis_server import redis_server
from tests.running_nginx import free_port, make_certificate, running_nginx
from tests.running_service import OPERATOR_KEY, service_process
from tests.running_stack import worker_process

pytestmark = pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")

GUIDE = Path(__file__).parents[2] / "docs" / "scaling-out.md"
SAMPLES = [120, 90, 60]


@dataclass(frozen=True)
class Site:
    """Two API processes and a worker, reached through nginx."""

    url: str
    tls: ssl.SSLContext
    ports: list[int]
    apis: list[Popen[str]]
    incoming: Path
    """Where updates are while they come."""

    @contextmanager
    def caller(self, key: str = OPERATOR_KEY) -> Iterator[httpx.Client]:
        """Somebody with a key, who comes through nginx."""
        headers = {"Authorization": f"Bearer {key}"}
        with httpx.Client(base_url=self.url, headers=headers, verify=self.tls, timeout=60) as client:
            yield client

    def receiver(self) -> Popen[str] | None:
        """The process that an update comes to just now."""
        for api in self.apis:
            for file in Path(f"/proc/{api.pid}/fd").iterdir():
                if file.is_symlink() and file.readlink().parent == self.incoming:
                    return api
        return None


@pytest.fixture
def site(tmp_path: Path, postgres_url: str) -> Iterator[Site]:
    make_certificate(tmp_path)
    (documented,) = re.findall(r"^```nginx\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    with ExitStack() as running:
        redis_port, _ = running.enter_context(redis_server(tmp_path))
        settings = {
            "database_url": new_database("postgresql", tmp_path, postgres_url),
            "broker_url": f"redis://127.0.0.1:{redis_port}/0",
            "model_store": str(tmp_path / "models"),
        }
        started = [
            running.enter_context(service_process(tmp_path / name, tmp_path / f"{name}.log", **settings))
            for name in ("api-1", "api-2")
        ]
        worker = {**settings, "data_dir": str(tmp_path / "worker")}
        running.enter_context(worker_process(tmp_path / "worker.log", "--processes", "1", **worker))
        ports = [client.base_url.port or 0 for client, _ in started]
        port = free_port()
        changes = {
            "10.0.0.1:8000": f"127.0.0.1:{ports[0]}",
            "10.0.0.2:8000": f"127.0.0.1:{ports[1]}",
            "listen 443 ": f"listen 127.0.0.1:{port} ",
            "/etc/fedcs/tls/": f"{tmp_path}/",
        }
        running.enter_context(running_nginx(tmp_path, documented, changes, port))
        tls = ssl.create_default_context(cafile=str(tmp_path / "server.pem"))
        apis = [process for _, process in started]
        yield Site(f"https://127.0.0.1:{port}", tls, ports, apis, tmp_path / "models" / "incoming")


@dataclass
class Follower:
    """Follows the events of a task to the end of its round, and comes back when the stream breaks off."""

    site: Site
    task_id: str
    told: list[dict[str, Any]] = field(default_factory=list)
    breaks: int = 0
    connected: Event = field(default_factory=Event)

    def start(self) -> Thread:
        """Begin; the first event has come when this returns."""
        thread = Thread(target=self._follow, daemon=True)
        thread.start()
        assert self.connected.wait(PATIENCE_S)
        return thread

    def _follow(self) -> None:
        while not self._over():
            try:
                self._listen()
            except httpx.TransportError:
                self.breaks += 1

    def _listen(self) -> None:
        last = self.told[-1]["number"] if self.told else 0
        with self.site.caller() as caller, event_stream(caller, last, task_id=self.task_id) as events:
            for event in events:
                self.told.append(event)
                self.connected.set()
                if self._over():
                    break

    def _over(self) -> bool:
        return bool(self.told) and self.told[-1]["kind"] in ("round.aggregated", "round.failed")


@pytest.mark.long
def test_a_round_goes_on_when_one_of_two_processes_is_killed(site: Site) -> None:
    with site.caller() as operator, ThreadPoolExecutor() as threads:
        cell = hosted_cell(operator, SAMPLES)
        cell.start_task()
        followers = [Follower(site, cell.task_id) for _ in site.apis]
        # One after the other, so that each comes to another process.
        following = [follower.start() for follower in followers]
        waiting = [threads.submit(assigned, site, key) for key in cell.keys.values()]
        opened = open_round(operator, cell.task_id)
        assert [waiting_.result()["round_id"] for waiting_ in waiting] == [opened["round_id"]] * len(SAMPLES)

        first, *others = opened["schedule"]["slots"]
        assert not upload_with_a_kill(site, cell, opened, first)
        assert sorted(api.poll() is None for api in site.apis) == [False, True]
        for slot in (first, *others):
            answer = cell.send(opened, slot, trained(site, cell, opened, slot))
            assert answer.status_code == 201, answer.text
        assert cell.round_over(opened["round_id"])["state"] == "aggregated"
        assert cell.model(1) != cell.model(0)

        for thread in following:
            thread.join(PATIENCE_S)
        assert followers[0].told == followers[1].told
        assert followers[0].told[-1]["kind"] == "round.aggregated"
        numbers = [event["number"] for event in followers[0].told]
        assert numbers == sorted(set(numbers))
        assert sorted(follower.breaks for follower in followers) == [0, 1]


@pytest.mark.long
def test_nobody_notices_the_death_of_a_process_at_rest(site: Site) -> None:
    with site.caller() as operator:
        cell = hosted_cell(operator, SAMPLES)
        site.apis[0].kill()
        site.apis[0].wait()
        for client_id in 10 * list(cell.keys):
            report(operator, client_id)
            assert operator.get(f"/clients/{client_id}").status_code == 200


def test_connections_are_used_again_on_both_sides(site: Site) -> None:
    with site.caller() as operator:
        mine = {address_of_caller(operator.get("/clients")) for _ in range(40)}
    assert len(mine) == 1
    for port in site.ports:
        assert 1 <= len(callers_of(port)) < 5


def test_links_lead_back_through_the_proxy(site: Site) -> None:
    with site.caller() as operator:
        hosted_cell(operator, SAMPLES)
        following = operator.get("/clients", params={"per_page": 1}).links["next"]["url"]
        assert following.startswith(f"{site.url}/clients")
        assert operator.get(following).status_code == 200


def assigned(site: Site, key: str) -> dict[str, Any]:
    """What a device has to do, once there is something."""
    with site.caller(key) as device:
        answer = device.get("/assignments")
        while not answer.json()["assignments"]:
            known = {"If-None-Match": answer.headers["etag"]}
            answer = device.get("/assignments", params={"wait_s": 60}, headers=known)
        (found,) = answer.json()["assignments"]
    assignment: dict[str, Any] = found
    return assignment


def trained(site: Site, cell: HostedCell, opened: dict[str, Any], slot: dict[str, Any]) -> bytes:
    """A device's update: the model that it downloads, a little changed."""
    with site.caller(cell.keys[slot["client_id"]]) as device:
        answer = device.get(f"/rounds/{opened['round_id']}/model")
    assert answer.status_code == 200, answer.text
    step = np.float32(slot["order"] / 1000)
    update = save({name: np.asarray(t + step, t.dtype) for name, t in load(answer.content).items()})
    assert len(update) > 2_000_000
    return update


def upload_with_a_kill(site: Site, cell: HostedCell, opened: dict[str, Any], slot: dict[str, Any]) -> bool:
    """Kill the process that takes an update when it has half of it; whether the update arrived."""
    client_id = slot["client_id"]
    update = trained(site, cell, opened, slot)

    def body() -> Iterator[bytes]:
        yield update[: len(update) // 2]
        receiver = eventually(site.receiver)
        receiver.kill()
        receiver.wait()
        yield update[len(update) // 2 :]

    headers = {
        "Fedcs-Data-Samples": str(cell.samples[client_id]),
        "Fedcs-Elapsed-S": str(slot["window_end_s"]),
    }
    path = f"/rounds/{opened['round_id']}/updates/{client_id}"
    with site.caller(cell.keys[client_id]) as device:
        try:
            answer = device.put(path, content=body(), headers=content_digest(update) | headers)
        except httpx.TransportError:
            return False
    assert answer.status_code in (201, 502), answer.text
    return answer.status_code == 201


def address_of_caller(answer: httpx.Response) -> tuple[str, int]:
    """Our own end of the connection on which an answer came."""
    assert answer.status_code == 200, answer.text
    address: tuple[str, int] = answer.extensions["network_stream"].get_extra_info("client_addr")
    return address


def callers_of(port: int) -> set[str]:
    """The connections to a port of this host, also those that are over since a moment."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {
        remote for _, local, remote, state, *_ in lines if local.endswith(f":{port:04X}") and state != "0A"
    }
