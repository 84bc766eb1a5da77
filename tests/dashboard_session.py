"""Logging in to the dashboard over HTTP, and reading what its forms need."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from tests.integration.cell import without_key
from tests.running_service import OPERATOR_KEY

COOKIE = "fedcs_session"


def log_in(client: httpx.Client, key: str = OPERATOR_KEY, **fields: str) -> httpx.Response:
    """Send the form of the log-in; the client keeps the cookie."""
    return client.post("dashboard/login", data={"key": key} | fields)


@contextmanager
def logged_in(service: httpx.Client, key: str = OPERATOR_KEY) -> Iterator[httpx.Client]:
    """The same service, for somebody with a session and nothing else."""
    with without_key(service) as client:
        assert log_in(client, key).status_code == 303
        yield client


def session_cookie(service: httpx.Client, key: str = OPERATOR_KEY) -> str:
    """The value of a new session's cookie."""
    with logged_in(service, key) as client:
        return client.cookies[COOKIE]


def csrf_token(client: httpx.Client) -> str:
    """The token that the forms of a session send."""
    found = re.search(r'name="csrf-token" content="([0-9a-f]+)"', client.get("").text)
    assert found is not None
    return found.group(1)
