"""Model files, named by the digest of their content and written atomically."""

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

from services.errors import ModelFileMissingError, ModelStoreUnavailableError, SettingsError, StorageFullError

DIGEST = re.compile(r"[0-9a-f]{64}")
SUFFIX = ".safetensors"
_INCOMING_PREFIX = "upload-"
DELETE_BATCH = 500
_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclass(frozen=True)
class Blob:
    """A stored file: the SHA-256 digest of its content in hexadecimal digits, and its size."""

    digest: str
    size_bytes: int


class IncomingBlob:
    """A file that is being written; its content can be read at ``path`` until it is saved."""

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
        with _disk_full_errors():
            while left:  # a write may be partial
                left = left[self._file.write(left) :]

    def sync(self) -> None:
        """Flush the content to disk."""
        os.fsync(self._file.fileno())

    def save(self) -> Blob:
        """Move the file into its store durably."""
        with _disk_full_errors():
            self._put(self)
        self._file.close()
        return Blob(self.digest, self.size_bytes)


@contextmanager
def receive_into(directory: Path, put: Callable[[IncomingBlob], None]) -> Iterator[IncomingBlob]:
    """A new temporary file in this directory; ``put`` stores it, otherwise it is deleted."""
    with _disk_full_errors():
        descriptor, name = tempfile.mkstemp(dir=directory, prefix=_INCOMING_PREFIX)
    path = Path(name)
    try:
        with io.FileIO(descriptor, "wb") as file:
            yield IncomingBlob(file, path, put)
    finally:
        path.unlink(missing_ok=True)


class ModelStore(Protocol):
    """The interface of model stores."""

    directory: Path
    """Its directory on this host."""

    def receive(self) -> AbstractContextManager[IncomingBlob]:
        """A new file to write to; it is deleted at the end of the context unless it is saved."""

    def path_of(self, digest: str) -> Path:
        """The file with this digest, to be opened at once; ``ModelFileMissingError`` if missing."""

    def pinned(self, digests: Collection[str]) -> AbstractContextManager[Mapping[str, Path]]:
        """The files with these digests, available during the context."""

    def check(self) -> None:
        """Check that the store can be used; ``ModelStoreUnavailableError`` if not."""

    def is_empty(self) -> bool:
        """Whether the store has no files."""

    def delete_unreferenced(
        self, referenced: Callable[[Collection[str]], Collection[str]], older_than_s: float
    ) -> int:
        """Delete old incomplete files and old files without a reference; returns their number.

        ``referenced`` gets up to 500 digests and returns those that are in use. A reference to a file must be
        recorded within ``older_than_s`` after the file was saved.
        """


