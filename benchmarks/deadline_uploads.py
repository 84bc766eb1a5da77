"""Uploads whose last kilobyte is sent just before or just after the deadline of a wall-clock round.

python -m benchmarks.deadline_uploads

The service must accept exactly the uploads whose recorded time of arrival is before the deadline.
"""

import asyncio
import base64
import hashlib
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
from rich.console import Console
from rich.table import Table
from safetensors.numpy import save

from benchmarks.servers import database_urls, python_server

_RUNS = 5
_LAST_BYTES = 1024
_CASES = ((100_000_000, 8, 25.0), (1_000_000, 50, 8.0))
"""Size of an update, uploads at once, deadline in seconds: a body may pause for 30 s (``body_limit``)."""
_LEADS_S = (0.05, -0.05)
"""How long before the deadline the last kilobyte is sent; negative: after it."""
_PIECE_BYTES = 1 << 20
_OPEN = ("scheduled", "collecting")


@dataclass(frozen=True)
class Body:
    """An update that ends differently for each client."""

    common: memoryview
    end: bytes
    digest: str


@dataclass(frozen=True)
class Upload:
    """The upload of a client."""

    client_id: str
    key: str
    body: Body


@dataclass(frozen=True)
class Sent:
    """A finished upload: when its last byte was sent, and the response."""

    client_id: str
    sent_at: float
    status: int


@dataclass(frozen=True)
class Result:
    """A round. Times are in seconds after the deadline."""

    sent_s: list[float]
    arrived_s: list[float]
    accepted: int
    wrong: int
    """Uploads whose answer or outcome does not follow from their time of arrival."""
    closed_s: float


def main() -> None:
    """Run all cases on both databases, and print what became of the uploads."""
    console = Console()
    table = Table(title="Uploads at the deadline", title_justify="left")
    for name in ("case", "sent (ms)", "arrived (ms)", "in time", "accepted", "wrong", "closed after (s)"):
        table.add_column(name, justify="left" if name == "case" else "right")
    failed = False
    with database_urls() as urls:
        for database, url in urls.items():
            with python_server("benchmarks.api_server", database_url=url) as (service, _):
                for size_bytes, clients, deadline_s in _CASES:
                    model, bodies = make_bodies(size_bytes, clients)
                    for lead_s in _LEADS_S:
                        for run in range(_RUNS):
                            case = f"{database}, {size_bytes / 1e6:g} MB × {clients}, {lead_s * 1e3:+g} ms"
                            with console.status(f"{case}: run {run + 1} of {_RUNS}"):
                                result = run_round(service, model, bodies, deadline_s, lead_s)
                            failed = failed or result.wrong > 0
                            table.add_row(f"{case}, run {run + 1}", *_cells(result))
    console.print(table)
    if failed:
        raise SystemExit("some uploads were not judged by their time of arrival")


def _cells(result: Result) -> list[str]:
    def span(times_s: Sequence[float]) -> str:
        return f"{min(times_s) * 1e3:.1f} … {max(times_s) * 1e3:.1f}" if times_s else "–"

    in_time = sum(delay_s < 0 for delay_s in result.arrived_s)
    return [
        span(result.sent_s),
        span(result.arrived_s),
        f"{in_time} of {len(result.sent_s)}",
        str(result.accepted),
        str(result.wrong),
        f"{result.closed_s:.2f}",
    ]


