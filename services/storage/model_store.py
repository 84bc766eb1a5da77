"""Model files, kept under the digest of their content: whole or not at all, whenever the power fails."""

import fcntl
import hashlib
import io
import os
import re
import stat
import tempfile
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol

_DIGEST = re.compile(r"[0-9a-f]{64}")
_SUFFIX = ".safetensors"
_INCOMING_PREFIX = "upload-"
_SWEEP_BATCH = 500


@dataclass(frozen=True)
class Blob:
    """A file that is kept: the SHA-256 digest of its content in hexadecimal digits, and its size."""

    digest: str
    size_bytes: int


class IncomingBlob:
    """A file that is still arriving; what was written can be read at ``path`` at once, until it is kept."""

    def __init__(self, file: io.FileIO, path: Path, root: Path, written_down: set[Path]) -> None:
        self.path = path
        self.size_bytes = 0
        self._file = file
        self._root = root
        self._written_down = written_down
        self._hash = hashlib.sha256()

    @property
    def digest(self) -> str:
        """The SHA-256 digest of what was written so far, in hexadecimal digits."""
        return self._hash.hexdigest()

    def write(self, chunk: bytes | bytearray | memoryview) -> None:
        """Append to the file."""
        left = memoryview(chunk).cast("B")
        self._hash.update(left)
        self.size_bytes += len(left)
        while left:  # the system may take less than it is given
            left = left[self._file.write(left) :]

    def keep(self) -> Blob:
        """Move the file to its place, to stay there even if the power fails now."""
        os.fsync(self._file.fileno())
        self._file.close()
        target = _place_of(self._root, self.digest)
        target.parent.mkdir(mode=0o700, exist_ok=True)
        with _locked(self._root, fcntl.LOCK_SH):
            try:
                os.utime(target)  # it is there already: as young as if it came now, for the sweep to leave it
            except FileNotFoundError:
                self.path.rename(target)
        self.path.unlink(missing_ok=True)
        # Even if the file was there: another process may have put it there, and not have got as far as here.
        _sync_directory(target.parent)
        if target.parent not in self._written_down:
            _sync_directory(self._root)
            self._written_down.add(target.parent)
        return Blob(self.digest, self.size_bytes)


class ModelStore(Protocol):
    """Where model files are kept."""

    def receive(self) -> AbstractContextManager[IncomingBlob]:
        """A new file to write to; unless it is kept, it is gone when the context is left."""

    def path_of(self, digest: str) -> Path:
        """The kept file with this digest; ``FileNotFoundError`` if there is none."""

    def sweep(self, referenced: Callable[[Collection[str]], Collection[str]], older_than_s: float) -> int:
        """Delete what was left behind: old files that never arrived, and old ones without a reference.

        ``referenced`` is given up to 500 digests and answers with those that are still in use. A reference
        to a file must be recorded within ``older_than_s`` after it was kept. Returns how many were deleted.
        """


class LocalModelStore:
    """Model files in a directory of this machine: the locks it takes do not reach across a network mount."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._incoming = root / "incoming"
        self._written_down: set[Path] = set()  # directories that a loss of power will not undo
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._incoming.mkdir(mode=0o700, exist_ok=True)
        _sync_directory(root.parent)

    @contextmanager
    def receive(self) -> Iterator[IncomingBlob]:
        """A new file to write to; unless it is kept, it is gone when the context is left."""
        descriptor, name = tempfile.mkstemp(dir=self._incoming, prefix=_INCOMING_PREFIX)
        path = Path(name)
        try:
            with io.FileIO(descriptor, "wb") as file:
                yield IncomingBlob(file, path, self._root, self._written_down)
        finally:
            path.unlink(missing_ok=True)

    def path_of(self, digest: str) -> Path:
        """The kept file with this digest; ``FileNotFoundError`` if there is none."""
        path = _place_of(self._root, digest)
        if not path.is_file():
            raise FileNotFoundError(f"no model file {digest}")
        return path

    def sweep(self, referenced: Callable[[Collection[str]], Collection[str]], older_than_s: float) -> int:
        """Delete what was left behind: old files that never arrived, and old ones without a reference."""
        before_s = time.time() - older_than_s
        abandoned = self._incoming.glob(f"{_INCOMING_PREFIX}*")
        deleted = sum(self._delete_if_old(path, before_s) for path in abandoned)
        old = (digest for digest in self._digests() if _is_old(_place_of(self._root, digest), before_s))
        while batch := list(islice(old, _SWEEP_BATCH)):
            for digest in set(batch).difference(referenced(batch)):
                deleted += self._delete_if_old(_place_of(self._root, digest), before_s)
        return deleted

    def _digests(self) -> Iterator[str]:
        for path in self._root.glob(f"??/*{_SUFFIX}"):
            digest = path.name.removesuffix(_SUFFIX)
            if _DIGEST.fullmatch(digest):
                yield digest

    def _delete_if_old(self, path: Path, before_s: float) -> bool:
        # The same content may arrive again after the file was listed: look again while no one can keep it.
        with _locked(self._root, fcntl.LOCK_EX):
            if not _is_old(path, before_s):
                return False
            path.unlink(missing_ok=True)
            return True


def _place_of(root: Path, digest: str) -> Path:
    if not _DIGEST.fullmatch(digest):
        raise ValueError("a digest has 64 hexadecimal digits, in lower case")
    return root / digest[:2] / f"{digest}{_SUFFIX}"


def _is_old(path: Path, before_s: float) -> bool:
    """Whether it is a file last written or kept before this time; not if it vanished meanwhile."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_mtime < before_s


@contextmanager
def _locked(directory: Path, operation: int) -> Iterator[None]:
    """Hold a lock on a directory, shared or exclusive, among all threads and processes of this store."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, operation)
        yield
    finally:
        os.close(descriptor)


def _sync_directory(directory: Path) -> None:
    """Write down the names of the files in it: syncing a file does not do that."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
