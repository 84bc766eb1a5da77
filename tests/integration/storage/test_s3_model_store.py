"""What the store on S3 promises beyond what every store does (test_model_stores.py)."""

import os
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from uuid import uuid4

import boto3
import httpx
import pytest

from services.errors import ModelFileMissingError, ModelStoreUnavailableError, SettingsError
from services.storage import s3_model_store
from services.storage.model_store import S3Location
from services.storage.s3_model_store import S3ModelStore
from tests.integration.storage.model_store_backends import CACHE_BYTES, HOUR_S, S3Backend, keep
from tests.s3_server import BUCKET, S3Server


@pytest.fixture
def backend(s3: S3Server, tmp_path: Path) -> S3Backend:
    return S3Backend(s3, S3Location(BUCKET, uuid4().hex), tmp_path)


@pytest.fixture
def store(backend: S3Backend) -> S3ModelStore:
    return backend.open()


@pytest.fixture
def away(s3: S3Server) -> Iterator[S3Server]:
    yield s3
    s3.start()


def nothing(_: Collection[str]) -> Collection[str]:
    return []


@pytest.mark.usefixtures("s3")
def test_a_bucket_can_be_used_without_a_prefix(tmp_path: Path) -> None:
    boto3.client("s3").create_bucket(Bucket="of-our-own")
    store = S3ModelStore(S3Location("of-our-own", ""), tmp_path, CACHE_BYTES)
    blob = keep(store, b"model")
    assert store.path_of(blob.digest).read_bytes() == b"model"
    assert store.delete_unreferenced(nothing, HOUR_S) == 0
    (found,) = boto3.client("s3").list_objects_v2(Bucket="of-our-own")["Contents"]
    assert found["Key"].startswith(f"{blob.digest}/")


def test_the_sweep_deletes_what_it_saw_and_not_what_was_kept_meanwhile(
    backend: S3Backend, store: S3ModelStore
) -> None:
    blob = keep(store, b"model")
    backend.make_old(blob.digest)
    (old,) = backend.names(blob.digest)

    def referenced(_: Collection[str]) -> Collection[str]:
        keep(store, b"model")
        return []

    assert store.delete_unreferenced(referenced, HOUR_S) == 1
    (new,) = backend.names(blob.digest)
    assert new != old
    assert store.delete_unreferenced(nothing, HOUR_S) == 0


