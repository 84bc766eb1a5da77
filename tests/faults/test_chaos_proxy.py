"""The run's proxy passes everything on, and does to connections what it is told to."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from tests.faults.chaos.deployment import free_ports
from tests.faults.chaos.tcp_proxy import TcpProxy

_SOON_S = 120.0
_MOMENT_S = 0.2


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        while data := await reader.read(1000):
            writer.write(data.upper())
    finally:
        writer.transport.abort()


@asynccontextmanager
async def proxy_to_echo() -> AsyncIterator[TcpProxy]:
    """A proxy to two ports: somebody listens on one of them."""
    server = await asyncio.start_server(_echo, "127.0.0.1", 0)
    proxy = TcpProxy("echo", [*free_ports(1), server.sockets[0].getsockname()[1]], Random(1))
    await proxy.start()
    try:
        yield proxy
    finally:
        await proxy.stop()
        server.close()
        await asyncio.sleep(_MOMENT_S)  # for the connections to notice


@asynccontextmanager
async def connection(proxy: TcpProxy) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def answer(reader: asyncio.StreamReader, within_s: float = _SOON_S) -> bytes:
    return await asyncio.wait_for(reader.read(1000), within_s)


async def ended(reader: asyncio.StreamReader) -> bool:
    """Whether the other side closes or resets the connection."""
    try:
        return await answer(reader) == b""
    except ConnectionError:
        return True


def test_everything_passes_through_whoever_of_the_others_is_away() -> None:
    async def talk() -> None:
        async with proxy_to_echo() as proxy:
            for _ in range(8):
                async with connection(proxy) as (reader, writer):
                    writer.write(b"hello")
                    assert await answer(reader) == b"HELLO"
                    writer.write_eof()
                    assert await answer(reader) == b""

    asyncio.run(talk())


@pytest.mark.parametrize("delayed", [True, False])
def test_what_is_held_back_comes_later(delayed: bool) -> None:
    async def talk() -> None:
        async with proxy_to_echo() as proxy, connection(proxy) as (reader, writer):
            if delayed:
                proxy.delay_s = 2 * _MOMENT_S
            else:
                proxy.stall()
            writer.write(b"hello")
            with pytest.raises(TimeoutError):
                await answer(reader, within_s=_MOMENT_S)
            proxy.heal()
            assert await answer(reader) == b"HELLO"

    asyncio.run(talk())


def test_a_cut_ends_connections_and_takes_new_ones_unless_they_are_refused() -> None:
    async def talk() -> None:
        async with proxy_to_echo() as proxy:
            async with connection(proxy) as (reader, writer):
                writer.write(b"hello")
                assert await answer(reader) == b"HELLO"
                proxy.is_down = True
                proxy.cut()
                assert await ended(reader)
            async with connection(proxy) as (reader, _):
                assert await ended(reader)
            proxy.heal()
            async with connection(proxy) as (reader, writer):
                writer.write(b"again")
                assert await answer(reader) == b"AGAIN"

    asyncio.run(talk())
