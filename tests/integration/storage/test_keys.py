"""The API keys in both kinds of database."""

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from services.access import ApiKey, Scope
from services.errors import ClientNotFoundError, KeyNotFoundError
from services.storage.database import Database
from services.storage.sql import Paging
from tests.integration.storage import factories
from tests.integration.storage.factories import NOW, SECOND


def test_a_key_is_found_by_its_id_with_its_digest_and_scope(database: Database) -> None:
    with database.unit_of_work() as uow:
        key = factories.operator_key(uow, Scope.READ)
        uow.commit()
    with database.reading() as store:
        assert store.keys.find(key.key_id) == ApiKey(key.key_id, key.digest, Scope.READ, "operator", NOW)
        assert store.keys.find(key.key_id[:-1]) is None


def test_a_clients_key_knows_its_client(database: Database) -> None:
    with database.unit_of_work() as uow:
        serials = factories.clients(uow, "a", "b")
        key = factories.client_key(uow, "b", serials["b"])
        uow.commit()
    with database.reading() as store:
        found = store.keys.find(key.key_id)
    assert found == ApiKey(key.key_id, key.digest, Scope.CLIENT, "b", NOW, "b")


def test_a_client_can_have_two_keys_while_one_replaces_the_other(database: Database) -> None:
    with database.unit_of_work() as uow:
        serial = factories.clients(uow, "a")["a"]
        old, new = factories.client_key(uow, "a", serial), factories.client_key(uow, "a", serial)
        uow.keys.revoke(old.key_id, NOW)
        uow.commit()
    with database.reading() as store:
        assert store.keys.find(old.key_id) is None
        assert store.keys.find(new.key_id) is not None


def test_a_revoked_key_is_not_found_but_listed(database: Database) -> None:
    with database.unit_of_work() as uow:
        key, other = factories.operator_key(uow), factories.operator_key(uow)
        uow.keys.revoke(key.key_id, NOW + SECOND)
        uow.commit()
    with database.reading() as store:
        assert store.keys.find(key.key_id) is None
        assert store.keys.find(other.key_id) is not None
        listed = {row.key_id: row.revoked_at for row in store.keys.page(Paging(1, 10)).items}
    assert listed == {key.key_id: NOW + SECOND, other.key_id: None}


def test_a_key_is_revoked_once_and_an_unknown_one_never(database: Database) -> None:
    with database.unit_of_work() as uow:
        key = factories.operator_key(uow)
        uow.keys.revoke(key.key_id, NOW)
        with pytest.raises(KeyNotFoundError, match=key.key_id):
            uow.keys.revoke(key.key_id, NOW + SECOND)
        with pytest.raises(KeyNotFoundError, match="unknown"):
            uow.keys.revoke("unknown", NOW)
        (kept,) = uow.keys.page(Paging(1, 10)).items
    assert kept.revoked_at == NOW


def test_the_successor_of_a_key_is_revoked_with_it(database: Database) -> None:
    with database.unit_of_work() as uow:
        serial = factories.clients(uow, "a")["a"]
        old, other = factories.client_key(uow, "a", serial), factories.client_key(uow, "a", serial)
        new = factories.client_key(uow, "a", serial, old)
        assert uow.keys.count_in_use(serial) == 2
        assert set(uow.keys.revoke(old.key_id, NOW)) == {old.key_id, new.key_id}
        assert uow.keys.find(new.key_id) is None
        assert uow.keys.find(other.key_id) is not None
        assert uow.keys.count_in_use(serial) == 1


def test_a_key_that_is_in_use_is_not_revoked_with_its_predecessor(database: Database) -> None:
    with database.unit_of_work() as uow:
        serial = factories.clients(uow, "a")["a"]
        old = factories.client_key(uow, "a", serial)
        new = factories.client_key(uow, "a", serial, old)
        uow.keys.mark_in_use(new.key_id)
        assert uow.keys.revoke(old.key_id, NOW) == [old.key_id]
        assert uow.keys.find(new.key_id) is not None


def test_all_keys_of_one_client_are_revoked(database: Database) -> None:
    with database.unit_of_work() as uow:
        serials = factories.clients(uow, "a", "b")
        old = factories.client_key(uow, "a", serials["a"])
        new = factories.client_key(uow, "a", serials["a"], old)
        other = factories.client_key(uow, "b", serials["b"])
        assert set(uow.keys.revoke_all_of(serials["a"], NOW)) == {old.key_id, new.key_id}
        assert uow.keys.revoke_all_of(serials["a"], NOW) == []
        assert uow.keys.find(other.key_id) is not None


def test_keys_that_were_revoked_long_ago_are_removed(database: Database) -> None:
    with database.unit_of_work() as uow:
        valid, early, late = (factories.operator_key(uow) for _ in range(3))
        uow.keys.revoke(early.key_id, NOW)
        uow.keys.revoke(late.key_id, NOW + SECOND)
        assert uow.keys.delete_revoked_before(NOW + SECOND) == 1
        assert {key.key_id for key in uow.keys.page(Paging(1, 10)).items} == {valid.key_id, late.key_id}


def test_a_client_whose_keys_change_is_locked(postgresql_database: Database) -> None:
    with postgresql_database.unit_of_work() as uow:
        factories.clients(uow, "a")
        uow.commit()
    with postgresql_database.unit_of_work() as uow, postgresql_database.unit_of_work() as other:
        uow.clients.lock("a")
        other._connection.execute(text("SET LOCAL lock_timeout = '50ms'"))
        with pytest.raises(OperationalError, match="lock timeout"):
            other.clients.lock("a")


def test_a_client_that_is_not_there_cannot_be_locked(database: Database) -> None:
    with database.unit_of_work() as uow, pytest.raises(ClientNotFoundError):
        uow.clients.lock("a")


def test_keys_are_listed_newest_first_in_pages(database: Database) -> None:
    with database.unit_of_work() as uow:
        keys = [factories.operator_key(uow, created_at=NOW + number * SECOND) for number in range(5)]
        first, last = uow.keys.page(Paging(1, 2)), uow.keys.page(Paging(3, 2))
    newest_first = [key.key_id for key in reversed(keys)]
    assert [item.key_id for item in first.items] == newest_first[:2]
    assert [item.key_id for item in last.items] == newest_first[4:]
    assert (first.total, last.total) == (5, 5)


def test_a_successor_that_was_never_used_can_be_removed(database: Database) -> None:
    with database.unit_of_work() as uow:
        serial = factories.clients(uow, "a")["a"]
        old, other = factories.client_key(uow, "a", serial), factories.client_key(uow, "a", serial)
        new = factories.client_key(uow, "a", serial, old)
        uow.keys.remove_successor(old.key_id)
        uow.commit()
    with database.reading() as store:
        assert store.keys.find(new.key_id) is None
        assert [store.keys.find(key.key_id) is not None for key in (old, other)] == [True, True]
