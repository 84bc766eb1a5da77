"""Throughput and memory of uploads, compared with a handler that only writes a file; encoded beside float32.

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
from services.tensors.encoded_files import encode_file
from services.tensors.encodings import ENCODINGS, make_encoding

_MODEL_BYTES = 18_300_000
_CLIENTS = 50
_RUNS = 5
_LARGE_BYTES = 1_000_000_000
_MEGABYTE = 1e6


@dataclass(frozen=True)
class Upload:
    """A request."""

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
        for parallel in (4, _CLIENTS):
            ours, peer, grown = [], [], []
            for run in range(_RUNS):
                with console.status(f"{parallel} in parallel: run {run + 1} of {_RUNS}"):
                    uploads = _new_round(service, _MODEL_BYTES, _CLIENTS)
                    peer.append(_send_all(bare, uploads, parallel))
                    before = _peak_bytes(process.pid, reset=True)
                    ours.append(_send_all(service, uploads, parallel))
                    grown.append(_peak_bytes(process.pid) - before)
            ratio = statistics.median(p / o for o, p in zip(ours, peer, strict=True))
            sent = _MODEL_BYTES * _CLIENTS / _MEGABYTE
            table.add_row(
                f"MB/s, {_CLIENTS} updates of 18.3 MB, {parallel} in parallel",
                f"{sent / statistics.median(ours):.0f}",
                f"{sent / statistics.median(peer):.0f}",
                f"{ratio:.2f}",
                "≥ 0.6",
            )
            table.add_row(
                f"MB of memory more, {parallel} in parallel (largest of {_RUNS} runs)",
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
        console.print(_encoded(service, console))


def _encoded(service: httpx.Client, console: Console) -> Table:
    """Updates per second in each encoding."""
    table = Table(title="Updates of the same model, encoded", title_justify="left")
    for name in ("encoding", "MB", "updates/s", "ratio to float32", "goal"):
        table.add_column(name, justify="left" if name == "encoding" else "right")
    seconds: dict[str, list[float]] = {name: [] for name in ENCODINGS}
    sizes = {}
    for run in range(_RUNS):
        for name in ENCODINGS:
            with console.status(f"{name}: run {run + 1} of {_RUNS}"):
                uploads = _new_round(service, _MODEL_BYTES, _CLIENTS, name)
                sizes[name] = len(uploads[0].body) / _MEGABYTE
                seconds[name].append(_send_all(service, uploads, 4))
    for name, taken in seconds.items():
        ratio = statistics.median(f / t for f, t in zip(seconds["float32"], taken, strict=True))
        rate = _CLIENTS / statistics.median(taken)
        goal = "≥ 1.5" if name == "int8" else ""
        table.add_row(name, f"{sizes[name]:.1f}", f"{rate:.1f}", f"{ratio:.2f}", goal)
    return table


def _new_round(
    service: httpx.Client, size_bytes: int, clients: int, encoding: str = "float32"
) -> list[Upload]:
    """Open a round and prepare the upload of each client."""
    label = {"run": hashlib.sha256(str(time.time_ns()).encode()).hexdigest()[:16]}
    ids = [f"{label['run']}-{n}" for n in range(clients)]
    enrolled = _post(
        service,
        "/clients/batch",
        {"clients": [{"client_id": client_id, "labels": label} for client_id in ids]},
    )
    keys = {client["client_id"]: client["api_key"] for client in enrolled["clients"]}
    resources = {"throughput_bps": 1e9, "compute_samples_per_s": 1e6, "data_samples": 100}
    _post(
        service, "/reports/batch", {"reports": [{"client_id": client_id, **resources} for client_id in ids]}
    )
    terms: dict[str, Any] = {
        "policy": "fl",
        "round_deadline_s": 1e6,
        "request_fraction": 1,
        "clock": "simulated",
    }
    terms |= {"update_encoding": encoding, "labels": label}
    task_id = _post(service, "/tasks", terms)["task_id"]
    weights = np.random.default_rng(0).normal(0, 0.05, size_bytes // 4).astype(np.float32)
    model = save({"weights": np.zeros_like(weights)})
    service.put(f"/tasks/{task_id}/models/0", content=model).raise_for_status()
    round_id = _post(service, "/rounds", {"task_id": task_id})["round_id"]
    uploads = []
    for number, client_id in enumerate(ids):
        weights[0] = number + 1  # different content for each client
        body = save({"weights": weights})
        if encoding != "float32":
            body = b"".join(encode_file(make_encoding(encoding, 0.1), body, seed=number, received=model))
        digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
        headers = {
            "Authorization": f"Bearer {keys[client_id]}",
            "Content-Digest": f"sha-256=:{digest}:",
            "Fedcs-Data-Samples": "100",
            "Fedcs-Elapsed-S": "1",
            "Fedcs-Encoding": encoding,
        }
        uploads.append(Upload(f"/rounds/{round_id}/updates/{client_id}", headers, body))
    return uploads


def _post(service: httpx.Client, path: str, body: object) -> dict[str, Any]:
    answer: dict[str, Any] = service.post(path, json=body).raise_for_status().json()
    return answer


def _send_all(service: httpx.Client, uploads: Sequence[Upload], parallel: int) -> float:
    """The seconds to send all uploads."""
    began = time.perf_counter()
    asyncio.run(_send(str(service.base_url), uploads, parallel))
    return time.perf_counter() - began


async def _send(url: str, uploads: Sequence[Upload], parallel: int) -> None:
    limit = asyncio.Semaphore(parallel)
    await asyncio.gather(*(_send_upload(url, upload, limit) for upload in uploads))


async def _send_upload(url: str, upload: Upload, limit: asyncio.Semaphore) -> None:
    address = urlsplit(url)
    headers = upload.headers | {
        "Host": "bench",
        "Content-Length": str(len(upload.body)),
        "Connection": "close",
    }
    head = f"PUT {upload.path} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in headers.items()) + "\r\n"
    async with limit:
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
    """The peak resident memory of a process since the last reset."""
    if reset:
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main()
