"""The answers kept for idempotency keys in both kinds of database."""

import pytest
from sqlalchemy.exc import IntegrityError

from services.storage.coordination import SavedAnswer
from services.storage.database import Database
from tests.integration.storage.factories import NOW, SECOND

SAVED = SavedAnswer(bytes(range(32)), 201, b"\x00\xff sealed")


def test_an_answer_is_found_again_by_whom_it_was_given_to(database: Database) -> None:
    with database.unit_of_work() as uow:
        uow.idempotency.add("alice", "once", SAVED, NOW)
        uow.idempotency.add("bob", "once", SavedAnswer(b"2" * 32, 409, b""), NOW)
        uow.commit()
    with database.reading() as store:
        assert store.idempotency.find("alice", "once") == SAVED
        assert store.idempotency.find("bob", "once") == SavedAnswer(b"2" * 32, 409, b"")
        assert store.idempotency.find("alice", "twice") is None
        assert store.idempotency.find("carol", "once") is None


def test_a_key_is_used_once(database: Database) -> None:
    with database.unit_of_work() as uow:
        uow.idempotency.add("alice", "once", SAVED, NOW)
        with pytest.raises(IntegrityError):
            uow.idempotency.add("alice", "once", SAVED, NOW)


def test_old_answers_are_forgotten_and_newer_ones_stay(database: Database) -> None:
    with database.unit_of_work() as uow:
        for number in range(4):
            uow.idempotency.add("alice", str(number), SAVED, NOW + number * SECOND)
        assert uow.idempotency.delete_before(NOW + 2 * SECOND) == 2
        assert uow.idempotency.delete_before(NOW + 2 * SECOND) == 0
        kept = [number for number in range(4) if uow.idempotency.find("alice", str(number))]
    assert kept == [2, 3]
