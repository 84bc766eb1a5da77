"""Model files on an S3-compatible service, named by the digest of their content (docs/adr/0020).

The name of an object is the digest and a random part: ``prefix/DIGEST/RANDOM.safetensors``. Each write of the
same content creates another object, so that the garbage collector deletes only objects that it has listed,
never one that was written meanwhile.

Each host caches the files that it reads, up to a number of bytes. The processes of the host share the cache.
"""

import fcntl
import hashlib
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any, Generic, TypeVar

import boto3
import structlog
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from services.errors import ModelFileMissingError, ModelStoreUnavailableError, SettingsError
from services.storage.model_store import (
    DELETE_BATCH,
    DIGEST,
    SUFFIX,
    IncomingBlob,
    S3Location,
    check_digest,
    directory_locked,
    receive_into,
)

_T = TypeVar("_T")


class SingleFlight(Generic[_T]):
    """Runs a function once for concurrent callers; all of them get its result or its error."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._flights: dict[str, Future[_T]] = {}

    def do(self, name: str, work: Callable[[], _T]) -> _T:
        """Run the function under this name, or wait for the thread that runs it."""
        with self._lock:
            flight = self._flights.get(name)
            own = self._flights[name] = Future[_T]() if flight is None else flight
        if flight is not None:
            return flight.result()
        try:
            own.set_result(work())
        except BaseException as error:
            own.set_exception(error)
        finally:
            with self._lock:
                del self._flights[name]
        return own.result()


_JUST_USED_S = 60.0
"""Time to open a file after it was returned; an open file may be deleted."""
_ABANDONED_S = 3600.0
"""A temporary file that was not written for this long is abandoned."""


class FileCache:
    """A least-recently-used cache of files in a directory."""

    def __init__(self, root: Path, max_bytes: int) -> None:
        self._root = root
        self._max_bytes = max_bytes
        self.incoming = root / "incoming"
        """Directory of incomplete files."""
        self._held = root / "held"
        self._verified: dict[str, tuple[int, int, int]] = {}
        """The copies that this process has verified, with their file attributes."""
        for directory in (root, self.incoming, self._held):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def find(self, digest: str) -> Path | None:
        """The verified copy with this digest, kept for at least a minute; None if there is none."""
        path = self._path(digest)
        try:
            found = path.stat()
            if self._verified.get(digest) != _attributes(found) and _sha256(path) != digest:
                path.unlink()
                return None
            with directory_locked(self._root, fcntl.LOCK_SH):
                os.utime(path, ns=(time.time_ns(), found.st_mtime_ns))
        except FileNotFoundError:
            return None
        self._verified[digest] = _attributes(found)
        return path

    def fill(self, digest: str, chunks: Iterable[bytes]) -> Path | None:
        """Store a copy, kept for at least a minute; None if the content does not have this digest."""
        with receive_into(self.incoming, self._add) as copy:
            for chunk in chunks:
                copy.write(chunk)
            if copy.digest != digest:
                return None
            copy.save()
        self._make_room()
        self._delete_abandoned()
        return self._path(digest)

    @contextmanager
    def pinned(self, digests: Collection[str], find: Callable[[str], Path]) -> Iterator[Mapping[str, Path]]:
        """Copies that are not evicted during the context.

        They are hard links in a directory that is locked while its process lives.
        """
        directory = Path(tempfile.mkdtemp(dir=self._held))
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            held = {digest: directory / digest for digest in digests}
            for digest, name in held.items():
                name.hardlink_to(find(digest))
            yield held
        finally:
            shutil.rmtree(directory)
            os.close(descriptor)

    def _add(self, copy: IncomingBlob) -> None:
        os.utime(copy.path)
        self._verified[copy.digest] = _attributes(copy.path.stat())
        copy.path.rename(self._path(copy.digest))

    def _path(self, digest: str) -> Path:
        return self._root / f"{digest}{SUFFIX}"

    def _make_room(self) -> None:
        copies = sorted(
            (found.st_atime, found.st_size, path)
            for path, found in _files(self._root)
            if path.suffix == SUFFIX
        )
        excess_bytes = sum(size for _, size, _ in copies) - self._max_bytes
        left = {path.stem for _, _, path in copies}
        until_s = time.time() - _JUST_USED_S
        for used_s, size, path in copies:
            if excess_bytes <= 0 or used_s > until_s:
                break
            if self._delete_unless_used(path):
                left.discard(path.stem)
                excess_bytes -= size
        for digest in set(self._verified.copy()) - left:  # other threads add entries concurrently
            self._verified.pop(digest, None)

    def _delete_unless_used(self, path: Path) -> bool:
        # It may have been used after the listing: check again under the lock.
        with directory_locked(self._root, fcntl.LOCK_EX), suppress(FileNotFoundError):
            if path.stat().st_atime > time.time() - _JUST_USED_S:
                return False
            path.unlink()
        return True

    def _delete_abandoned(self) -> None:
        """Delete the files of killed processes."""
        before_s = time.time() - _ABANDONED_S
        for path, found in _files(self.incoming):
            if found.st_mtime < before_s:
                path.unlink(missing_ok=True)
        for directory in self._held.iterdir():
            with suppress(FileNotFoundError, BlockingIOError):
                if directory.stat().st_mtime < before_s:
                    _delete_unless_locked(directory)


def _files(directory: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """The files in a directory, without those that are deleted meanwhile."""
    for entry in os.scandir(directory):
        with suppress(FileNotFoundError):
            if entry.is_file(follow_symlinks=False):
                yield Path(entry.path), entry.stat(follow_symlinks=False)


def _delete_unless_locked(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(directory)
    finally:
        os.close(descriptor)


def _attributes(found: os.stat_result) -> tuple[int, int, int]:
    """File attributes that change with the content, unlike the access time."""
    return found.st_ino, found.st_size, found.st_mtime_ns


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


_log = structlog.get_logger(__name__)

_CHUNK_BYTES = 1024 * 1024
_PAGE_OBJECTS = 1000
"""The page size of object listings."""
_CLIENT = Config(
    connect_timeout=3,
    read_timeout=10,
    retries={"mode": "standard", "total_max_attempts": 2},
    max_pool_connections=64,
    # All services verify the digest in the signature, even without support for other checksums.
    request_checksum_calculation="when_required",
    response_checksum_validation="when_required",
    s3={"payload_signing_enabled": True},
)


class S3ModelStore:
    """Model files in a bucket, with a cache on this host."""

    def __init__(self, location: S3Location, cache: Path, cache_bytes: int) -> None:
        self.directory = cache
        self._location = location
        self._prefix = f"{location.prefix}/" if location.prefix else ""
        self._name = re.compile(rf"{re.escape(self._prefix)}({DIGEST.pattern})/[0-9a-f]+{re.escape(SUFFIX)}")
        self._cache = FileCache(cache, cache_bytes)
        self._fetching = SingleFlight[Path]()
        try:
            self._client: Any = boto3.Session().client("s3", config=_CLIENT)
        except ValueError as error:
            raise SettingsError(f"AWS_ENDPOINT_URL: {error}") from error

    def receive(self) -> AbstractContextManager[IncomingBlob]:
        """A new local file; saving it uploads it to S3."""
        return receive_into(self._cache.incoming, self._put)

    def path_of(self, digest: str) -> Path:
        """A copy of the file with this digest; ``ModelFileMissingError`` if missing."""
        check_digest(digest)
        return self._cache.find(digest) or self._fetching.do(digest, lambda: self._fetch(digest))

    def pinned(self, digests: Collection[str]) -> AbstractContextManager[Mapping[str, Path]]:
        """Copies of the files with these digests, available during the context."""
        return self._cache.pinned(digests, self.path_of)

    def check(self) -> None:
        """Check that the bucket can be listed."""
        with self._s3_errors():
            self._client.list_objects_v2(Bucket=self._location.bucket, Prefix=self._prefix, MaxKeys=1)

    def is_empty(self) -> bool:
        """Whether the store has no files."""
        with self._s3_errors():
            return not any(self._name.fullmatch(name) for name, _, _ in self._objects(self._prefix))

    def delete_unreferenced(
        self, referenced: Callable[[Collection[str]], Collection[str]], older_than_s: float
    ) -> int:
        """Delete old objects without a reference."""
        deleted = 0
        old = self._old(timedelta(seconds=older_than_s))
        with self._s3_errors():
            while batch := list(islice(old, DELETE_BATCH)):
                used = set(referenced({digest for _, digest in batch}))
                for name in (name for name, digest in batch if digest not in used):
                    # One by one: not every service supports bulk deletion.
                    self._client.delete_object(Bucket=self._location.bucket, Key=name)
                    deleted += 1
        return deleted

    def _put(self, incoming: IncomingBlob) -> None:
        name = f"{self._prefix}{incoming.digest}/{secrets.token_hex(8)}{SUFFIX}"
        with incoming.path.open("rb") as content, self._s3_errors():
            self._client.put_object(Bucket=self._location.bucket, Key=name, Body=content)

    def _fetch(self, digest: str) -> Path:
        if found := self._cache.find(digest):  # another thread fetched it
            return found
        with self._s3_errors():
            for name, _, _ in self._objects(f"{self._prefix}{digest}/"):
                try:
                    answer = self._client.get_object(Bucket=self._location.bucket, Key=name)
                except self._client.exceptions.NoSuchKey:  # deleted meanwhile
                    continue
                with closing(answer["Body"]) as body:
                    if path := self._cache.fill(digest, body.iter_chunks(_CHUNK_BYTES)):
                        return path
                _log.error("the content of an object does not match its digest", object=name)
        raise ModelFileMissingError(digest)

    def _old(self, age: timedelta) -> Iterator[tuple[str, str]]:
        """The names and digests of older objects."""
        for name, modified_at, now in self._objects(self._prefix):
            if modified_at < now - age and (match := self._name.fullmatch(name)):
                yield name, match[1]

    def _objects(self, prefix: str) -> Iterator[tuple[str, datetime, datetime]]:
        """Names and modification times of objects, and the current time, by the clock of the service."""
        pages = self._client.get_paginator("list_objects_v2")
        size = {"PageSize": _PAGE_OBJECTS}
        for page in pages.paginate(Bucket=self._location.bucket, Prefix=prefix, PaginationConfig=size):
            now = parsedate_to_datetime(page["ResponseMetadata"]["HTTPHeaders"]["date"])
            for found in page.get("Contents", ()):
                yield found["Key"], found["LastModified"], now

    @contextmanager
    def _s3_errors(self) -> Iterator[None]:
        """Translate S3 errors into ``ModelStoreUnavailableError``."""
        try:
            yield
        except ClientError as error:
            said = error.response["Error"]
            raise self._unavailable(f"{said['Code']}: {said['Message']}") from error
        except BotoCoreError as error:
            raise self._unavailable(str(error)) from error

    def _unavailable(self, why: str) -> ModelStoreUnavailableError:
        return ModelStoreUnavailableError(
            f"The model store {self._location} cannot be used: {why.rstrip('.')}."
        )
