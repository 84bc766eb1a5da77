"""Copies of model files on this machine, up to a number of bytes; its processes share them.

A copy gets its name when it is whole. Each process reads a copy through before it uses it for the first time,
and again if the file has changed since: what a loss of power or a failing disk left is never used.
"""

import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from services.storage.model_store import SUFFIX, IncomingBlob, directory_locked, receive_into

_JUST_USED_S = 60.0
"""Ample time from asking for a file to opening it; once open, it may be deleted."""
_ABANDONED_S = 3600.0
"""What nobody has written to for so long does not arrive any more."""


class FileCache:
    """A directory of copies; those not used for the longest time go first."""

    def __init__(self, root: Path, max_bytes: int) -> None:
        self._root = root
        self._max_bytes = max_bytes
        self.incoming = root / "incoming"
        """Where files are written that are not whole yet."""
        self._held = root / "held"
        self._sound: dict[str, tuple[int, int, int]] = {}
        """Which copies this process has read through, and what their files were like then."""
        for directory in (root, self.incoming, self._held):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def find(self, digest: str) -> Path | None:
        """The copy with this digest, which stays for a minute; None if there is none that is sound."""
        path = self._path(digest)
        try:
            found = path.stat()
            if self._sound.get(digest) != _looks(found) and _sha256(path) != digest:
                path.unlink()
                return None
            with directory_locked(self._root, fcntl.LOCK_SH):
                os.utime(path, ns=(time.time_ns(), found.st_mtime_ns))
        except FileNotFoundError:
            return None
        self._sound[digest] = _looks(found)
        return path

    def fill(self, digest: str, chunks: Iterable[bytes]) -> Path | None:
        """Make a copy out of what comes, which stays for a minute; None if it is not what has this digest."""
        with receive_into(self.incoming, self._add) as copy:
            for chunk in chunks:
                copy.write(chunk)
            if copy.digest != digest:
                return None
            copy.keep()
        self._make_room()
        self._delete_abandoned()
        return self._path(digest)

    @contextmanager
    def hold(self, digests: Collection[str], find: Callable[[str], Path]) -> Iterator[Mapping[str, Path]]:
        """Copies that stay as long as the context lasts, whatever else is used meanwhile.

        They are second names of the same files, in a directory that is locked while its process lives.
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
        self._sound[copy.digest] = _looks(copy.path.stat())
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
        for digest in set(self._sound.copy()) - left:  # other threads add to it meanwhile
            self._sound.pop(digest, None)

    def _delete_unless_used(self, path: Path) -> bool:
        # It may have been asked for since it was listed: look again while no one can ask for it.
        with directory_locked(self._root, fcntl.LOCK_EX), suppress(FileNotFoundError):
            if path.stat().st_atime > time.time() - _JUST_USED_S:
                return False
            path.unlink()
        return True

    def _delete_abandoned(self) -> None:
        """What processes left that were killed."""
        before_s = time.time() - _ABANDONED_S
        for path, found in _files(self.incoming):
            if found.st_mtime < before_s:
                path.unlink(missing_ok=True)
        for directory in self._held.iterdir():
            with suppress(FileNotFoundError, BlockingIOError):
                if directory.stat().st_mtime < before_s:
                    _delete_unless_locked(directory)


def _files(directory: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """The files in a directory, without those that vanish meanwhile."""
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


def _looks(found: os.stat_result) -> tuple[int, int, int]:
    """What changes when the content does; not so the time of the last use."""
    return found.st_ino, found.st_size, found.st_mtime_ns


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
