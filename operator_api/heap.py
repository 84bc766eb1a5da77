"""How the C library keeps memory for a process with many threads and large bodies."""

import ctypes
import sys
import time
from threading import Thread

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_LARGE_BYTES = 512 * 1024
"""More than what comes in one piece from the network, which is wanted again at once."""
_SPARE_BYTES = 4 * 1024 * 1024
_TRIM_EVERY_S = 10.0


def keep_heap_small() -> None:
    """Let large buffers go back to the system at once, threads share heaps, and holes be given back.

    Left alone, glibc keeps more and more of all three: under load a process grows for minutes by half as
    much, with nothing in it, and is slower for it. Other C libraries are left alone.
    """
    if sys.platform != "linux":
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        library.mallopt(_M_TRIM_THRESHOLD, _SPARE_BYTES)
        library.mallopt(_M_ARENA_MAX, 2)
        Thread(target=_trim_for_ever, args=(library,), name="heap", daemon=True).start()


def _trim_for_ever(library: ctypes.CDLL) -> None:
    """Give back what is free in the middle of the heap: by itself, glibc does so only at its end."""
    while True:
        time.sleep(_TRIM_EVERY_S)
        library.malloc_trim(0)  # a millisecond, in which other threads go on
