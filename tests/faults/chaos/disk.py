"""Small file systems of their own, which can be filled up."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_STEPS_BYTES = (64 * 2**20, 2**20, 2**12)


class Disk:
    """A directory; filled by a file that takes all the room."""

    def __init__(self, directory: Path, *, is_small: bool) -> None:
        self.directory = directory
        self.is_small = is_small
        """Whether it is a file system of its own; the disk that others use is not filled."""

    def fill(self) -> None:
        """Leave no room."""
        with self._balloon.open("wb") as balloon:
            size_bytes = 0
            for step_bytes in _STEPS_BYTES:
                with suppress(OSError):  # there is less room than a step
                    while True:
                        os.posix_fallocate(balloon.fileno(), size_bytes, step_bytes)
                        size_bytes += step_bytes

    def empty(self) -> None:
        """Give the room back."""
        self._balloon.unlink(missing_ok=True)

    @property
    def _balloon(self) -> Path:
        return self.directory / "balloon"


@contextmanager
def small_disk(directory: Path, size_mib: int) -> Iterator[Disk]:
    """A file system of this size in memory, if this process may mount one; else a plain directory."""
    directory.mkdir()
    options = f"size={size_mib}m,mode=0755"
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(directory)]
    try:
        is_mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        is_mounted = False
    try:
        yield Disk(directory, is_small=is_mounted)
    finally:
        if is_mounted:
            subprocess.run(["umount", "--lazy", str(directory)], check=False)
