"""Creation, rotation and revocation of API keys.

When a client rotates its key, the first use of the new key revokes the old one. Until then the old key stays
valid, so that a device that did not receive the response can rotate again. A key has at most one successor,
which is revoked with it, so revoking a leaked key leaves no valid key behind.
"""

from dataclasses import replace
from datetime import datetime

from services.access import ApiKey, NewKey, Scope, make_key
from services.errors import ClientNotFoundError, TooManyKeysError
from services.storage.database import UnitOfWork

MAX_CLIENT_KEYS = 5
"""Maximum number of valid keys of a client, without successors."""
KEY_REVOKED = "key.revoked"
"""The event of a revoked key."""


def add_operator_key(uow: UnitOfWork, scope: Scope, name: str, now: datetime) -> tuple[NewKey, ApiKey]:
    """Create an operator key."""
    new = make_key()
    stored = ApiKey(new.key_id, new.digest, scope, name, now)
    uow.keys.add([stored], {})
    return new, stored


def add_client_key(uow: UnitOfWork, client_id: str, name: str, now: datetime) -> tuple[NewKey, ApiKey]:
    """Create another key for a client."""
    serial = uow.clients.lock(client_id)
    if uow.keys.count_in_use(serial) >= MAX_CLIENT_KEYS:
        raise TooManyKeysError(f"The client {client_id!r} has {MAX_CLIENT_KEYS} keys. Revoke one first.")
    return _add_client_key(uow, client_id, serial, name, now, replaces=None)


def rotate_key(
    uow: UnitOfWork, client_id: str, key_id: str, name: str, now: datetime
) -> tuple[NewKey, ApiKey] | None:
    """Create the successor of a key; none if the key was revoked meanwhile."""
    serial = uow.clients.lock(client_id)
    if uow.keys.find(key_id) is None:
        return None
    uow.keys.remove_successor(key_id)
    return _add_client_key(uow, client_id, serial, name, now, replaces=key_id)


def complete_rotation(uow: UnitOfWork, key: ApiKey, now: datetime) -> ApiKey | None:
    """Revoke the predecessor on the first use of a successor; none if the successor was revoked."""
    assert key.client_id is not None, "only clients rotate keys"
    try:
        uow.clients.lock(key.client_id)
    except ClientNotFoundError:
        return None
    current = uow.keys.find(key.key_id)
    if current is None or current.replaces is None:
        return current
    uow.keys.mark_in_use(key.key_id)
    revoke_key(uow, current.replaces, now)
    return replace(current, replaces=None)


def revoke_key(uow: UnitOfWork, key_id: str, now: datetime) -> list[str]:
    """Revoke a key and its successor; returns the ids of both."""
    key = uow.keys.find(key_id)
    client_id = None if key is None else key.client_id
    if client_id is not None:
        uow.clients.lock(client_id)
    ended = uow.keys.revoke(key_id, now)
    _emit_revoked(uow, ended, client_id, now)
    return ended


def revoke_client_keys(uow: UnitOfWork, client_id: str, now: datetime) -> list[str]:
    """Revoke all keys of a client; returns their ids."""
    ended = uow.keys.revoke_all_of(uow.clients.lock(client_id), now)
    _emit_revoked(uow, ended, client_id, now)
    return ended


def _add_client_key(
    uow: UnitOfWork, client_id: str, serial: int, name: str, now: datetime, *, replaces: str | None
) -> tuple[NewKey, ApiKey]:
    new = make_key()
    stored = ApiKey(new.key_id, new.digest, Scope.CLIENT, name, now, client_id, replaces=replaces)
    uow.keys.add([stored], {client_id: serial})
    return new, stored


def _emit_revoked(uow: UnitOfWork, key_ids: list[str], client_id: str | None, now: datetime) -> None:
    for key_id in key_ids:
        uow.events.record(KEY_REVOKED, now, client_id=client_id, key_id=key_id)
