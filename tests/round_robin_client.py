"""A client whose requests go to several API processes in turn, as through a proxy."""

from collections.abc import Sequence
from itertools import cycle
from threading import Lock

import httpx


class RoundRobinTransport(httpx.BaseTransport):
    """Sends each request to the next process; one that does not listen any more is passed over."""

    def __init__(self, urls: Sequence[httpx.URL]) -> None:
        self._transport = httpx.HTTPTransport()
        self._processes = len(urls)
        self._turns = cycle(urls)
        self._lock = Lock()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        for _ in range(self._processes):
            with self._lock:
                url = next(self._turns)
            request.url = request.url.copy_with(host=url.host, port=url.port)
            try:
                return self._transport.handle_request(request)
            except httpx.ConnectError:
                continue
        raise httpx.ConnectError("no process listens")

    def close(self) -> None:
        self._transport.close()


def round_robin_client(clients: Sequence[httpx.Client]) -> httpx.Client:
    """One client in place of these, which are of one process each."""
    first = clients[0]
    return httpx.Client(
        base_url=first.base_url,
        headers=first.headers,
        timeout=first.timeout,
        transport=RoundRobinTransport([client.base_url for client in clients]),
    )
