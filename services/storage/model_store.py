"""Model files, kept under the digest of their content: whole or not at all, whenever the power fails."""

import errno
import fcntl
import hashlib
import io
import os
import re
import stat
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol

from services.errors import ModelFileMissingError, StorageFullError

DIGEST = re.compile(r"[0-9a-f]{64}")
SUFFIX = ".safetensors"
_INCOMING_PREFIX = "upload-"
SWEEP_BATCH = 500
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclass(frozen=True)
class Blob:
    """A file that is kept: the SHA-256 digest of its content in hexadecimal digits, and its size."""

    digest: str
    size_bytes: int


class IncomingBlob:
    """A file that is still arriving; what was written can be read at ``path`` at once, until it is kept."""

    def __init__(self, file: io.FileIO, path: Path, put: Callable[["IncomingBlob"], None]) -> None:
        self.path = path
        self.size_bytes = 0
        self._file = file
        self._put = put
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
        with _telling_of_a_full_disk():
            while left:  # the system may take less than it is given
                left = left[self._file.write(left) :]

    def sync(self) -> None:
        """Have what was written outlast a loss of power."""
        os.fsync(self._file.fileno())

    def keep(self) -> Blob:
        """Put the file into its store, to stay there even if the power fails now."""
        with _telling_of_a_full_disk():
            self._put(self)
        self._file.close()
        return Blob(self.digest, self.size_bytes)


@contextmanager
def receive_into(directory: Path, put: Callable[[IncomingBlob], None]) -> Iterator[IncomingBlob]:
    """A new file in this directory; ``put`` keeps it, and what is not kept is gone at the end."""
    with _telling_of_a_full_disk():
        descriptor, name = tempfile.mkstemp(dir=directory, prefix=_INCOMING_PREFIX)
    path = Path(name)
    try:
        with io.FileIO(descriptor, "wb") as file:
            yield IncomingBlob(file, path, put)
    finally:
        path.unlink(missing_ok=True)


class ModelStore(Protocol):
    """Where model files are kept."""

    directory: Path
    """Where it has files on this machine."""

    def receive(self) -> AbstractContextManager[IncomingBlob]:
        """A new file to write to; unless it is kept, it is gone when the context is left."""

    def path_of(self, digest: str) -> Path:
        """The kept file with this digest, to be opened at once; ``ModelFileMissingError`` if none is."""

    def hold(self, digests: Collection[str]) -> AbstractContextManager[Mapping[str, Path]]:
        """The kept files with these digests, in place as long as the context lasts."""

    def check(self) -> None:
        """See that the store can be used; ``ModelStoreAwayError`` if not."""

    def sweep(self, referenced: Callable[[Collection[str]], Collection[str]], older_than_s: float) -> int:
        """Delete what was left behind: old files that never arrived, and old ones without a reference.

        ``referenced`` is given up to 500 digests and answers with those that are still in use. A reference
        to a file must be recorded within ``older_than_s`` after it was kept. Returns how many were deleted.
        """


class LocalModelStore:
    """Model files in a directory of this machine: the locks it takes do not reach across a network mount."""

    def __init__(self, root: Path) -> None:
        self.directory = root
        self._root = root
        self._incoming = root / "incoming"
        self._written_down: set[Path] = set()  # directories that a loss of power will not undo
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._incoming.mkdir(mode=0o700, exist_ok=True)
        _sync_directory(root.parent)

    def receive(self) -> AbstractContextManager[IncomingBlob]:
        """A new file to write to; unless it is kept, it is gone when the context is left."""
        return receive_into(self._incoming, self._put)

    def path_of(self, digest: str) -> Path:
        """The kept file with this digest; ``ModelFileMissingError`` if there is none."""
        path = _place_of(self._root, digest)
        if not path.is_file():
            raise ModelFileMissingError(digest)
        return path

    @contextmanager
    def hold(self, digests: Collection[str]) -> Iterator[Mapping[str, Path]]:
        """The kept files with these digests; they stay in place as long as something refers to them."""
        yield {digest: self.path_of(digest) for digest in digests}

    def check(self) -> None:
        """Nothing: whether a directory can be used shows when the room on its disk is looked at."""

    def sweep(self, referenced: Callable[[Collection[str]], Collection[str]], older_than_s: float) -> int:
        """Delete what was left behind: old files that never arrived, and old ones without a reference."""
        before_s = self._clock_s() - older_than_s
        abandoned = self._incoming.glob(f"{_INCOMING_PREFIX}*")
        deleted = sum(self._delete_if_old(path, before_s) for path in abandoned)
        old = (digest for digest in self._digests() if _is_old(_place_of(self._root, digest), before_s))
        while batch := list(islice(old, SWEEP_BATCH)):
            for digest in set(batch).difference(referenced(batch)):
                deleted += self._delete_if_old(_place_of(self._root, digest), before_s)
        return deleted

    def _clock_s(self) -> float:
        """The time by the clock that dates the files: by one that is ahead, new files would seem old."""
        os.utime(self._incoming)  # needs no room, of which there may be none
        return self._incoming.stat().st_mtime

    def _put(self, incoming: IncomingBlob) -> None:
        incoming.sync()
        target = _place_of(self._root, incoming.digest)
        if target.parent not in self._written_down:
            target.parent.mkdir(mode=0o700, exist_ok=True)
        with directory_locked(self._root, fcntl.LOCK_SH):
            try:
                os.utime(target)  # it is there already: as young as if it came now, for the sweep to leave it
            except FileNotFoundError:
                incoming.path.rename(target)
        # Even if the file was there: another process may have put it there, and not have got as far as here.
        _sync_directory(target.parent)
        if target.parent not in self._written_down:
            _sync_directory(self._root)
            self._written_down.add(target.parent)

    def _digests(self) -> Iterator[str]:
        for path in self._root.glob(f"??/*{SUFFIX}"):
            digest = path.name.removesuffix(SUFFIX)
            if DIGEST.fullmatch(digest):
                yield digest

    def _delete_if_old(self, path: Path, before_s: float) -> bool:
        # The same content may arrive again after the file was listed: look again while no one can keep it.
        with directory_locked(self._root, fcntl.LOCK_EX):
            if not _is_old(path, before_s):
                return False
            path.unlink(missing_ok=True)
            return True


@contextmanager
def _telling_of_a_full_disk() -> Iterator[None]:
    """Make one error of the several with which the system says that there is no room."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise StorageFullError from error
        raise


def check_digest(digest: str) -> None:
    """Refuse what is no digest: it becomes part of the name of a file."""
    if not DIGEST.fullmatch(digest):
        raise ValueError("a digest has 64 hexadecimal digits, in lower case")


def _place_of(root: Path, digest: str) -> Path:
    check_digest(digest)
    return root / digest[:2] / f"{digest}{SUFFIX}"


def _is_old(path: Path, before_s: float) -> bool:
    """Whether it is a file last written or kept before this time; not if it vanished meanwhile."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_mtime < before_s


@contextmanager
def directory_locked(directory: Path, operation: int) -> Iterator[None]:
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
