"""The events in both kinds of database: numbered without gaps, in the order in which they become visible."""

import random
from concurrent.futures import ThreadPoolExecutor
from threading import Event as Flag

import pytest

from services.storage.database import Database
from services.storage.events import Event
from tests.integration.storage.factories import NOW, SECOND

WRITERS, UNITS = 5, 15


def test_events_are_numbered_from_one_in_the_order_recorded(database: Database) -> None:
    with database.unit_of_work() as uow:
        assert uow.events.last_number() == 0
        uow.events.record("task.ready", NOW, task_id="t", version=3, digest="ø")
        uow.events.record("update.received", NOW + SECOND, task_id="t", round_id="r", client_id="c")
        assert uow.events.last_number() == 0, "numbers come last"
        uow.commit()
    with database.unit_of_work() as uow:
        uow.events.record("task.finished", NOW)
        uow.commit()
    first = Event("task.ready", NOW, "t", None, None, {"version": 3, "digest": "ø"}, 1)
    second = Event("update.received", NOW + SECOND, "t", "r", "c", {}, 2)
    third = Event("task.finished", NOW, None, None, None, {}, 3)
    with database.reading() as store:
        assert store.events.last_number() == 3
        assert store.events.after(0, most=10) == [first, second, third]
        assert store.events.after(1, most=1) == [second]
        assert store.events.after(3, most=10) == []


def test_a_unit_of_work_that_commits_twice_tells_nothing_twice(database: Database) -> None:
    with database.unit_of_work() as uow:
        uow.events.record("one", NOW)
        uow.commit()
        uow.commit()
        uow.events.record("two", NOW)
        uow.commit()
    assert _seen(database) == [(1, "one"), (2, "two")]


def test_a_transaction_that_is_rolled_back_leaves_no_gap(database: Database) -> None:
    class LostError(Exception):
        pass

    with pytest.raises(LostError), database.unit_of_work() as uow:  # noqa: PT012
        uow.events.record("lost", NOW)
        uow.events.record("lost too", NOW)
        uow.events.write()
        assert uow.events.last_number() == 2
        raise LostError
    with database.unit_of_work() as uow:
        uow.events.record("kept", NOW)
        uow.commit()
    assert _seen(database) == [(1, "kept")]


def test_whoever_commits_second_gets_the_higher_number(database: Database) -> None:
    def tell() -> None:
        with database.unit_of_work() as uow:
            uow.events.record("second", NOW)
            uow.commit()

    with ThreadPoolExecutor(1) as pool:
        with database.unit_of_work() as uow:
            uow.events.record("first", NOW)
            uow.events.write()
            other = pool.submit(tell)
            with pytest.raises(TimeoutError):
                other.result(timeout=0.3)
            assert _seen(database) == []
            uow.commit()
        other.result(timeout=60)
    assert _seen(database) == [(1, "first"), (2, "second")]


def test_the_order_is_that_of_the_commits_not_of_the_beginnings(postgresql_database: Database) -> None:
    with postgresql_database.unit_of_work() as early, postgresql_database.unit_of_work() as late:
        early.events.record("began first", NOW)
        late.events.record("committed first", NOW)
        late.commit()
        early.commit()
    assert _seen(postgresql_database) == [(1, "committed first"), (2, "began first")]


def test_a_reader_never_sees_a_number_before_those_below_it(database: Database) -> None:
    over = Flag()

    def write(seed: int) -> int:
        rng, told = random.Random(seed), 0
        for _ in range(UNITS):
            with database.unit_of_work() as uow:
                number = rng.randint(1, 3)
                for _ in range(number):
                    uow.events.record("something", NOW, of=seed)
                if rng.random() < 0.3:
                    uow.events.write()
                else:
                    uow.commit()
                    told += number
        return told

    def follow() -> list[int]:
        seen: list[int] = []
        while True:
            last_look = over.is_set()
            with database.reading() as store:
                seen += [event.number for event in store.events.after(len(seen), most=1000)]
                assert seen == list(range(1, len(seen) + 1))
            if last_look:
                return seen

    with ThreadPoolExecutor(WRITERS + 1) as pool:
        reader = pool.submit(follow)
        try:
            told = sum(item.result() for item in [pool.submit(write, seed) for seed in range(WRITERS)])
        finally:
            over.set()
        assert len(reader.result()) == told > WRITERS * UNITS / 2
    with database.reading() as store:
        assert store.events.last_number() == told


def test_old_events_are_forgotten_some_at_a_time_and_numbers_go_on(database: Database) -> None:
    with database.unit_of_work() as uow:
        for number in range(1, 7):
            uow.events.record(str(number), NOW + number * SECOND)
        uow.commit()
        limit = NOW + 5 * SECOND
        assert uow.events.delete_before(limit, most=3) == 3
        assert [event.number for event in uow.events.after(0, most=10)] == [4, 5, 6]
        assert uow.events.delete_before(limit, most=3) == 1
        assert uow.events.delete_before(limit, most=3) == 0
        assert uow.events.delete_before(NOW + 100 * SECOND, most=10) == 2
        uow.events.record("next", NOW)
        uow.commit()
    assert _seen(database) == [(7, "next")]


def _seen(database: Database) -> list[tuple[int, str]]:
    with database.reading() as store:
        return [(event.number, event.kind) for event in store.events.after(0, most=1000)]
