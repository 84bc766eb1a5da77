"""A lightweight load generator: prepared requests, persistent connections, minimal parsing."""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle
from urllib.parse import urlsplit

import numpy as np


@dataclass
class Load:
    """The responses of a load test."""

    seconds: float = 0.0
    statuses: Counter[int] = field(default_factory=Counter)
    latencies_s: list[float] = field(default_factory=list)

    @property
    def per_second(self) -> float:
        """Responses per second."""
        return len(self.latencies_s) / self.seconds

    def latency_ms(self, percentile: float) -> float:
        """A percentile of the latency."""
        return float(np.percentile(self.latencies_s, percentile)) * 1000


def prepare(method: str, path: str, key: str, body: bytes) -> bytes:
    """Encode a request."""
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def generate(url: str, requests: Sequence[bytes], seconds: float) -> Load:
    """Send each request repeatedly, on its own connection, for some seconds."""
    return generate_spread([url], requests, seconds)


def generate_spread(urls: Sequence[str], requests: Sequence[bytes], seconds: float) -> Load:
    """The same, with the connections distributed over several servers."""
    return asyncio.run(_generate(urls, requests, seconds))


async def _generate(urls: Sequence[str], requests: Sequence[bytes], seconds: float) -> Load:
    load = Load()
    until = time.perf_counter() + seconds
    began = time.perf_counter()
    await asyncio.gather(
        *(
            _repeat(address.hostname or "", address.port or 80, request, until, load)
            for request, address in zip(requests, cycle(map(urlsplit, urls)), strict=False)
        )
    )
    load.seconds = time.perf_counter() - began
    return load


async def _repeat(host: str, port: int, request: bytes, until: float, load: Load) -> None:
    reader, writer = await asyncio.open_connection(host, port)
    while (began := time.perf_counter()) < until:
        writer.write(request)
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length")
        )
        await reader.readexactly(length)
        load.latencies_s.append(time.perf_counter() - began)
        load.statuses[int(head[9:12])] += 1
    writer.close()
    await writer.wait_closed()
