"""An orchestrator: one round of federated training, with plain HTTP requests.

    python orchestrate.py http://127.0.0.1:8000 KEY

Enrols 100 clients, posts their resource reports, creates a task with its initial model, opens a round, reads
the schedule, and uploads as the selected clients would. At the end the round is being aggregated.
"""

import base64
import hashlib
import sys
import uuid

import httpx
import numpy as np
from safetensors.numpy import load, save

CLIENTS = 100


def main(url: str, operator_key: str) -> None:
    """Run one round."""
    rng = np.random.default_rng(0)
    operator = connect(url, operator_key)

    run = uuid.uuid4().hex[:8]
    enrolled = call(
        operator,
        "POST",
        "/clients/batch",
        headers={"Idempotency-Key": f"enrol-{run}"},
        json={"clients": [{"client_id": f"{run}-{n}", "labels": {"run": run}} for n in range(CLIENTS)]},
    ).json()["clients"]
    keys = {client["client_id"]: client["api_key"] for client in enrolled}
    print(f"{len(keys)} clients enrolled")

    for client_id, key in keys.items():
        report = {
            "client_id": client_id,
            "throughput_bps": float(rng.uniform(2e5, 8e6)),
            "compute_samples_per_s": float(rng.uniform(10, 100)),
            "data_samples": int(rng.integers(100, 1000)),
        }
        call(connect(url, key), "POST", "/reports", json=report)
    print("their resources reported")

    task = call(
        operator,
        "POST",
        "/tasks",
        json={
            "name": "an orchestrator's example",
            "round_deadline_s": 180,
            "request_fraction": 0.5,
            "model_size_bytes": 2_000_000,
            "clock": "simulated",
            "labels": {"run": run},
        },
    ).json()
    model = save({"weight": np.zeros((64, 32), np.float32), "bias": np.zeros(64, np.float32)})
    call(operator, "PUT", f"/tasks/{task['task_id']}/models/0", content=model, headers=digest(model))
    print(f"task {task['task_id']} has its initial model")

    opened = call(
        operator,
        "POST",
        "/rounds",
        headers={"Idempotency-Key": f"round-{run}"},
        json={"task_id": task["task_id"]},
    ).json()
    schedule = call(operator, "GET", f"/rounds/{opened['round_id']}/schedule").json()
    print(f"round {opened['round_id']}: {opened['asked']} asked, {len(schedule['slots'])} selected")
    for slot in schedule["slots"]:
        print(f"  {slot['order']:3}  {slot['client_id']}  uploads from {slot['window_start_s']:.1f} s")

    for slot in schedule["slots"]:
        upload_as_client(connect(url, keys[slot["client_id"]]), opened["round_id"], slot, rng)

    closed = call(operator, "GET", f"/rounds/{opened['round_id']}").json()
    print(f"{closed['received']} updates received; the round is {closed['state']}")


def upload_as_client(
    client: httpx.Client, round_id: str, slot: dict[str, object], rng: np.random.Generator
) -> None:
    """Act as a selected client: get the assignment, download the model, train it, upload it in its slot."""
    assignment = call(client, "GET", "/assignments").json()["assignments"][0]
    assert assignment["round_id"] == round_id
    tensors = load(call(client, "GET", f"/rounds/{round_id}/model").content)
    trained = {name: tensor + rng.normal(0, 0.01, tensor.shape) for name, tensor in tensors.items()}
    update = save({name: tensor.astype(np.float32) for name, tensor in trained.items()})
    headers = {
        "Fedcs-Data-Samples": str(slot["data_samples"]),
        "Fedcs-Elapsed-S": str(slot["window_end_s"]),  # the task's clock is simulated
    }
    path = f"/rounds/{round_id}/updates/{slot['client_id']}"
    call(client, "PUT", path, content=update, headers=headers | digest(update))


def connect(url: str, key: str) -> httpx.Client:
    """Return an HTTP client that sends this key."""
    return httpx.Client(base_url=url, headers={"Authorization": f"Bearer {key}"}, timeout=60)


def call(client: httpx.Client, method: str, path: str, **options: object) -> httpx.Response:
    """Send a request; on an error, print the problem details and exit."""
    response = client.request(method, path, **options)  # type: ignore[arg-type]
    if response.is_error:
        problem = response.json()
        raise SystemExit(f"{method} {path}: {problem['status']} {problem['cause']}: {problem['detail']}")
    return response


def digest(body: bytes) -> dict[str, str]:
    """Return the Content-Digest header of a body (RFC 9530)."""
    sha256 = base64.b64encode(hashlib.sha256(body).digest()).decode()
    return {"Content-Digest": f"sha-256=:{sha256}:"}


if __name__ == "__main__":
    main(*sys.argv[1:])
