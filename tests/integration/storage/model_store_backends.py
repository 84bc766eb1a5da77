"""Model stores of both kinds, and what tests do behind their backs."""

import os
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Protocol

from services.storage.model_store import Blob, LocalModelStore, ModelStore, S3Location
from services.storage.s3_model_store import S3ModelStore
from tests.s3_server import S3Server

HOUR_S = 3600.0
CACHE_BYTES = 1_000_000


class Backend(Protocol):
    """Where the files of a store are."""

    def open(self) -> ModelStore:
        """The store, as another process would see it."""

    def kept(self) -> list[str]:
        """The digest of each file that is kept; more than once if there are more copies."""

    def make_old(self, digest: str) -> None:
        """Have what is kept with this digest be two hours old."""

    def delete(self, digest: str) -> None:
        """Have somebody delete what is kept with this digest."""

    def place_foreign(self) -> int:
        """Put old things there that are not the store's; how many."""

    def count(self) -> int:
        """How many things there are, ours and foreign."""


class LocalBackend:
    def __init__(self, root: Path) -> None:
        self._root = root

    def open(self) -> LocalModelStore:
        return LocalModelStore(self._root)

    def kept(self) -> list[str]:
        return [path.stem for path in self._paths()]

    def make_old(self, digest: str) -> None:
        make_file_old(self._path(digest))

    def delete(self, digest: str) -> None:
        self._path(digest).unlink()

    def place_foreign(self) -> int:
        digest = "ab" * 32
        names = ["README", "incoming/notes.txt", f"ab/{digest}.bin", f"ab/{digest}0.safetensors"]
        for path in (self._root / name for name in names):
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(b"not ours")
            make_file_old(path)
        return len(names)

    def count(self) -> int:
        return sum(path.is_file() for path in self._root.rglob("*"))

    def _path(self, digest: str) -> Path:
        return self._root / digest[:2] / f"{digest}.safetensors"

    def _paths(self) -> Iterator[Path]:
        return self._root.glob("??/*.safetensors")


class S3Backend:
    def __init__(self, server: S3Server, place: S3Location, directory: Path) -> None:
        self.server = server
        self.place = place
        self._directory = directory
        self._opened = 0

    def open(self) -> S3ModelStore:
        """On a machine of its own, with nothing in its cache."""
        self._opened += 1
        return S3ModelStore(self.place, self._directory / f"cache-{self._opened}", CACHE_BYTES)

    def kept(self) -> list[str]:
        return [name.split("/")[-2] for name in self.server.names(self.place)]

    def make_old(self, digest: str) -> None:
        for name in self.names(digest):
            self.server.make_old(self.place, name, timedelta(hours=2))

    def delete(self, digest: str) -> None:
        for name in self.names(digest):
            self.server.delete(self.place, name)

    def place_foreign(self) -> int:
        digest = "ab" * 32
        names = ["README", digest, f"{digest}/README", f"{digest}/0a.bin", f"{digest}0/0a.safetensors"]
        for name in names:
            self.server.put(self.place, name, b"not ours")
            self.server.make_old(self.place, f"{self.place.prefix}/{name}", timedelta(hours=2))
        return len(names)

    def count(self) -> int:
        return len(self.server.names(self.place))

    def names(self, digest: str) -> list[str]:
        return [name for name in self.server.names(self.place) if f"/{digest}/" in name]


def keep(store: ModelStore, content: bytes) -> Blob:
    with store.receive() as incoming:
        incoming.write(content)
        return incoming.save()


def make_file_old(path: Path) -> None:
    then_s = time.time() - 2 * HOUR_S
    os.utime(path, (then_s, then_s))
