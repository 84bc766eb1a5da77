"""API keys: creation, digests and scopes."""

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
    """The permissions of a key."""

    READ = "read"
    """An operator with read access."""
    MANAGE = "manage"
    """An operator with read and write access."""
    CLIENT = "client"
    """One client, for its own resources."""

    @property
    def included(self) -> frozenset["Scope"]:
        """All scopes that it includes."""
        return frozenset({Scope.MANAGE, Scope.READ} if self is Scope.MANAGE else {self})


@dataclass(frozen=True)
class ApiKey:
    """A stored key: only the digest of its secret."""

    key_id: str
    digest: bytes
    scope: Scope
    name: str
    created_at: datetime
    client_id: str | None = None
    revoked_at: datetime | None = None
    replaces: str | None = None
    """The id of the key that is revoked when this one is first used; none afterwards."""


@dataclass(frozen=True)
class Principal:
    """The authenticated caller."""

    key_id: str
    scope: Scope
    client_id: str | None = None
    name: str = ""
    """Of the key, for people."""


@dataclass(frozen=True)
class NewKey:
    """A new key with its text, which is not stored."""

    key_id: str
    text: str

    @property
    def digest(self) -> bytes:
        """The digest to store."""
        return digest_of(self.text)


def make_key() -> NewKey:
    """Create a key with 256 random bits; its id locates the stored digest."""
    key_id = secrets.token_hex(_KEY_ID_BYTES)
    return NewKey(key_id, f"{_PREFIX}_{key_id}_{secrets.token_hex(_SECRET_BYTES)}")


def key_id_of(text: str) -> str | None:
    """The id in the text of a key; none if the text is not a key."""
    prefix, _, rest = text.partition("_")
    key_id, _, secret = rest.partition("_")
    is_ours = prefix == _PREFIX and _KEY_ID.fullmatch(key_id) and secret
    return key_id if is_ours else None


def digest_of(text: str) -> bytes:
    """The digest of a key. A key has 256 random bits, so a fast hash is safe."""
    return hashlib.sha256(text.encode()).digest()


def verify_key(text: str, digest: bytes) -> bool:
    """Compare digests in constant time."""
    return hmac.compare_digest(digest_of(text), digest)
