"""Arrivals of uploads are recorded together, in both databases; until then this process knows of them."""

import asyncio
from collections.abc import Iterator
from datetime import datetime

import pytest

from operator_api.writers import ArrivalWriter
from services.domain.tasks import Clock
from services.errors import RoundNotFoundError
from services.protocol.transitions import lock_round
from services.storage.database import Database
from tests.integration.storage import factories


@pytest.fixture
def writer(database: Database) -> Iterator[ArrivalWriter]:
    writer = ArrivalWriter(database)
    writer.start()
    yield writer
    writer.stop()


def round_of(database: Database, *client_ids: str) -> str:
    with database.unit_of_work() as uow:
        round_ = factories.scheduled_round(uow, *client_ids, clock=Clock.WALL)
        uow.commit()
    return round_.round_id


def recorded(database: Database, round_id: str) -> dict[str, datetime | None]:
    with database.reading() as store:
        slots = store.rounds.slots(store.rounds.get(round_id).serial)
    return {slot.client_id: slot.uploaded_at for slot in slots}


def test_an_arrival_is_known_at_once_and_recorded_with_the_time_at_which_it_came(
    database: Database, writer: ArrivalWriter
) -> None:
    round_id, other = round_of(database, *"abc"), round_of(database, "d")
    before = database.now()

    async def arrive() -> list[datetime]:
        with database.unit_of_work() as uow:
            lock_round(uow, round_id)  # nobody else can write to it now
            arriving = [asyncio.create_task(writer.record(round_id, item)) for item in "ab"]
            await asyncio.sleep(0)
            stamped = database.now()
            assert writer.has_unrecorded(round_id)
            assert not writer.has_unrecorded(other)
            assert recorded(database, round_id) == {"a": None, "b": None, "c": None}
        times = await asyncio.gather(*arriving)
        assert all(before <= at <= stamped for at in times), "the wait for the database does not count"
        return times

    times = asyncio.run(arrive())
    assert not writer.has_unrecorded(round_id)
    assert recorded(database, round_id) == {"a": times[0], "b": times[1], "c": None}


def test_what_cannot_be_recorded_is_an_error_for_its_own_round_only(
    database: Database, writer: ArrivalWriter
) -> None:
    round_id = round_of(database, "a")

    async def arrive() -> tuple[datetime | BaseException, datetime | BaseException]:
        arriving = (writer.record("round-none", "a"), writer.record(round_id, "a"))
        return await asyncio.gather(*arriving, return_exceptions=True)

    refused, at = asyncio.run(arrive())
    assert isinstance(refused, RoundNotFoundError)
    assert recorded(database, round_id) == {"a": at}
    assert not writer.has_unrecorded("round-none")
