"""A server between the client and the service that does what bad networks and proxies do, once each."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field


@dataclass
class Scripted:
    """Where it listens, and the requests that came, whole."""

    url: str
    requests: list[bytes] = field(default_factory=list)

    def header(self, request: int, name: str) -> str | None:
        """A header of one of the requests."""
        head, _, _ = self.requests[request].partition(b"\r\n\r\n")
        for line in head.decode().split("\r\n")[1:]:
            found, _, value = line.partition(": ")
            if found.lower() == name.lower():
                return value
        return None


@contextmanager
def scripted_server(*answers: bytes, tls: ssl.SSLContext | None = None) -> Iterator[Scripted]:
    """Give these answers, one per connection, each after a whole request; then listen no more."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        scripted = Scripted(f"http{'s' if tls else ''}://127.0.0.1:{listening.getsockname()[1]}")

        def serve() -> None:
            for answer in answers:
                accepted, _ = listening.accept()
                with tls.wrap_socket(accepted, server_side=True) if tls else accepted as connection:
                    connection.settimeout(20)
                    scripted.requests.append(_request(connection))
                    connection.sendall(answer)
                    if isinstance(connection, ssl.SSLSocket):  # else its end may overtake the answer
                        with suppress(OSError):
                            connection.unwrap()
            listening.close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield scripted
        thread.join(timeout=20)
        assert not thread.is_alive(), f"only {len(scripted.requests)} requests came"


def _request(connection: socket.socket) -> bytes:
    received = b""
    while b"\r\n\r\n" not in received:
        received += connection.recv(65536)
    head, _, body = received.partition(b"\r\n\r\n")
    lengths = [
        line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
    ]
    while len(body) < int(lengths[0] if lengths else 0):
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


def answer(status: str, body: bytes = b"", *headers: str) -> bytes:
    """An answer of HTTP/1.1 after which the connection ends."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