def test_whoever_reads_what_is_swept_gets_another_copy(
    backend: S3Backend, store: S3ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = keep(store, b"model")
    keep(store, b"model")
    first, _ = backend.names(blob.digest)
    get_object = store._client.get_object

    def get_swept(**wanted: str) -> object:
        if wanted["Key"] == first:
            backend.server.delete(backend.place, first)
        return get_object(**wanted)

    monkeypatch.setattr(store._client, "get_object", get_swept)
    assert store.path_of(blob.digest).read_bytes() == b"model"


def test_the_sweep_reads_every_page_and_asks_in_batches(
    backend: S3Backend, store: S3ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_model_store, "_PAGE_OBJECTS", 4)
    monkeypatch.setattr(s3_model_store, "DELETE_BATCH", 5)
    for number in range(12):
        backend.make_old(keep(store, bytes([number])).digest)
    batches: list[int] = []

    def referenced(digests: Collection[str]) -> Collection[str]:
        batches.append(len(digests))
        return digests if len(batches) == 2 else []

    assert store.delete_unreferenced(referenced, HOUR_S) == 7
    assert batches == [5, 5, 2]
    assert backend.count() == 5


def test_content_that_was_changed_is_not_handed_out(backend: S3Backend, store: S3ModelStore) -> None:
    blob = keep(store, b"model")
    (name,) = backend.names(blob.digest)
    backend.server.put(backend.place, name.removeprefix(f"{backend.place.prefix}/"), b"other")
    with pytest.raises(ModelFileMissingError, match=blob.digest):
        store.path_of(blob.digest)
    keep(store, b"model")
    assert store.path_of(blob.digest).read_bytes() == b"model"


def test_what_was_read_before_is_there_while_the_service_is_away(
    away: S3Server, backend: S3Backend, store: S3ModelStore
) -> None:
    known, unknown = keep(store, b"known"), keep(store, b"unknown")
    store.path_of(known.digest)
    away.stop()
    assert store.path_of(known.digest).read_bytes() == b"known"
    refused = f"s3://{BUCKET}/{backend.place.prefix} cannot be used: Could not connect to the endpoint"
    with pytest.raises(ModelStoreUnavailableError, match=refused):
        store.path_of(unknown.digest)
    with pytest.raises(ModelStoreUnavailableError, match=refused):
        keep(store, b"new")
    with pytest.raises(ModelStoreUnavailableError, match=refused):
        store.check()
    with pytest.raises(ModelStoreUnavailableError, match=refused):
        store.delete_unreferenced(nothing, HOUR_S)
    assert not list((store.directory / "incoming").iterdir())


@pytest.mark.usefixtures("s3")
def test_a_bucket_that_is_not_there_is_told_of(tmp_path: Path) -> None:
    store = S3ModelStore(S3Location("no-such-bucket", ""), tmp_path, CACHE_BYTES)
    with pytest.raises(ModelStoreUnavailableError, match="s3://no-such-bucket cannot be used: NoSuchBucket"):
        store.check()


def test_wrong_credentials_are_told_of(s3: S3Server, tmp_path: Path) -> None:
    """The server asks for them only from now on, and only until the end of this."""
    httpx.post(f"{s3.endpoint}/moto-api/reset-auth", content="0", timeout=60).raise_for_status()
    try:
        store = S3ModelStore(S3Location(BUCKET, ""), tmp_path, CACHE_BYTES)
        with pytest.raises(ModelStoreUnavailableError, match="cannot be used: InvalidAccessKeyId"):
            store.check()
    finally:
        httpx.post(f"{s3.endpoint}/moto-api/reset-auth", content="inf", timeout=60).raise_for_status()
    store.check()


@pytest.mark.usefixtures("s3")
def test_no_credentials_are_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))
    store = S3ModelStore(S3Location(BUCKET, ""), tmp_path, CACHE_BYTES)
    with pytest.raises(ModelStoreUnavailableError, match="Unable to locate credentials"):
        store.check()


def test_an_endpoint_that_is_no_url_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "minio:9000:9000")
    with pytest.raises(SettingsError, match="AWS_ENDPOINT_URL: Invalid endpoint"):
        S3ModelStore(S3Location(BUCKET, ""), tmp_path, CACHE_BYTES)


OPEN = """
import sys
from pathlib import Path
if sys.argv[2] == "missing":
    sys.modules["boto3"] = None
from services.errors import SettingsError
from services.settings import ProcessSettings, load_settings
from services.storage.model_store import open_model_store
settings = load_settings(ProcessSettings, data_dir=sys.argv[1])
try:
    open_model_store(settings.model_store, settings.model_cache, settings.model_cache_bytes)
except SettingsError as error:
    print(error)
print("boto3" in sys.modules)
"""


def opened(tmp_path: Path, boto3_is: str, place: str) -> list[str]:
    command = [sys.executable, "-c", OPEN, str(tmp_path), boto3_is]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3]), "FEDCS_MODEL_STORE": place}
    return subprocess.run(
        command, env=environment, check=True, text=True, capture_output=True
    ).stdout.splitlines()


def test_whoever_uses_a_directory_does_not_import_boto3(tmp_path: Path) -> None:
    assert opened(tmp_path, "there", str(tmp_path / "models")) == ["False"]
    assert opened(tmp_path, "there", f"s3://{BUCKET}/models") == ["True"]


def test_a_missing_package_is_told_of(tmp_path: Path) -> None:
    said, _ = opened(tmp_path, "missing", f"s3://{BUCKET}/models")
    wanted = "pip install 'fedcs-operator[s3]'"
    assert said == f"FEDCS_MODEL_STORE: s3://{BUCKET}/models needs a package: {wanted}"
