"""Requests that may come twice: with an ``Idempotency-Key`` the first answer is given again.

The answer is kept with what it tells of, in one transaction. Some answers hold a new API key, which nobody
but its owner may ever read; so answers are sealed with what only the caller knows, the text of its own key
(for callers with tokens, see ADR 19).
"""

import base64
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from cryptography.fernet import Fernet, InvalidToken
from fastapi import Response
from pydantic import BaseModel
from sqlalchemy.exc import IntegrityError

from services.access import Principal
from services.errors import ConflictError, IdempotencyKeyReusedError
from services.storage.database import Database, UnitOfWork
from services.storage.idempotency import SavedAnswer

IDEMPOTENCY_KEY = r"^[\x21-\x7e]{1,255}$"


@dataclass(frozen=True)
class Once:
    """A request that creates something, once."""

    database: Database
    principal: Principal
    key: str | None
    sealing_text: str
    request: bytes

    def answer(self, status: int, act: Callable[[UnitOfWork, datetime], BaseModel]) -> Response:
        """Act and commit, or give the answer of the first time."""
        try:
            return self._answer(status, act)
        except (IntegrityError, ConflictError):
            if self.key is None:
                raise
            return self._answer(status, act)  # the same request came twice at once, and the other was first

    def _answer(self, status: int, act: Callable[[UnitOfWork, datetime], BaseModel]) -> Response:
        now = self.database.now()
        with self.database.unit_of_work() as uow:
            if self.key is not None:
                saved = uow.idempotency.find(self.principal.key_id, self.key)
                if saved is not None:
                    return self._repeat(saved)
            content = act(uow, now).model_dump_json().encode()
            if self.key is not None:
                sealed = SavedAnswer(self._fingerprint(), status, self._seal().encrypt(content))
                uow.idempotency.add(self.principal.key_id, self.key, sealed, now)
            uow.commit()
        return Response(content, status, media_type="application/json")

    def _repeat(self, saved: SavedAnswer) -> Response:
        if saved.fingerprint != self._fingerprint():
            raise IdempotencyKeyReusedError(f"The Idempotency-Key {self.key!r} was used for another request.")
        try:
            content = self._seal().decrypt(saved.answer)
        except InvalidToken as error:  # FEDCS_OPERATOR_KEY was another one then, or only one was a token
            raise IdempotencyKeyReusedError(
                f"The Idempotency-Key {self.key!r} was used before the caller's key was changed, or once "
                "with a key and once with a token."
            ) from error
        return Response(content, saved.status, media_type="application/json")

    def _fingerprint(self) -> bytes:
        return hashlib.sha256(self.request).digest()

    def _seal(self) -> Fernet:
        secret = hashlib.sha256(f"{self.sealing_text}\0{self.key}".encode()).digest()
        return Fernet(base64.urlsafe_b64encode(secret))
