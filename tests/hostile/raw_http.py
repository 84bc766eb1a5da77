"""HTTP by hand: requests as bytes, whole or in pieces, that no HTTP library would send."""

import json
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from tests.integration.cell import content_digest

Address = tuple[str, int]

_PATIENCE_S = 120.0


@dataclass(frozen=True)
class Answer:
    """What came back; ``status`` is 0 if the connection ended without an answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def problem(self) -> dict[str, Any]:
        """The problem (RFC 9457) that it is."""
        assert self.headers.get("content-type") == "application/problem+json", self
        found: dict[str, Any] = json.loads(self.body)
        assert found["status"] == self.status, self
        return found


NO_ANSWER = Answer(0, {}, b"")


def address_of(service: httpx.Client) -> Address:
    """Where a service listens."""
    return service.base_url.host, service.base_url.port or 80


def request(method: str, path: str, body: bytes = b"", /, **headers: str | None) -> bytes:
    """A whole request; ``content_type="text/plain"`` sets a header, None leaves one out."""
    given = {"host": "service", "content_length": str(len(body)), **headers}
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in given.items() if value is not None]
    return "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode("latin-1") + body


def bearer(key: str) -> dict[str, str]:
    """The header with a key."""
    return {"authorization": f"Bearer {key}"}


def update_head(round_id: str, client_id: str, key: str, update: bytes, /, **headers: str | None) -> bytes:
    """The head of the request that uploads an update; ``headers`` replace those that belong there."""
    given: dict[str, str | None] = {
        **bearer(key),
        "content_digest": content_digest(update)["Content-Digest"],
        "fedcs_data_samples": "200",
        "fedcs_elapsed_s": "10",
        "content_length": str(len(update)),
        **headers,
    }
    return request("PUT", f"/rounds/{round_id}/updates/{client_id}", **given)


def exchange(address: Address, pieces: bytes | Iterable[bytes], timeout_s: float = _PATIENCE_S) -> Answer:
    """Send it on a connection of its own, until it is sent or refused; the answer to it."""
    with socket.create_connection(address, timeout=timeout_s) as connection:
        try:
            for piece in [pieces] if isinstance(pieces, bytes) else pieces:
                connection.sendall(piece)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the service has heard enough; its answer may be there all the same
        return read_answer(connection)


def read_answer(connection: socket.socket) -> Answer:
    """The next answer on a connection; of one without an end, what comes first."""
    try:
        received = b""
        while b"\r\n\r\n" not in received:
            if not (more := connection.recv(65536)):
                return NO_ANSWER
            received += more
        head, _, body = received.partition(b"\r\n\r\n")
        status_line, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        while len(body) < int(headers.get("content-length", 0)) and (more := connection.recv(65536)):
            body += more
    except ConnectionResetError:
        return NO_ANSWER
    return Answer(int(status_line.split(" ")[1]), headers, body)


def is_cut_off(connection: socket.socket, chunk: bytes) -> bool:
    """Whether the service ends the connection while this is sent over and over; a gigabyte is enough."""
    try:
        for _ in range(10**9 // len(chunk)):
            connection.sendall(chunk)
    except (BrokenPipeError, ConnectionResetError):
        return True
    return False


def is_closed(connection: socket.socket) -> bool:
    """Whether the service ends the connection, after whatever it still has to say."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionResetError:
        pass
    except TimeoutError:
        return False
    return True
