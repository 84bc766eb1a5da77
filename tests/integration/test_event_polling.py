"""What the hub tells those who follow, as the text of a stream."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from operator_api import event_stream
from operator_api.event_stream import EventHub, follow_as_text
from services.storage.database import Database
from services.storage.events import Event
from services.storage.migration import migrate

NOW = datetime(2030, 1, 1, tzinfo=UTC)


@asynccontextmanager
async def running_hub(directory: Path) -> AsyncIterator[tuple[EventHub, Database]]:
    database = Database(f"sqlite:///{directory}/fedcs.sqlite")
    migrate(database)
    hub = EventHub(database)
    await hub.start()
    running = asyncio.create_task(hub.run())
    try:
        yield hub, database
    finally:
        hub.close()
        await running
        database.close()


def kinds_of(events: list[Event]) -> list[str]:
    return [event.kind for event in events]


async def always() -> bool:
    return True


def happen(database: Database, *kinds: str, task_id: str | None = None) -> None:
    with database.unit_of_work() as uow:
        for kind in kinds:
            uow.events.record(kind, NOW, task_id=task_id)
        uow.commit()


def test_what_happens_at_once_is_sent_at_once(tmp_path: Path) -> None:
    async def follow() -> tuple[bytes, bytes]:
        async with running_hub(tmp_path) as (hub, database):
            parts = follow_as_text(hub, always, None, "task-1", None, named=True)
            position = await anext(parts)
            happen(database, "round.scheduled", task_id="task-2")
            happen(database, "round.scheduled", "round.collecting", task_id="task-1")
            return position, await anext(parts)

    position, told = asyncio.run(follow())
    assert position == b"id: 0\n\n"
    first, second, rest = told.decode().split("\n\n")
    assert rest == ""
    name, data, number = first.split("\n")
    assert (name, number) == ("event: round.scheduled", "id: 2")
    assert json.loads(data.removeprefix("data: "))["task_id"] == "task-1"
    assert second.startswith("event: round.collecting\n")


def test_while_nothing_happens_there_are_pings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "_KEEPALIVE_S", 0.01)

    async def follow() -> list[bytes]:
        async with running_hub(tmp_path) as (hub, database):
            parts = follow_as_text(hub, always, 0, None, None, named=False)
            quiet = [await anext(parts), await anext(parts)]
            happen(database, "round.scheduled")
            while (part := await anext(parts)) == quiet[0]:
                pass
            return [*quiet, part]

    quiet, still_quiet, told = asyncio.run(follow())
    assert quiet == still_quiet == b": ping\n\n"
    assert told.startswith(b"data: {")
    assert told.endswith(b"id: 1\n\n")


def test_who_asks_for_kinds_of_events_hears_of_them_from_other_processes(tmp_path: Path) -> None:
    async def listen() -> None:
        async with running_hub(tmp_path) as (hub, _):
            ended: asyncio.Queue[list[str]] = asyncio.Queue()
            enrolled: asyncio.Queue[list[str]] = asyncio.Queue()
            hub.when_any({"key.revoked", "client.removed"}, lambda new: ended.put_nowait(kinds_of(new)))
            hub.when_any({"clients.enrolled"}, lambda new: enrolled.put_nowait(kinds_of(new)))
            other = Database(f"sqlite:///{tmp_path}/fedcs.sqlite")
            happen(other, "round.scheduled", "key.revoked")
            other.close()
            assert await asyncio.wait_for(ended.get(), 15) == ["key.revoked"]
            assert enrolled.empty()

    asyncio.run(listen())


@pytest.mark.parametrize("named", [True, False])
def test_a_stream_ends_before_it_tells_anything_to_who_is_no_longer_admitted(
    tmp_path: Path, *, named: bool
) -> None:
    admitted = [True, False]

    async def is_admitted() -> bool:
        return admitted.pop(0)

    async def follow() -> list[bytes]:
        async with running_hub(tmp_path) as (hub, database):
            parts = follow_as_text(hub, is_admitted, 0, "task-1", None, named=named)
            happen(database, "round.scheduled", task_id="task-1")
            told = [await anext(parts)]
            happen(database, "round.collecting", task_id="task-2")
            return told + [part async for part in parts]

    (told,) = asyncio.run(follow())
    assert b"round.scheduled" in told


def test_a_quiet_stream_ends_when_it_is_no_longer_admitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing tells of a token that expires; it is looked at with every ping."""
    monkeypatch.setattr(event_stream, "_KEEPALIVE_S", 0.01)

    async def never() -> bool:
        return False

    async def follow() -> list[bytes]:
        async with running_hub(tmp_path) as (hub, _):
            return [part async for part in follow_as_text(hub, never, 0, None, None, named=True)]

    assert asyncio.run(follow()) == []
