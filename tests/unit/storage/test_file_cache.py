import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.storage import s3_model_store
from services.storage.s3_model_store import FileCache

KILOBYTE = 1000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def cache(root: Path) -> FileCache:
    return FileCache(root, 3 * KILOBYTE)


def fill(cache: FileCache, number: int) -> str:
    """Copy a kilobyte; its digest."""
    content = bytes([number]) * KILOBYTE
    digest = hashlib.sha256(content).hexdigest()
    assert cache.fill(digest, [content[:400], content[400:]]) is not None
    return digest


def last_used(root: Path, digest: str, ago_s: float) -> None:
    path = root / f"{digest}.safetensors"
    os.utime(path, (time.time() - ago_s, path.stat().st_mtime))


def digests(root: Path) -> set[str]:
    return {path.stem for path in root.glob("*.safetensors")}


def test_a_copy_is_found_by_its_digest(cache: FileCache, root: Path) -> None:
    digest = fill(cache, 1)
    for item in (cache, FileCache(root, KILOBYTE)):
        found = item.find(digest)
        assert found is not None
        assert found.read_bytes() == b"\x01" * KILOBYTE
    assert cache.find("a" * 64) is None


def test_what_has_another_digest_is_no_copy(cache: FileCache, root: Path) -> None:
    assert cache.fill("a" * 64, [b"something else"]) is None
    assert [path for path in root.rglob("*") if path.is_file()] == []


def test_a_copy_that_breaks_off_leaves_nothing(cache: FileCache, root: Path) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"half"
        raise ConnectionError("line cut")

    with pytest.raises(ConnectionError):
        cache.fill("a" * 64, chunks())
    assert [path for path in root.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("known", [True, False], ids=["used before", "new to the process"])
@pytest.mark.parametrize("damage", [b"", b"\x01" * (KILOBYTE - 1), b"\x02" * KILOBYTE])
def test_a_damaged_copy_is_not_used(cache: FileCache, root: Path, damage: bytes, known: bool) -> None:
    digest = fill(cache, 1)
    path = cache.find(digest)
    assert path is not None
    time.sleep(0.01)  # so that the time of the change shows
    path.write_bytes(damage)
    assert (cache if known else FileCache(root, KILOBYTE)).find(digest) is None
    assert digests(root) == set()
    assert fill(cache, 1) == digest
    assert cache.find(digest) is not None


def test_what_was_not_used_for_the_longest_time_makes_room(cache: FileCache, root: Path) -> None:
    first, second, third = (fill(cache, number) for number in range(3))
    for digest, ago_s in ((first, 300), (second, 500), (third, 400)):
        last_used(root, digest, ago_s)
    fourth = fill(cache, 3)
    assert digests(root) == {first, third, fourth}
    assert cache.find(third) is not None  # used just now
    fifth = fill(cache, 4)
    assert digests(root) == {third, fourth, fifth}


def test_what_was_used_just_now_stays_though_there_is_no_room(cache: FileCache, root: Path) -> None:
    handed_out = {fill(cache, number) for number in range(5)}
    assert digests(root) == handed_out
    for digest in handed_out:
        last_used(root, digest, 61)
    last = fill(cache, 5)
    assert len(digests(root)) == 3
    assert last in digests(root)


def test_what_is_asked_for_while_room_is_made_stays(
    cache: FileCache, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = (fill(cache, number) for number in range(3))
    for digest, ago_s in ((first, 500), (second, 400), (third, 300)):
        last_used(root, digest, ago_s)
    list_files = s3_model_store._files
    another = FileCache(root, 3 * KILOBYTE)

    def list_slowly(directory: Path) -> Iterator[tuple[Path, os.stat_result]]:
        yield from list_files(directory)
        assert another.find(first) is not None

    monkeypatch.setattr(s3_model_store, "_files", list_slowly)
    fourth = fill(cache, 3)
    assert digests(root) == {first, third, fourth}


def test_what_is_held_stays_whatever_else_is_used(cache: FileCache, root: Path) -> None:
    digest = fill(cache, 1)

    def find(wanted: str) -> Path:
        found = cache.find(wanted)
        assert found is not None
        return found

    with cache.pinned([digest], find) as paths:
        last_used(root, digest, 100)
        make_old(*(root / "held").iterdir())
        for number in range(2, 6):
            fill(cache, number)
        assert digest not in digests(root)
        assert paths[digest].read_bytes() == b"\x01" * KILOBYTE
    assert list((root / "held").iterdir()) == []


def make_old(*paths: Path) -> None:
    for path in paths:
        os.utime(path, (time.time() - 3601, time.time() - 3601))


DIE = """
import os, pathlib, signal, sys
from services.storage.s3_model_store import FileCache

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def chunks():
    yield b"half"
    die()

cache = FileCache(pathlib.Path(sys.argv[1]), 3000)
if sys.argv[2] == "copying":
    cache.fill("a" * 64, chunks())
with cache.pinned([sys.argv[2]], cache.find):
    die()
"""


@pytest.mark.parametrize("doing", ["copying", "holding"])
def test_what_a_killed_process_leaves_is_deleted_in_time(cache: FileCache, root: Path, doing: str) -> None:
    digest = fill(cache, 1)
    command = [sys.executable, "-c", DIE, str(root), doing if doing == "copying" else digest]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    assert subprocess.run(command, env=environment, check=False, timeout=30).returncode == -9
    (left,) = [*(root / "incoming").iterdir(), *(root / "held").iterdir()]
    assert cache.find("a" * 64) is None
    fill(cache, 2)
    assert left.exists(), "it may belong to a process that lives"
    make_old(left)
    fill(cache, 3)
    assert not left.exists()
    assert cache.find(digest) is not None


def test_only_the_owner_can_look(cache: FileCache, root: Path) -> None:
    fill(cache, 1)
    assert {path.stat().st_mode & 0o077 for path in (root, *root.rglob("*"))} == {0}
