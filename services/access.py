"""API keys: how they are made, what is kept of them, and what each kind may do."""

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

_PREFIX = "fedcs"
_KEY_ID_BYTES = 8
_KEY_ID = re.compile(f"[0-9a-f]{{{2 * _KEY_ID_BYTES}}}")
_SECRET_BYTES = 32


class Scope(StrEnum):
    """What a key is for."""

    READ = "read"
    """An operator who looks."""
    MANAGE = "manage"
    """An operator who acts."""
    CLIENT = "client"
    """One client, for itself."""

    @property
    def included(self) -> frozenset["Scope"]:
        """What may be done with it: who acts may look."""
        return frozenset({Scope.MANAGE, Scope.READ} if self is Scope.MANAGE else {self})


@dataclass(frozen=True)
class ApiKey:
    """What is kept of a key: never the secret, only its digest."""

    key_id: str
    digest: bytes
    scope: Scope
    name: str
    created_at: datetime
    client_id: str | None = None
    revoked_at: datetime | None = None


@dataclass(frozen=True)
class Principal:
    """Who is calling."""

    key_id: str
    scope: Scope
    client_id: str | None = None


@dataclass(frozen=True)
class NewKey:
    """A key at the only moment when its text is known."""

    key_id: str
    text: str

    @property
    def digest(self) -> bytes:
        """What is kept of it."""
        return digest_of(self.text)


def make_key() -> NewKey:
    """A key with 256 random bits; the id in it says where to look for its digest."""
    key_id = secrets.token_hex(_KEY_ID_BYTES)
    return NewKey(key_id, f"{_PREFIX}_{key_id}_{secrets.token_hex(_SECRET_BYTES)}")


def key_id_of(text: str) -> str | None:
    """The id within the text of a key; none if it is not one of ours."""
    prefix, _, rest = text.partition("_")
    key_id, _, secret = rest.partition("_")
    is_ours = prefix == _PREFIX and _KEY_ID.fullmatch(key_id) and secret
    return key_id if is_ours else None


def digest_of(text: str) -> bytes:
    """What is kept of a key. It has 256 random bits, so no slow hash is needed to protect it."""
    return hashlib.sha256(text.encode()).digest()


def same_key(text: str, digest: bytes) -> bool:
    """Compare digests, so that neither the time taken nor the length tells anything."""
    return hmac.compare_digest(digest_of(text), digest)
