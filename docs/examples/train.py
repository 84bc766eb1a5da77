"""Train one round of simulated devices through the service's workers, with plain HTTP requests.

python train.py URL OPERATOR_KEY
"""

import base64
import hashlib
import sys
import time
from collections.abc import Callable
from typing import Any

import httpx

DEVICES = 4
SAMPLES = 300
Answer = dict[str, Any]


def main(url: str, key: str) -> None:
    """Run one round and print the accuracy."""
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=url, headers=headers, timeout=60) as service:
        keys = enrol(service)
        task_id = start_task(service)
        opened = call(service.post("/rounds", json={"task_id": task_id}))
        slots = opened["schedule"]["slots"]
        trainings = [ask_training(service, opened["round_id"], slot) for slot in slots]
        for slot, training_id in zip(slots, trainings, strict=True):
            update = fetch_update(service, training_id)
            upload(service, keys[slot["client_id"]], opened["round_id"], slot, update)
        rounds = wait_for(lambda: call(service.get(f"/tasks/{task_id}/metrics"))["rounds"], is_evaluated)
        print(f"accuracy after {rounds[0]['received']} updates: {rounds[0]['accuracy']:.3f}")


def enrol(service: httpx.Client) -> dict[str, str]:
    """Enrol the devices, post their reports and return their keys."""
    wanted = [{"client_id": f"device-{place}", "labels": {"cell": "training"}} for place in range(DEVICES)]
    enrolled = call(service.post("/clients/batch", json={"clients": wanted}))["clients"]
    for place, client in enumerate(enrolled):
        report = {
            "client_id": client["client_id"],
            "throughput_bps": 1e6 * (1 + place),
            "compute_samples_per_s": 50,
            "data_samples": SAMPLES,
        }
        call(service.post("/reports", json=report))
    return {client["client_id"]: client["api_key"] for client in enrolled}


def start_task(service: httpx.Client) -> str:
    """Create a task for these devices and wait until a worker has created the initial model."""
    terms = {
        "model": "paper-cnn-gn",
        "dataset": "generated",
        "learning_rate": 0.05,
        "local_momentum": 0.5,
        "gradient_clip_norm": 5.0,
        "round_deadline_s": 600,
        "request_fraction": 1,
        "update_encoding": "int8",
        "model_encoding": "float16",
        "clock": "simulated",
        "labels": {"cell": "training"},
    }
    task_id: str = call(service.post("/tasks", json=terms))["task_id"]
    task = wait_for(
        lambda: call(service.get(f"/tasks/{task_id}")), lambda found: found["state"] != "initializing"
    )
    assert task["state"] == "ready", task["detail"]
    return task_id


def ask_training(service: httpx.Client, round_id: str, slot: Answer) -> str:
    """Let a worker train for a device; device i holds partition i of the data."""
    client_id = slot["client_id"]
    partition = int(client_id.removeprefix("device-"))
    body = {"round_id": round_id, "client_id": client_id, "partition": partition}
    training_id: str = call(service.post("/trainings", json=body))["training_id"]
    return training_id


def fetch_update(service: httpx.Client, training_id: str) -> bytes:
    """Wait for the trained update and return it."""
    training = wait_for(
        lambda: call(service.get(f"/trainings/{training_id}")), lambda found: found["state"] != "waiting"
    )
    assert training["state"] == "done", training["error"]
    return service.get(f"/trainings/{training_id}/update").raise_for_status().content


def upload(service: httpx.Client, key: str, round_id: str, slot: Answer, update: bytes) -> None:
    """Upload as the device would, at the end of its slot."""
    headers = {
        "Authorization": f"Bearer {key}",
        "Content-Digest": f"sha-256=:{base64.b64encode(hashlib.sha256(update).digest()).decode()}:",
        "Fedcs-Data-Samples": str(SAMPLES),
        "Fedcs-Encoding": "int8",
        "Fedcs-Elapsed-S": str(slot["window_end_s"]),
    }
    path = f"/rounds/{round_id}/updates/{slot['client_id']}"
    call(service.put(path, content=update, headers=headers))


def is_evaluated(rounds: list[Answer]) -> bool:
    """Return whether the accuracy after the first round is known."""
    return rounds[0]["accuracy"] is not None


def wait_for(get: Callable[[], Any], is_ready: Callable[[Any], bool]) -> Any:
    """Call ``get`` until its result is ready and return it."""
    while not is_ready(found := get()):
        time.sleep(0.2)
    return found


def call(response: httpx.Response) -> Answer:
    """Return the JSON of a response that must be a success."""
    assert response.is_success, response.text
    answer: Answer = response.json()
    return answer


if __name__ == "__main__":
    main(*sys.argv[1:])
