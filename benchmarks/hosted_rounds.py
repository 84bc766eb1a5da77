"""Rounds with hosted training through the whole service: API, Redis, a worker with two processes."""

import base64
import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http import HTTPStatus
from http.client import HTTPConnection
from itertools import islice
from typing import Any

import httpx

from benchmarks.peers.images import CLIENTS
from benchmarks.peers.loops import BATCH_SIZE, LEARNING_RATE
from benchmarks.peers.turns import Times, Turn
from benchmarks.stack import service_with_worker

_DATA_SET = "benchmarks.peers.images:load_images"
_FEW_IMAGES = "benchmarks.peers.images:load_few_images"
_UPLOADS_AT_ONCE = 2
_PAUSE_S = 0.05
_RESOURCES = {"throughput_bps": 1e9, "compute_samples_per_s": 1e6}
_TERMS = {
    "batch_size": BATCH_SIZE,
    "learning_rate": LEARNING_RATE,
    "round_deadline_s": 1e6,
    "request_fraction": 1,
    "clock": "simulated",
}


@contextmanager
def hosted_rounds() -> Iterator["HostedRounds"]:
    """Start the service with a worker."""
    with service_with_worker() as service:
        yield HostedRounds(service)


class HostedRounds:
    """Enrolled clients, and a task for each kind of round."""

    def __init__(self, service: httpx.Client) -> None:
        self._service = service
        ids = [f"client-{number}" for number in range(CLIENTS)]
        enrolled = self._post("/clients/batch", {"clients": [{"client_id": client_id} for client_id in ids]})
        self._keys: dict[str, str] = {
            client["client_id"]: client["api_key"] for client in enrolled["clients"]
        }
        self._tasks: dict[Turn, str] = {}

    def do_round(self, turn: Turn) -> Times:
        """Run a round with all clients, and wait for the evaluation of its model."""
        if turn not in self._tasks:
            self._tasks[turn] = self._new_task(turn)
        task_id = self._tasks[turn]
        with self._events(task_id) as events, ThreadPoolExecutor(_UPLOADS_AT_ONCE) as pool:
            began = time.perf_counter()
            round_id = self._post("/rounds", {"task_id": task_id})["round_id"]
            asked = time.perf_counter()
            for number, client_id in enumerate(self._keys):
                self._post("/trainings", {"round_id": round_id, "client_id": client_id, "partition": number})
            uploads = [
                pool.submit(self._upload, event, turn.samples)
                for event in islice(_of_kind(events, "training.done"), CLIENTS)
            ]
            trained = time.perf_counter()
            for upload in uploads:
                upload.result()
            next(_of_kind(events, "round.aggregated"))
            aggregated = time.perf_counter()
            next(_of_kind(events, "model.evaluated"))
            evaluated = time.perf_counter()
        ended = evaluated if turn.evaluates else aggregated
        return Times(trained - asked, ended - began, evaluated - ended)

    def _new_task(self, turn: Turn) -> str:
        data_set = _DATA_SET if turn.samples > 1 else _FEW_IMAGES
        terms = {**_TERMS, "dataset": data_set, "local_epochs": turn.epochs}
        task_id: str = self._post("/tasks", terms)["task_id"]
        resources = {"task_id": task_id, "data_samples": turn.samples, **_RESOURCES}
        self._post(
            "/reports/batch", {"reports": [{"client_id": client_id, **resources} for client_id in self._keys]}
        )
        self._await_ready(task_id)
        return task_id

    def _upload(self, done: Mapping[str, Any], samples: int) -> None:
        """Fetch a trained update and upload it, with the standard library's HTTP client for low overhead."""
        connection = HTTPConnection(self._service.base_url.host, self._service.base_url.port)
        operator = {"Authorization": self._service.headers["Authorization"]}
        connection.request("GET", f"/trainings/{done['data']['training_id']}/update", headers=operator)
        update = connection.getresponse().read()
        digest = base64.b64encode(hashlib.sha256(update).digest()).decode()
        headers = {
            "Authorization": f"Bearer {self._keys[done['client_id']]}",
            "Content-Digest": f"sha-256=:{digest}:",
            "Fedcs-Data-Samples": str(samples),
            "Fedcs-Elapsed-S": "1",
        }
        path = f"/rounds/{done['round_id']}/updates/{done['client_id']}"
        connection.request("PUT", path, body=update, headers=headers)
        answer = connection.getresponse()
        assert answer.status == HTTPStatus.CREATED, answer.read()
        connection.close()

    def _post(self, path: str, body: object) -> dict[str, Any]:
        answer: dict[str, Any] = self._service.post(path, json=body).raise_for_status().json()
        return answer

    def _await_ready(self, task_id: str) -> None:
        while (task := self._service.get(f"/tasks/{task_id}").raise_for_status().json())["state"] != "ready":
            if task["state"] == "failed":
                raise RuntimeError(task["outcome"])
            time.sleep(_PAUSE_S)

    @contextmanager
    def _events(self, task_id: str) -> Iterator[Iterator[dict[str, Any]]]:
        with self._service.stream("GET", "/events", params={"task_id": task_id}) as response:
            response.raise_for_status()
            lines = response.iter_lines()
            yield (json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: "))


def _of_kind(events: Iterator[dict[str, Any]], kind: str) -> Iterator[dict[str, Any]]:
    """The events of a kind; raises an error if a part of the round fails."""
    for event in events:
        if event["kind"] == kind:
            yield event
        elif event["kind"].endswith(".failed"):
            raise RuntimeError(f"{event}")
