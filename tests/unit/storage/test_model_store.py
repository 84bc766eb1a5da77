"""What the store in a directory promises beyond what every store does (test_model_stores.py)."""

import hashlib
import io
import os
import stat
import subprocess
import sys
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest

from services.storage.model_store import Blob, LocalModelStore, ModelStore

HOUR_S = 3600.0


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "new" / "models"


@pytest.fixture
def store(root: Path) -> LocalModelStore:
    return LocalModelStore(root)


def keep(store: ModelStore, content: bytes) -> Blob:
    with store.receive() as incoming:
        incoming.write(content)
        return incoming.save()


def files(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def make_old(path: Path, age_s: float = 2 * HOUR_S) -> None:
    then_s = time.time() - age_s
    os.utime(path, (then_s, then_s))


def nothing(_: Collection[str]) -> Collection[str]:
    return []


def test_kept_files_are_found_by_their_digest(store: LocalModelStore, root: Path) -> None:
    with store.receive() as incoming:
        for chunk in (b"one ", bytearray(b"two "), memoryview(b"three"), b""):
            incoming.write(chunk)
        assert incoming.path.read_bytes() == b"one two three"
        assert incoming.size_bytes == 13
        blob = incoming.save()
    assert blob == Blob(hashlib.sha256(b"one two three").hexdigest(), 13)
    assert store.path_of(blob.digest).read_bytes() == b"one two three"
    assert files(root) == [f"{blob.digest[:2]}/{blob.digest}.safetensors"]
    assert LocalModelStore(root).path_of(blob.digest) == store.path_of(blob.digest)


def test_sizes_count_bytes(store: LocalModelStore) -> None:
    with store.receive() as incoming:
        incoming.write(memoryview(b"12345678").cast("I"))
        assert incoming.save() == Blob(hashlib.sha256(b"12345678").hexdigest(), 8)


def test_only_the_owner_can_look(store: LocalModelStore, root: Path) -> None:
    path = store.path_of(keep(store, b"model").digest)
    for directory in (root, root / "incoming", path.parent):
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_data_is_on_disk_before_its_name_and_its_name_before_the_answer(
    store: LocalModelStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    sync, rename = os.fsync, Path.rename

    def traced_sync(descriptor: int) -> None:
        steps.append(f"sync {Path(f'/proc/self/fd/{descriptor}').readlink()}")
        sync(descriptor)

    def traced_rename(path: Path, target: Path) -> Path:
        steps.append("rename")
        return rename(path, target)

    monkeypatch.setattr(os, "fsync", traced_sync)
    monkeypatch.setattr(Path, "rename", traced_rename)
    with store.receive() as incoming:
        incoming.write(b"model")
        temporary = incoming.path
        blob = incoming.save()
    directory = store.path_of(blob.digest).parent
    assert steps == [f"sync {temporary}", "rename", f"sync {directory}", f"sync {root}"]


def test_short_writes_are_completed(store: LocalModelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    class Reluctant(io.FileIO):
        def write(self, chunk: Any) -> int:
            return super().write(memoryview(chunk)[:3])

    monkeypatch.setattr(io, "FileIO", Reluctant)
    blob = keep(store, b"0123456789")
    assert store.path_of(blob.digest).read_bytes() == b"0123456789"


def test_the_same_content_is_kept_once_and_is_young_again(store: LocalModelStore, root: Path) -> None:
    first = keep(store, b"model")
    path = store.path_of(first.digest)
    make_old(path)
    inode = path.stat().st_ino
    assert keep(store, b"model") == first
    assert path.stat().st_ino == inode
    assert time.time() - path.stat().st_mtime < 60
    assert len(files(root)) == 1


def test_many_may_keep_the_same_content_at_once(store: LocalModelStore, root: Path) -> None:
    together = Barrier(8)
    content = os.urandom(100_000)

    def upload(_: int) -> Blob:
        with store.receive() as incoming:
            incoming.write(content)
            together.wait()
            return incoming.save()

    for _ in range(5):
        with ThreadPoolExecutor(8) as pool:
            blobs = set(pool.map(upload, range(8)))
        (blob,) = blobs
        assert store.path_of(blob.digest).read_bytes() == content
        assert len(files(root)) == 1
        store.path_of(blob.digest).unlink()


def test_the_sweep_asks_in_batches(store: LocalModelStore, root: Path) -> None:
    for number in range(1100):
        digest = hashlib.sha256(str(number).encode()).hexdigest()
        path = root / digest[:2] / f"{digest}.safetensors"
        path.parent.mkdir(exist_ok=True)
        path.touch()
        make_old(path)
    batches: list[int] = []

    def referenced(digests: Collection[str]) -> Collection[str]:
        batches.append(len(digests))
        return digests if len(batches) == 1 else []

    assert store.delete_unreferenced(referenced, HOUR_S) == 600
    assert batches == [500, 500, 100]
    assert len(files(root)) == 500


def test_an_upload_that_was_swept_away_is_not_kept(store: LocalModelStore) -> None:
    with store.receive() as incoming:
        incoming.write(b"stalled")
        make_old(incoming.path)
        assert store.delete_unreferenced(nothing, HOUR_S) == 1
        with pytest.raises(FileNotFoundError):
            incoming.save()


def test_the_sweep_ignores_foreign_files(store: LocalModelStore, root: Path) -> None:
    digest = hashlib.sha256(b"").hexdigest()
    foreign = [
        root / "README",
        root / "incoming" / "notes.txt",
        root / "ab" / "cd.safetensors",
        root / "ab" / f"{digest}.safetensors",  # in the wrong place
        root / digest[:2] / f"{digest}.bin",
        root / digest[:2] / f"{digest}0.safetensors",
        root / "deep" / "er" / f"{digest}.safetensors",
    ]
    for path in foreign:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"not ours")
        make_old(path)
    directory = root / digest[:2] / f"{digest}.safetensors"
    directory.mkdir()
    make_old(directory)
    assert store.delete_unreferenced(nothing, HOUR_S) == 0
    assert all(path.exists() for path in [*foreign, directory])


def test_nothing_is_kept_between_the_last_look_and_the_deletion(
    store: LocalModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = keep(store, b"model")
    path = store.path_of(blob.digest)
    make_old(path)
    unlink = Path.unlink
    again = Thread(target=keep, args=(store, b"model"))

    def slow_unlink(self: Path, missing_ok: bool = False) -> None:
        if self == path:
            again.start()
            again.join(0.2)
            assert again.is_alive(), "kept what is about to be deleted"
        unlink(self, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", slow_unlink)
    assert store.delete_unreferenced(nothing, HOUR_S) == 1
    again.join(5)
    assert path.read_bytes() == b"model"


UPLOAD = """
import os, pathlib, signal, sys
from services.storage.model_store import LocalModelStore

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

with LocalModelStore(pathlib.Path(sys.argv[1])).receive() as incoming:
    incoming.write(b"model" * 1000)
    if sys.argv[2] == "before keep":
        die()
    if sys.argv[2] == "before rename":
        pathlib.Path.rename = die
    rename = pathlib.Path.rename
    if sys.argv[2] == "after rename":
        pathlib.Path.rename = lambda *names: (rename(*names), die())
    incoming.save()
"""


def upload_and_die(root: Path, moment: str) -> None:
    command = [sys.executable, "-c", UPLOAD, str(root), moment]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    assert subprocess.run(command, env=environment, check=False, timeout=30).returncode == -9


@pytest.mark.parametrize("moment", ["before keep", "before rename"])
def test_a_kill_leaves_only_what_the_sweep_removes(store: LocalModelStore, root: Path, moment: str) -> None:
    upload_and_die(root, moment)
    (left,) = files(root)
    assert left.startswith("incoming/upload-")
    assert store.delete_unreferenced(nothing, HOUR_S) == 0
    make_old(root / left)
    assert store.delete_unreferenced(nothing, HOUR_S) == 1
    assert files(root) == []


def test_a_kill_after_the_move_leaves_the_whole_file(store: LocalModelStore, root: Path) -> None:
    upload_and_die(root, "after rename")
    content = b"model" * 1000
    assert len(files(root)) == 1
    assert store.path_of(hashlib.sha256(content).hexdigest()).read_bytes() == content


def test_a_host_whose_clock_is_ahead_sweeps_nothing_that_is_new(
    store: LocalModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    blob = keep(store, b"new")
    true_time = time.time
    monkeypatch.setattr(time, "time", lambda: true_time() + 2 * HOUR_S)
    assert store.delete_unreferenced(nothing, older_than_s=HOUR_S) == 0
    assert store.path_of(blob.digest).read_bytes() == b"new"
