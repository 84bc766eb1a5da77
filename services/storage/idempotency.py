"""The answers to requests that came with an ``Idempotency-Key``."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, delete, insert, select

from services.storage.rows import as_dataclass
from services.storage.tables import idempotency_keys


@dataclass(frozen=True)
class SavedAnswer:
    """What a request was answered with. The answer is sealed: see ``operator_api.idempotency``."""

    fingerprint: bytes
    status: int
    answer: bytes


class IdempotencyKeys:
    """The idempotency keys in a database; each API key has its own."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def find(self, key_id: str, idempotency_key: str) -> SavedAnswer | None:
        """The answer to an earlier request."""
        query = select(idempotency_keys).where(
            idempotency_keys.c.key_id == key_id, idempotency_keys.c.idempotency_key == idempotency_key
        )
        row = self._connection.execute(query).one_or_none()
        return as_dataclass(SavedAnswer, row) if row else None

    def add(self, key_id: str, idempotency_key: str, saved: SavedAnswer, now: datetime) -> None:
        """Keep an answer, in the transaction that made it true."""
        row = {
            "key_id": key_id,
            "idempotency_key": idempotency_key,
            "fingerprint": saved.fingerprint,
            "status": saved.status,
            "answer": saved.answer,
            "created_at": now,
        }
        self._connection.execute(insert(idempotency_keys), row)

    def forget_before(self, moment: datetime) -> int:
        """Remove old answers; how many they were."""
        old = idempotency_keys.c.created_at < moment
        return self._connection.execute(delete(idempotency_keys).where(old)).rowcount
