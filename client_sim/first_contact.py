"""Getting in touch with a service: who mistypes a URL or a key hears of it at once."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from client_sim import calls
from client_sim.api_client import AsyncApi

_FIRST_PATIENCE_S = 2.0
_PATIENCE_S = 120.0
"""Time for a service to be restarted, whatever it has to do before it is ready."""


@asynccontextmanager
async def reach(url: str, key: str) -> AsyncIterator[AsyncApi]:
    """The API of a service that answers and takes the key; from then on, patiently."""
    async with AsyncApi(url, key, patience_s=_FIRST_PATIENCE_S) as api:
        await api.send(calls.readiness())
        await api.send(calls.list_tasks(1))
    async with AsyncApi(url, key, patience_s=_PATIENCE_S) as api:
        yield api