class LocalModelStore:
    """Model files in a local directory; its locks do not work on a network file system."""

    def __init__(self, root: Path) -> None:
        self.directory = root
        self._root = root
        self._incoming = root / "incoming"
        self._synced: set[Path] = set()  # directories whose entries are flushed to disk
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._incoming.mkdir(mode=0o700, exist_ok=True)
        _sync_directory(root.parent)

    def receive(self) -> AbstractContextManager[IncomingBlob]:
        """A new file to write to; it is deleted at the end of the context unless it is saved."""
        return receive_into(self._incoming, self._put)

    def path_of(self, digest: str) -> Path:
        """The file with this digest; ``ModelFileMissingError`` if missing."""
        path = _file_path(self._root, digest)
        if not path.is_file():
            raise ModelFileMissingError(digest)
        return path

    @contextmanager
    def pinned(self, digests: Collection[str]) -> Iterator[Mapping[str, Path]]:
        """The files with these digests; they exist as long as they are referenced."""
        yield {digest: self.path_of(digest) for digest in digests}

    def check(self) -> None:
        """Check that the directories exist and are writable."""
        for directory in (self._root, self._incoming):
            if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
                raise ModelStoreUnavailableError(
                    f"The model store {directory} cannot be used: it is missing, or not writable."
                )

    def is_empty(self) -> bool:
        """Whether the store has no files."""
        return next(self._digests(), None) is None

    def delete_unreferenced(
        self, referenced: Callable[[Collection[str]], Collection[str]], older_than_s: float
    ) -> int:
        """Delete old incomplete files and old files without a reference; returns their number."""
        before_s = self._clock_s() - older_than_s
        abandoned = self._incoming.glob(f"{_INCOMING_PREFIX}*")
        deleted = sum(self._delete_if_old(path, before_s) for path in abandoned)
        old = (digest for digest in self._digests() if _is_old(_file_path(self._root, digest), before_s))
        while batch := list(islice(old, DELETE_BATCH)):
            for digest in set(batch).difference(referenced(batch)):
                deleted += self._delete_if_old(_file_path(self._root, digest), before_s)
        return deleted

    def _clock_s(self) -> float:
        """The clock of the file system: with a clock that is ahead, new files would seem old."""
        os.utime(self._incoming)  # works on a full disk
        return self._incoming.stat().st_mtime

    def _put(self, incoming: IncomingBlob) -> None:
        incoming.sync()
        target = _file_path(self._root, incoming.digest)
        if target.parent not in self._synced:
            target.parent.mkdir(mode=0o700, exist_ok=True)
        with directory_locked(self._root, fcntl.LOCK_SH):
            try:
                os.utime(target)  # it exists: renew its time, so that it is not deleted
            except FileNotFoundError:
                incoming.path.rename(target)
        # Even if the file existed: the process that created it may not have flushed the directory yet.
        _sync_directory(target.parent)
        if target.parent not in self._synced:
            _sync_directory(self._root)
            self._synced.add(target.parent)

    def _digests(self) -> Iterator[str]:
        for path in self._root.glob(f"??/*{SUFFIX}"):
            digest = path.name.removesuffix(SUFFIX)
            if DIGEST.fullmatch(digest):
                yield digest

    def _delete_if_old(self, path: Path, before_s: float) -> bool:
        # The same content may be saved again after the listing: check again under the lock.
        with directory_locked(self._root, fcntl.LOCK_EX):
            if not _is_old(path, before_s):
                return False
            path.unlink(missing_ok=True)
            return True


@contextmanager
def _disk_full_errors() -> Iterator[None]:
    """Translate the system's errors of a full disk into ``StorageFullError``."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise StorageFullError from error
        raise


def check_digest(digest: str) -> None:
    """Refuse an invalid digest: it becomes part of a file name."""
    if not DIGEST.fullmatch(digest):
        raise ValueError("a digest has 64 hexadecimal digits, in lower case")


def _file_path(root: Path, digest: str) -> Path:
    check_digest(digest)
    return root / digest[:2] / f"{digest}{SUFFIX}"


def _is_old(path: Path, before_s: float) -> bool:
    """Whether the file exists and was last saved before this time."""
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
    """Flush the entries of a directory: syncing a file does not do that."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


SCHEME = "s3://"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PREFIX = re.compile(r"([A-Za-z0-9!_.*'()-]+(/[A-Za-z0-9!_.*'()-]+)*)?")
"""Characters that are safe in object names according to the S3 documentation."""


@dataclass(frozen=True)
class S3Location:
    """A bucket and the prefix of object names, without a trailing slash."""

    bucket: str
    prefix: str

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.prefix}".rstrip("/")


def parse_s3_location(text: str) -> S3Location:
    """Read ``s3://bucket`` or ``s3://bucket/prefix``; ``ValueError`` if it is neither."""
    bucket, _, prefix = text.removeprefix(SCHEME).partition("/")
    prefix = prefix.rstrip("/")
    if not (text.startswith(SCHEME) and _BUCKET.fullmatch(bucket) and _PREFIX.fullmatch(prefix)):
        raise ValueError("must be a directory or s3://bucket/prefix")
    return S3Location(bucket, prefix)


def open_model_store(location: Path | S3Location, cache: Path, cache_bytes: int) -> ModelStore:
    """Open the store in a directory or on S3; files from S3 are cached up to ``cache_bytes``."""
    if isinstance(location, Path):
        return LocalModelStore(location)
    try:
        # Imported here: boto3 is optional and takes as long to import as the rest of the API.
        from services.storage.s3_model_store import S3ModelStore  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name not in ("boto3", "botocore"):
            raise
        raise SettingsError(
            f"FEDCS_MODEL_STORE: {location} needs a package: pip install 'fedcs-operator[s3]'"
        ) from error
    return S3ModelStore(location, cache, cache_bytes)
