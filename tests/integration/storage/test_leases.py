"""The leases of roles in both kinds of database."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from services.storage.database import Database
from tests.integration.storage.factories import NOW, SECOND

TERM = timedelta(seconds=10)
MICROSECOND = timedelta(microseconds=1)


def test_another_gets_the_role_when_the_lease_has_run_out_and_not_before(database: Database) -> None:
    with database.unit_of_work() as uow:
        assert uow.leases.acquire("reconciler", "one", NOW, TERM)
        assert not uow.leases.acquire("reconciler", "two", NOW + TERM - MICROSECOND, TERM)
        assert uow.leases.acquire("reconciler", "two", NOW + TERM, TERM)
        assert not uow.leases.acquire("reconciler", "one", NOW + TERM, TERM)


def test_the_holder_renews_and_goes_on_holding(database: Database) -> None:
    with database.unit_of_work() as uow:
        assert uow.leases.acquire("reconciler", "one", NOW, TERM)
        assert uow.leases.acquire("reconciler", "one", NOW + SECOND, TERM)
        assert not uow.leases.acquire("reconciler", "two", NOW + TERM, TERM)
        assert uow.leases.acquire("reconciler", "two", NOW + SECOND + TERM, TERM)


def test_a_role_that_was_given_up_is_free_at_once(database: Database) -> None:
    with database.unit_of_work() as uow:
        uow.leases.acquire("reconciler", "one", NOW, TERM)
        uow.leases.release("reconciler", "two")
        assert not uow.leases.acquire("reconciler", "two", NOW, TERM), "nobody gives up for another"
        uow.leases.release("reconciler", "one")
        assert uow.leases.acquire("reconciler", "two", NOW, TERM)


def test_each_role_has_its_own_holder(database: Database) -> None:
    with database.unit_of_work() as uow:
        assert uow.leases.acquire("reconciler", "one", NOW, TERM)
        assert uow.leases.acquire("blob_gc", "two", NOW, TERM)
        uow.leases.release("blob_gc", "two")
        assert not uow.leases.acquire("reconciler", "two", NOW, TERM)


@pytest.mark.parametrize("expired", [False, True])
def test_of_two_that_take_a_free_role_at_once_one_gets_it(database: Database, expired: bool) -> None:
    if expired:
        with database.unit_of_work() as uow:
            uow.leases.acquire("reconciler", "zero", NOW - TERM, TERM)
            uow.commit()

    def take() -> bool:
        with database.unit_of_work() as uow:
            held = uow.leases.acquire("reconciler", "two", NOW, TERM)
            uow.commit()
        return held

    with ThreadPoolExecutor(1) as pool:
        with database.unit_of_work() as uow:
            assert uow.leases.acquire("reconciler", "one", NOW, TERM)
            other = pool.submit(take)
            with pytest.raises(TimeoutError):
                other.result(timeout=0.2)
            uow.commit()
        assert other.result(timeout=60) is False
    with database.unit_of_work() as uow:
        assert not uow.leases.acquire("reconciler", "two", NOW, TERM)
        assert uow.leases.acquire("reconciler", "one", NOW, TERM)
