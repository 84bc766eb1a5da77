"""A real nginx with a configuration out of the documentation."""

import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.integration.rounds_setup import eventually

_AROUND_IT = """
daemon off;
master_process off;
pid nginx.pid;
error_log error.log;
events {{}}
http {{
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    {example}
}}
"""


@contextmanager
def running_nginx(directory: Path, example: str, changes: Mapping[str, str], port: int) -> Iterator[None]:
    """Start nginx with what is documented, but for these changes; soon it listens on the port."""
    for said, meant in changes.items():
        assert said in example, said
        example = example.replace(said, meant)
    (directory / "nginx.conf").write_text(_AROUND_IT.format(example=example))
    command = ["nginx", "-p", str(directory), "-c", "nginx.conf", "-e", "error.log"]
    with subprocess.Popen(command) as nginx:
        try:
            eventually(lambda: _answers(port) or nginx.poll() is not None)
            assert nginx.poll() is None, (directory / "error.log").read_text()
            yield
        finally:
            nginx.terminate()


def make_certificate(directory: Path) -> None:
    """The server's: it signs itself, for this host."""
    given = "-keyout server.key -out server.pem -subj /CN=server -addext subjectAltName=IP:127.0.0.1"
    subprocess.run(
        f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 {given}".split(),
        cwd=directory,
        check=True,
        capture_output=True,
    )


def free_port() -> int:
    """A port of this host that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except ConnectionRefusedError:
        return False
    return True