def make_bodies(size_bytes: int, clients: int) -> tuple[bytes, list[Body]]:
    """A model of about this size, and an update of it for each client."""
    weights = np.zeros(size_bytes // 4, np.float32)
    model = save({"weights": weights})
    common = memoryview(model)[:-_LAST_BYTES]
    hashed = hashlib.sha256(common)
    bodies = []
    for number in range(clients):
        weights[-1] = number + 1
        end = weights[-_LAST_BYTES // 4 :].tobytes()
        digest = hashed.copy()
        digest.update(end)
        bodies.append(Body(common, end, base64.b64encode(digest.digest()).decode()))
    return model, bodies


def run_round(
    service: httpx.Client, model: bytes, bodies: Sequence[Body], deadline_s: float, lead_s: float
) -> Result:
    """A round in which each client sends the end of its update so long before the deadline."""
    label = {"run": uuid.uuid4().hex}
    ids = [f"{label['run'][:16]}-{n}" for n in range(len(bodies))]
    enrolled = _post(
        service,
        "/clients/batch",
        {"clients": [{"client_id": client_id, "labels": label} for client_id in ids]},
    )
    keys = {client["client_id"]: client["api_key"] for client in enrolled["clients"]}
    resources = {"throughput_bps": 1e11, "compute_samples_per_s": 1e6, "data_samples": 100}
    _post(
        service, "/reports/batch", {"reports": [{"client_id": client_id, **resources} for client_id in ids]}
    )
    terms = {"round_deadline_s": deadline_s, "request_fraction": 1, "clock": "wall", "labels": label}
    task_id = _post(service, "/tasks", terms)["task_id"]
    service.put(f"/tasks/{task_id}/models/0", content=model).raise_for_status()
    opened = _post(service, "/rounds", {"task_id": task_id})
    assert opened["selected"] == len(bodies), opened
    round_id = opened["round_id"]
    started_at, deadline_at = (_seconds(opened[name]) for name in ("started_at", "upload_deadline_at"))
    uploads = [Upload(client_id, keys[client_id], body) for client_id, body in zip(ids, bodies, strict=True)]
    sent = asyncio.run(_send_all(str(service.base_url), round_id, uploads, deadline_at - lead_s))
    while (round_ := service.get(f"/rounds/{round_id}").raise_for_status().json())["state"] in _OPEN:
        time.sleep(0.05)
    closed_s = time.time() - deadline_at
    slots = {slot["client_id"]: slot for slot in round_["schedule"]["slots"]}
    arrived_s = {
        client_id: slot["elapsed_s"] - (deadline_at - started_at)
        for client_id, slot in slots.items()
        if slot["elapsed_s"] is not None
    }
    expected = {
        client_id: ("received", 201) if delay_s < 0 else ("late", 409)
        for client_id, delay_s in arrived_s.items()
    }
    wrong = sum(
        (slots[upload.client_id]["outcome"], upload.status) != expected.get(upload.client_id)
        for upload in sent
    )
    service.post(f"/tasks/{task_id}/cancel").raise_for_status()
    return Result(
        sent_s=[upload.sent_at - deadline_at for upload in sent],
        arrived_s=list(arrived_s.values()),
        accepted=sum(upload.status == httpx.codes.CREATED for upload in sent),
        wrong=wrong,
        closed_s=closed_s,
    )


def _seconds(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).timestamp()


def _post(service: httpx.Client, path: str, body: object) -> dict[str, Any]:
    answer: dict[str, Any] = service.post(path, json=body).raise_for_status().json()
    return answer


async def _send_all(url: str, round_id: str, uploads: Sequence[Upload], end_at: float) -> list[Sent]:
    return await asyncio.gather(*(_send(url, round_id, upload, end_at) for upload in uploads))


async def _send(url: str, round_id: str, upload: Upload, end_at: float) -> Sent:
    """Send all but the end of an update, wait for its moment, and send the end."""
    body = upload.body
    address = urlsplit(url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    head = (
        f"PUT /rounds/{round_id}/updates/{upload.client_id} HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n"
        f"Authorization: Bearer {upload.key}\r\nContent-Length: {len(body.common) + len(body.end)}\r\n"
        f"Content-Digest: sha-256=:{body.digest}:\r\nFedcs-Data-Samples: 100\r\n\r\n"
    )
    writer.write(head.encode())
    for start in range(0, len(body.common), _PIECE_BYTES):
        writer.write(body.common[start : start + _PIECE_BYTES])
        await writer.drain()
    assert time.time() < end_at, "the deadline is too short for this machine"
    await asyncio.sleep(end_at - time.time())
    writer.write(body.end)
    sent_at = time.time()
    answer = await reader.read()
    writer.close()
    return Sent(upload.client_id, sent_at, int(answer[9:12]))


if __name__ == "__main__":
    main()
