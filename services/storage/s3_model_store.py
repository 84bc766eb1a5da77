"""Model files on an S3-compatible service, kept under the digest of their content (docs/adr/0020).

An object's name is the digest and a part that is drawn anew each time the content is kept:
``prefix/DIGEST/RANDOM.safetensors``. So the sweep deletes what it has seen, never what was kept meanwhile.
"""

import re
import secrets
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from datetime import datetime, timedelta
from email.utils import parsedate_to_datetime
from itertools import islice
from pathlib import Path
from typing import Any

import boto3
import structlog
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from services.errors import ModelFileMissingError, ModelStoreAwayError, SettingsError
from services.s3_place import S3Place
from services.storage.file_cache import FileCache
from services.storage.model_store import (
    DIGEST,
    SUFFIX,
    SWEEP_BATCH,
    IncomingBlob,
    check_digest,
    receive_into,
)
from services.storage.single_flight import SingleFlight

_log = structlog.get_logger(__name__)

_CHUNK_BYTES = 1024 * 1024
_PAGE_OBJECTS = 1000
"""As many as a service lists in one answer."""
_CLIENT = Config(
    connect_timeout=3,
    read_timeout=10,
    retries={"mode": "standard", "total_max_attempts": 2},
    max_pool_connections=64,
    # Every service checks the digest that is part of the signature, also where it knows no other checksum.
    request_checksum_calculation="when_required",
    response_checksum_validation="when_required",
    s3={"payload_signing_enabled": True},
)


class S3ModelStore:
    """Model files in a bucket; those that are read are also kept on this machine, up to so many bytes."""

    def __init__(self, place: S3Place, cache: Path, cache_bytes: int) -> None:
        self.directory = cache
        self._place = place
        self._prefix = f"{place.prefix}/" if place.prefix else ""
        self._name = re.compile(rf"{re.escape(self._prefix)}({DIGEST.pattern})/[0-9a-f]+{re.escape(SUFFIX)}")
        self._cache = FileCache(cache, cache_bytes)
        self._fetching = SingleFlight[Path]()
        try:
            self._client: Any = boto3.Session().client("s3", config=_CLIENT)
        except ValueError as error:
            raise SettingsError(f"AWS_ENDPOINT_URL: {error}") from error

    def receive(self) -> AbstractContextManager[IncomingBlob]:
        """A new file on this machine; when it is kept, it goes to S3."""
        return receive_into(self._cache.incoming, self._put)

    def path_of(self, digest: str) -> Path:
        """A copy of the kept file with this digest; ``ModelFileMissingError`` if there is none."""
        check_digest(digest)
        return self._cache.find(digest) or self._fetching.do(digest, lambda: self._fetch(digest))

    def hold(self, digests: Collection[str]) -> AbstractContextManager[Mapping[str, Path]]:
        """Copies of the kept files with these digests, in place as long as the context lasts."""
        return self._cache.hold(digests, self.path_of)

    def check(self) -> None:
        """Look into the bucket."""
        with self._telling():
            self._client.list_objects_v2(Bucket=self._place.bucket, Prefix=self._prefix, MaxKeys=1)

    def sweep(self, referenced: Callable[[Collection[str]], Collection[str]], older_than_s: float) -> int:
        """Delete old objects without a reference."""
        deleted = 0
        old = self._old(timedelta(seconds=older_than_s))
        with self._telling():
            while batch := list(islice(old, SWEEP_BATCH)):
                used = set(referenced({digest for _, digest in batch}))
                for name in (name for name, digest in batch if digest not in used):
                    # One by one: not every service has the request that deletes many.
                    self._client.delete_object(Bucket=self._place.bucket, Key=name)
                    deleted += 1
        return deleted

    def _put(self, incoming: IncomingBlob) -> None:
        name = f"{self._prefix}{incoming.digest}/{secrets.token_hex(8)}{SUFFIX}"
        with incoming.path.open("rb") as content, self._telling():
            self._client.put_object(Bucket=self._place.bucket, Key=name, Body=content)

    def _fetch(self, digest: str) -> Path:
        if found := self._cache.find(digest):  # it came while this was about to begin
            return found
        with self._telling():
            for name, _, _ in self._objects(f"{self._prefix}{digest}/"):
                try:
                    answer = self._client.get_object(Bucket=self._place.bucket, Key=name)
                except self._client.exceptions.NoSuchKey:  # swept a moment ago
                    continue
                with closing(answer["Body"]) as body:
                    if path := self._cache.fill(digest, body.iter_chunks(_CHUNK_BYTES)):
                        return path
                _log.error("an object has other content than its name says", object=name)
        raise ModelFileMissingError(digest)

    def _old(self, age: timedelta) -> Iterator[tuple[str, str]]:
        """The names of objects that are older, each with the digest in it."""
        for name, kept_at, now in self._objects(self._prefix):
            if kept_at < now - age and (ours := self._name.fullmatch(name)):
                yield name, ours[1]

    def _objects(self, prefix: str) -> Iterator[tuple[str, datetime, datetime]]:
        """The names of objects, when they were kept, and what time it is; all by the clock of the service."""
        pages = self._client.get_paginator("list_objects_v2")
        size = {"PageSize": _PAGE_OBJECTS}
        for page in pages.paginate(Bucket=self._place.bucket, Prefix=prefix, PaginationConfig=size):
            now = parsedate_to_datetime(page["ResponseMetadata"]["HTTPHeaders"]["date"])
            for found in page.get("Contents", ()):
                yield found["Key"], found["LastModified"], now

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """Say in a sentence what goes wrong with the service."""
        try:
            yield
        except ClientError as error:
            said = error.response["Error"]
            raise self._away(f"{said['Code']}: {said['Message']}") from error
        except BotoCoreError as error:
            raise self._away(str(error)) from error

    def _away(self, why: str) -> ModelStoreAwayError:
        return ModelStoreAwayError(f"The model store {self._place} cannot be used: {why.rstrip('.')}.")
