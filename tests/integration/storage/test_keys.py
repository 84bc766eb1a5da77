"""The API keys in both kinds of database."""

import pytest

from services.access import ApiKey, Scope
from services.errors import KeyNotFoundError
from services.storage.database import Database
from services.storage.rows import Paging
from tests.integration.storage import given
from tests.integration.storage.given import NOW, SECOND


def test_a_key_is_found_by_its_id_with_its_digest_and_scope(database: Database) -> None:
    with database.unit_of_work() as uow:
        key = given.operator_key(uow, Scope.READ)
        uow.commit()
    with database.reading() as store:
        assert store.keys.find(key.key_id) == ApiKey(key.key_id, key.digest, Scope.READ, "operator", NOW)
        assert store.keys.find(key.key_id[:-1]) is None


def test_a_clients_key_knows_its_client(database: Database) -> None:
    with database.unit_of_work() as uow:
        serials = given.clients(uow, "a", "b")
        key = given.client_key(uow, "b", serials["b"])
        uow.commit()
    with database.reading() as store:
        found = store.keys.find(key.key_id)
    assert found == ApiKey(key.key_id, key.digest, Scope.CLIENT, "b", NOW, "b")


def test_a_client_can_have_two_keys_while_one_replaces_the_other(database: Database) -> None:
    with database.unit_of_work() as uow:
        serial = given.clients(uow, "a")["a"]
        old, new = given.client_key(uow, "a", serial), given.client_key(uow, "a", serial)
        uow.keys.revoke(old.key_id, NOW)
        uow.commit()
    with database.reading() as store:
        assert store.keys.find(old.key_id) is None
        assert store.keys.find(new.key_id) is not None


def test_a_revoked_key_is_not_found_but_listed(database: Database) -> None:
    with database.unit_of_work() as uow:
        key, other = given.operator_key(uow), given.operator_key(uow)
        uow.keys.revoke(key.key_id, NOW + SECOND)
        uow.commit()
    with database.reading() as store:
        assert store.keys.find(key.key_id) is None
        assert store.keys.find(other.key_id) is not None
        listed = {one.key_id: one.revoked_at for one in store.keys.page(Paging(1, 10)).items}
    assert listed == {key.key_id: NOW + SECOND, other.key_id: None}


def test_a_key_is_revoked_once_and_an_unknown_one_never(database: Database) -> None:
    with database.unit_of_work() as uow:
        key = given.operator_key(uow)
        uow.keys.revoke(key.key_id, NOW)
        with pytest.raises(KeyNotFoundError, match=key.key_id):
            uow.keys.revoke(key.key_id, NOW + SECOND)
        with pytest.raises(KeyNotFoundError, match="unknown"):
            uow.keys.revoke("unknown", NOW)
        (kept,) = uow.keys.page(Paging(1, 10)).items
    assert kept.revoked_at == NOW


def test_keys_are_listed_newest_first_in_pages(database: Database) -> None:
    with database.unit_of_work() as uow:
        keys = [given.operator_key(uow, created_at=NOW + number * SECOND) for number in range(5)]
        first, last = uow.keys.page(Paging(1, 2)), uow.keys.page(Paging(3, 2))
    newest_first = [key.key_id for key in reversed(keys)]
    assert [one.key_id for one in first.items] == newest_first[:2]
    assert [one.key_id for one in last.items] == newest_first[4:]
    assert (first.total, last.total) == (5, 5)
