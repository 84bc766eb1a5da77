"""The directory of the embedded Redis: removed at the end, or by the next start after a kill."""

import os
import socket
import tempfile
from pathlib import Path

import pytest

from operator_api.up import SOCKET_NAME, socket_directory


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def leave_one_behind() -> Path:
    """The directory of a process that is killed while it uses it."""
    reading, writing = os.pipe()
    if not os.fork():
        with socket_directory() as directory:
            (directory / SOCKET_NAME).touch()
            os.write(writing, str(directory).encode())
            os.kill(os.getpid(), 9)
    os.wait()
    os.close(writing)
    return Path(os.read(reading, 1000).decode())


def test_only_its_user_can_reach_it_and_it_is_gone_at_the_end(temporary: Path) -> None:
    with socket_directory() as directory, socket.socket(socket.AF_UNIX) as redis:
        redis.bind(str(directory / SOCKET_NAME))
        assert directory.stat().st_mode & 0o777 == 0o700
    assert list(temporary.iterdir()) == []


def test_one_left_behind_is_removed_by_the_next_start(temporary: Path) -> None:
    left = leave_one_behind()
    assert (left / SOCKET_NAME).exists()
    with socket_directory() as directory:
        assert list(temporary.iterdir()) == [directory]


def test_one_in_use_stays() -> None:
    with socket_directory() as first:
        with socket_directory() as second:
            assert first != second
            assert first.exists()
        assert first.exists()


def test_what_is_not_ours_stays(temporary: Path) -> None:
    (temporary / "fedcs-up-notes").write_text("a file")
    (temporary / "fedcs-up-link").symlink_to(temporary)
    (temporary / "fedcs-up-data").mkdir()
    (temporary / "fedcs-up-data" / "results.csv").touch()
    (temporary / "fedcs-other").mkdir()
    before = sorted(temporary.rglob("*"))
    with socket_directory():
        pass
    assert sorted(temporary.rglob("*")) == before


def test_one_that_another_start_removes_before_it_is_locked_is_made_again(
    monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    make, made = tempfile.mkdtemp, []

    def make_and_lose(prefix: str) -> str:
        made.append(make(prefix=prefix))
        if len(made) == 1:
            Path(made[0]).rmdir()
        return made[-1]

    monkeypatch.setattr("tempfile.mkdtemp", make_and_lose)
    with socket_directory() as directory:
        assert str(directory) == made[1]
        assert list(temporary.iterdir()) == [directory]
