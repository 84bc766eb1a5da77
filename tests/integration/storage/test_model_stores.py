"""What every model store promises, tried on each kind: a directory, and S3 over HTTP."""

import hashlib
import os
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from uuid import uuid4

import pytest

from services.errors import ModelFileMissingError
from services.storage.model_store import Blob, ModelStore, S3Location
from tests.integration.storage.model_store_backends import HOUR_S, Backend, LocalBackend, S3Backend, keep
from tests.s3_server import BUCKET


@pytest.fixture(params=["directory", "s3"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    if request.param == "directory":
        return LocalBackend(tmp_path / "models")
    return S3Backend(request.getfixturevalue("s3"), S3Location(BUCKET, uuid4().hex), tmp_path)


@pytest.fixture
def store(backend: Backend) -> ModelStore:
    return backend.open()


def nothing(_: Collection[str]) -> Collection[str]:
    return []


def test_a_store_that_is_there_can_be_used(store: ModelStore) -> None:
    store.check()
    assert store.directory.is_dir()


def test_a_store_is_empty_until_a_file_is_kept(backend: Backend, store: ModelStore) -> None:
    assert store.is_empty()
    with store.receive() as incoming:
        incoming.write(b"half")
        assert store.is_empty()
    assert store.is_empty()
    keep(store, b"whole")
    assert not store.is_empty()
    assert not backend.open().is_empty()


def test_kept_files_are_found_by_their_digest_everywhere(backend: Backend, store: ModelStore) -> None:
    with store.receive() as incoming:
        for chunk in (b"one ", bytearray(b"two "), memoryview(b"three"), b""):
            incoming.write(chunk)
        assert incoming.path.read_bytes() == b"one two three"
        assert incoming.size_bytes == 13
        blob = incoming.save()
    assert blob == Blob(hashlib.sha256(b"one two three").hexdigest(), 13)
    assert backend.kept() == [blob.digest]
    for item in (store, store, backend.open()):
        assert item.path_of(blob.digest).read_bytes() == b"one two three"


def test_what_is_not_kept_is_gone(backend: Backend, store: ModelStore) -> None:
    def upload() -> None:
        with store.receive() as incoming:
            incoming.write(b"half")
            raise RuntimeError("line cut")

    with store.receive() as incoming:
        incoming.write(b"refused")
    with pytest.raises(RuntimeError, match="line cut"):
        upload()
    assert backend.count() == 0
    assert not [path for path in store.directory.rglob("*") if path.is_file()]


def test_a_kept_file_cannot_be_written_to(backend: Backend, store: ModelStore) -> None:
    with store.receive() as incoming:
        incoming.write(b"model")
        blob = incoming.save()
        with pytest.raises(ValueError, match="closed"):
            incoming.write(b"more")
    assert backend.open().path_of(blob.digest).read_bytes() == b"model"


def test_many_may_keep_and_read_the_same_content_at_once(backend: Backend, store: ModelStore) -> None:
    together = Barrier(8)
    content = os.urandom(100_000)

    def upload_and_read(_: int) -> tuple[Blob, bytes]:
        with store.receive() as incoming:
            incoming.write(content)
            together.wait()
            blob = incoming.save()
        return blob, store.path_of(blob.digest).read_bytes()

    with ThreadPoolExecutor(8) as pool:
        ((blob, read),) = set(pool.map(upload_and_read, range(8)))
    assert read == content
    assert set(backend.kept()) == {blob.digest}


@pytest.mark.parametrize(
    "digest", ["", "ab", "../../etc/passwd", "A" * 64, "g" * 64, "a" * 65, "a" * 64 + "\n"]
)
def test_only_digests_are_looked_up(store: ModelStore, digest: str) -> None:
    with pytest.raises(ValueError, match="64 hexadecimal digits"):
        store.path_of(digest)


def test_an_unknown_digest_is_not_found(store: ModelStore) -> None:
    with pytest.raises(ModelFileMissingError):
        store.path_of("a" * 64)
    with pytest.raises(ModelFileMissingError), store.pinned(["a" * 64]):
        pass


def test_files_that_are_held_can_be_read(store: ModelStore) -> None:
    blobs = {keep(store, content).digest: content for content in (b"one", b"two")}
    with store.pinned(blobs) as paths:
        assert {digest: path.read_bytes() for digest, path in paths.items()} == blobs


def test_the_sweep_leaves_young_and_referenced_files(backend: Backend, store: ModelStore) -> None:
    young, wanted, forgotten = (keep(store, content) for content in (b"young", b"wanted", b"forgotten"))
    backend.make_old(wanted.digest)
    backend.make_old(forgotten.digest)
    asked: list[str] = []

    def referenced(digests: Collection[str]) -> Collection[str]:
        asked.extend(digests)
        return [wanted.digest]

    assert store.delete_unreferenced(referenced, HOUR_S) == 1
    assert set(asked) == {wanted.digest, forgotten.digest}
    assert sorted(backend.kept()) == sorted([young.digest, wanted.digest])
    elsewhere = backend.open()
    assert elsewhere.path_of(wanted.digest).read_bytes() == b"wanted"
    with pytest.raises(ModelFileMissingError):
        elsewhere.path_of(forgotten.digest)


def test_the_sweep_ignores_what_is_foreign(backend: Backend, store: ModelStore) -> None:
    foreign = backend.place_foreign()
    assert store.delete_unreferenced(nothing, HOUR_S) == 0
    assert backend.count() == foreign


def test_the_sweep_leaves_uploads_under_way(store: ModelStore) -> None:
    with store.receive() as incoming:
        incoming.write(b"slow")
        assert store.delete_unreferenced(nothing, HOUR_S) == 0
        assert store.path_of(incoming.save().digest).read_bytes() == b"slow"


def test_the_sweep_leaves_what_arrives_again_meanwhile(backend: Backend, store: ModelStore) -> None:
    blob = keep(store, b"model")
    backend.make_old(blob.digest)

    def referenced(_: Collection[str]) -> Collection[str]:
        keep(store, b"model")
        return []

    store.delete_unreferenced(referenced, HOUR_S)
    assert backend.open().path_of(blob.digest).read_bytes() == b"model"


def test_the_sweep_bears_files_that_vanish(backend: Backend, store: ModelStore) -> None:
    blobs = [keep(store, content) for content in (b"one", b"two")]
    for blob in blobs:
        backend.make_old(blob.digest)

    def referenced(_: Collection[str]) -> Collection[str]:
        backend.delete(blobs[0].digest)
        return []

    store.delete_unreferenced(referenced, HOUR_S)
    assert backend.kept() == []
