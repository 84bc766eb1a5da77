"""A TCP proxy whose connections can be cut, refused, delayed and stalled."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from random import Random

_CHUNK_BYTES = 64 * 1024


class TcpProxy:
    """Passes connections on to the first of some ports that takes them, in an order drawn for each."""

    def __init__(self, name: str, upstream_ports: Sequence[int], rng: Random) -> None:
        self.name = name
        self.is_down = False
        """Whether connections are refused."""
        self.delay_s = 0.0
        """How long each piece of data is held back."""
        self._upstream_ports = list(upstream_ports)
        self._rng = rng
        self._flows = asyncio.Event()
        self._flows.set()
        self._open: set[asyncio.StreamWriter] = set()
        self._passing: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen, on a free port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """End everything."""
        self._server.close()
        self.cut()
        passing = list(self._passing)
        for task in passing:
            task.cancel()
        await asyncio.gather(*passing, return_exceptions=True)

    def cut(self) -> None:
        """End all connections at once, as if a cable were pulled and found to be."""
        for writer in self._open:
            writer.transport.abort()

    def stall(self) -> None:
        """Let nothing pass, in either direction."""
        self._flows.clear()

    def heal(self) -> None:
        """Be a good connection again."""
        self.is_down, self.delay_s = False, 0.0
        self._flows.set()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._passing.add(task)
        task.add_done_callback(self._passing.discard)
        self._open.add(writer)
        upstream = None
        try:
            upstream = None if self.is_down else await self._connect()
            if upstream is not None:
                self._open.add(upstream[1])
                await asyncio.gather(self._pass(reader, upstream[1]), self._pass(upstream[0], writer))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for item in (writer, *(upstream[1:] if upstream else ())):
                self._open.discard(item)
                item.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
        for port in self._rng.sample(self._upstream_ports, len(self._upstream_ports)):
            with suppress(OSError):
                return await asyncio.open_connection("127.0.0.1", port)
        return None

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(_CHUNK_BYTES):
            if self.delay_s:
                await asyncio.sleep(self.delay_s)
            await self._flows.wait()
            writer.write(chunk)
            await writer.drain()
        with suppress(OSError):  # the other side may be gone as well
            writer.write_eof()
