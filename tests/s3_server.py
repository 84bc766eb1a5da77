"""A real S3-compatible server, spoken to over HTTP; it can go away and come back with what it has."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
import pytest
from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.s3.models import s3_backends
from moto.server import ThreadedMotoServer

from services.storage.model_store import S3Location

BUCKET = "fedcs-models"


class S3Server:
    """The server, in threads of this process; whoever has this process's environment finds it."""

    def __init__(self) -> None:
        self._server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        self._server.start()
        _, self.port = self._server.get_host_and_port()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def stop(self) -> None:
        """From now on connections are refused."""
        self._server.stop()

    def start(self) -> None:
        """Come back, on the same port."""
        self._server = ThreadedMotoServer("127.0.0.1", self.port, verbose=False)
        self._server.start()

    def names(self, place: S3Location) -> list[str]:
        """The names of the objects under a prefix."""
        answer = _client().list_objects_v2(Bucket=place.bucket, Prefix=f"{place.prefix}/")
        return [found["Key"] for found in answer.get("Contents", ())]

    def put(self, place: S3Location, name: str, content: bytes) -> None:
        """Put an object there whose name begins with the prefix; what was there before is gone."""
        _client().put_object(Bucket=place.bucket, Key=f"{place.prefix}/{name}", Body=content)

    def delete(self, place: S3Location, name: str) -> None:
        _client().delete_object(Bucket=place.bucket, Key=name)

    def make_old(self, place: S3Location, name: str, age: timedelta) -> None:
        """Have an object be as old as this; no client can do that."""
        backend = s3_backends[DEFAULT_ACCOUNT_ID]["aws"]
        backend.buckets[place.bucket].keys[name].last_modified = datetime.now(UTC) - age


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """A server with a bucket; the AWS_* variables of this process, and of those it starts, lead there."""
    with pytest.MonkeyPatch.context() as patch:
        server = S3Server()
        patch.setenv("AWS_ENDPOINT_URL", server.endpoint)
        patch.setenv("AWS_ACCESS_KEY_ID", "test-key-id")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "test-secret")
        patch.setenv("AWS_REGION", "us-east-1")
        _client().create_bucket(Bucket=BUCKET)
        try:
            yield server
        finally:
            server.stop()


def _client() -> Any:
    return boto3.client("s3", region_name="us-east-1")
