"""How the C library keeps memory for a process with many threads and large bodies."""

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_LARGE_BYTES = 512 * 1024
"""More than what comes in one piece from the network, which is wanted again at once."""
_SPARE_BYTES = 4 * 1024 * 1024


def keep_heap_small() -> None:
    """Let large buffers go back to the system at once, and threads share heaps.

    Left alone, glibc keeps more and more of both: under load a process grows for minutes by half as much,
    with nothing in it, and is slower for it. Other C libraries are left alone.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _SPARE_BYTES)
        mallopt(_M_ARENA_MAX, 2)
