"""Uploads of updates: throughput beside a handler that only writes a file, and the memory they take.

python -m benchmarks.uploads
"""

import asyncio
import base64
import hashlib
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
from rich.console import Console
from rich.table import Table
from safetensors.numpy import save

from benchmarks.servers import python_server

_MODEL_BYTES = 18_300_000
_CLIENTS = 50
_RUNS = 5
_LARGE_BYTES = 1_000_000_000
_MEGABYTE = 1e6


@dataclass(frozen=True)
class Upload:
    """One request, in the pieces in which it is sent."""

    path: str
    headers: dict[str, str]
    body: bytes


def main() -> None:
    """Measure, and print the ratios."""
    console = Console()
    table = Table(title="Uploads", title_justify="left")
    for name in ("measure", "ours", "peer", "ratio", "wanted"):
        table.add_column(name, justify="left" if name == "measure" else "right")
    with (
        python_server("benchmarks.api_server", max_model_bytes=str(2 * _LARGE_BYTES)) as (service, process),
        python_server("benchmarks.bare_upload_server") as (bare, _),
    ):
        for together in (4, _CLIENTS):
            ours, peer, grown = [], [], []
            for run in range(_RUNS):
                with console.status(f"{together} at once: run {run + 1} of {_RUNS}"):
                    uploads = _new_round(service, _MODEL_BYTES, _CLIENTS)
                    peer.append(_send_all(bare, uploads, together))
                    before = _peak_bytes(process.pid, reset=True)
                    ours.append(_send_all(service, uploads, together))
                    grown.append(_peak_bytes(process.pid) - before)
            ratio = statistics.median(p / o for o, p in zip(ours, peer, strict=True))
            sent = _MODEL_BYTES * _CLIENTS / _MEGABYTE
            table.add_row(
                f"MB/s, {_CLIENTS} updates of 18.3 MB, {together} at once",
                f"{sent / statistics.median(ours):.0f}",
                f"{sent / statistics.median(peer):.0f}",
                f"{ratio:.2f}",
                "≥ 0.6",
            )
            table.add_row(
                f"MB of memory more, {together} at once (largest of {_RUNS} runs)",
                f"{max(grown) / _MEGABYTE:.0f}",
                "",
                "",
                "< 64",
            )
        with console.status("an update of 1 GB"):
            uploads = _new_round(service, _LARGE_BYTES, 1)
            before = _peak_bytes(process.pid, reset=True)
            seconds = _send_all(service, uploads, 1)
            grown_mb = (_peak_bytes(process.pid) - before) / _MEGABYTE
        table.add_row("s for an update of 1 GB", f"{seconds:.1f}", "", f"{grown_mb:.0f} MB more", "")
    console.print(table)


def _new_round(service: httpx.Client, size_bytes: int, clients: int) -> list[Upload]:
    """A round in which each of so many clients has an update to send."""
    label = {"run": hashlib.sha256(str(time.time_ns()).encode()).hexdigest()[:16]}
    ids = [f"{label['run']}-{n}" for n in range(clients)]
    enrolled = _post(
        service, "/clients/batch", {"clients": [{"client_id": one, "labels": label} for one in ids]}
    )
    keys = {one["client_id"]: one["api_key"] for one in enrolled["clients"]}
    resources = {"throughput_bps": 1e9, "compute_samples_per_s": 1e6, "data_samples": 100}
    _post(service, "/reports/batch", {"reports": [{"client_id": one, **resources} for one in ids]})
    terms = {"policy": "fl", "round_deadline_s": 1e6, "request_fraction": 1, "clock": "simulated"}
    task_id = _post(service, "/tasks", {**terms, "labels": label})["task_id"]
    weights = np.zeros(size_bytes // 4, np.float32)
    service.put(f"/tasks/{task_id}/models/0", content=save({"weights": weights})).raise_for_status()
    round_id = _post(service, "/rounds", {"task_id": task_id})["round_id"]
    uploads = []
    for number, one in enumerate(ids):
        weights[0] = number + 1  # each its own bytes
        body = save({"weights": weights})
        digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
        headers = {
            "Authorization": f"Bearer {keys[one]}",
            "Content-Digest": f"sha-256=:{digest}:",
            "Fedcs-Data-Samples": "100",
            "Fedcs-Elapsed-S": "1",
        }
        uploads.append(Upload(f"/rounds/{round_id}/updates/{one}", headers, body))
    return uploads


def _post(service: httpx.Client, path: str, body: object) -> dict[str, Any]:
    answer: dict[str, Any] = service.post(path, json=body).raise_for_status().json()
    return answer


def _send_all(service: httpx.Client, uploads: Sequence[Upload], together: int) -> float:
    """Seconds to send all of them, so many at once."""
    began = time.perf_counter()
    asyncio.run(_send(str(service.base_url), uploads, together))
    return time.perf_counter() - began


async def _send(url: str, uploads: Sequence[Upload], together: int) -> None:
    free = asyncio.Semaphore(together)
    await asyncio.gather(*(_send_one(url, upload, free) for upload in uploads))


async def _send_one(url: str, upload: Upload, free: asyncio.Semaphore) -> None:
    address = urlsplit(url)
    headers = upload.headers | {
        "Host": "bench",
        "Content-Length": str(len(upload.body)),
        "Connection": "close",
    }
    head = f"PUT {upload.path} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in headers.items()) + "\r\n"
    async with free:
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(head.encode())
        view = memoryview(upload.body)
        for start in range(0, len(view), 1 << 20):
            writer.write(view[start : start + (1 << 20)])
            await writer.drain()
        answer = await reader.read()
        writer.close()
        assert answer[9:12] == b"201", answer


def _peak_bytes(pid: int, *, reset: bool = False) -> int:
    """The most memory that a process has had resident, since the last reset."""
    if reset:
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
