"""API keys, kept as digests."""

from collections.abc import Sequence
from datetime import datetime

from sqlalchemy import Connection, insert, select, update

from services.access import ApiKey
from services.errors import KeyNotFoundError
from services.storage.rows import Page, Paging, as_dataclass, count, with_values
from services.storage.tables import api_keys, clients

_KEYS = select(api_keys, clients.c.client_id).outerjoin_from(
    api_keys, clients, clients.c.serial == api_keys.c.client_serial
)
_VALID_KEY = with_values(_KEYS.where(api_keys.c.revoked_at.is_(None)), api_keys.c.key_id)


class Keys:
    """The API keys in a database."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, keys: Sequence[ApiKey], client_serials: dict[str, int]) -> None:
        """Keep new keys; client keys need their client's serial."""
        rows = [
            {
                "key_id": key.key_id,
                "digest": key.digest,
                "scope": key.scope,
                "name": key.name,
                "created_at": key.created_at,
                "client_serial": client_serials[key.client_id] if key.client_id else None,
            }
            for key in keys
        ]
        self._connection.execute(insert(api_keys), rows)

    def find(self, key_id: str) -> ApiKey | None:
        """A key that has not been revoked."""
        row = self._connection.execute(_VALID_KEY, {"key_id": key_id}).one_or_none()
        return as_dataclass(ApiKey, row) if row else None

    def page(self, paging: Paging) -> Page[ApiKey]:
        """All keys, the newest first."""
        query = _KEYS.order_by(api_keys.c.created_at.desc(), api_keys.c.key_id)
        rows = self._connection.execute(paging.of(query))
        return Page([as_dataclass(ApiKey, row) for row in rows], count(self._connection, select(api_keys)))

    def revoke(self, key_id: str, now: datetime) -> None:
        """Let a key be good for nothing from now on."""
        change = update(api_keys).where(api_keys.c.key_id == key_id, api_keys.c.revoked_at.is_(None))
        if not self._connection.execute(change.values(revoked_at=now)).rowcount:
            raise KeyNotFoundError(key_id)
