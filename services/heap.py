"""How the C library keeps memory, for processes that are far from its usual ones."""

import ctypes
import sys
import time
from threading import Thread

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_LARGE_BYTES = 512 * 1024
"""More than what comes in one piece from the network, which is wanted again at once."""
_SPARE_BYTES = 4 * 1024 * 1024
_TRIM_EVERY_S = 10.0
_LARGEST_BYTES = 32 * 1024 * 1024
"""More than this glibc never takes from its heap."""
_TRAINING_BYTES = 512 * 1024 * 1024
"""What a batch of training is wanted for again and again."""


def keep_heap_small() -> None:
    """In the API: let large buffers go back to the system at once, threads share heaps, holes be given back.

    It has many threads and large bodies. Left alone, glibc keeps more and more of all three: under load a
    process grows for minutes by half as much, with nothing in it, and is slower for it.
    """
    if library := _glibc():
        library.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        library.mallopt(_M_TRIM_THRESHOLD, _SPARE_BYTES)
        library.mallopt(_M_ARENA_MAX, 2)
        Thread(target=_trim_for_ever, args=(library,), name="heap", daemon=True).start()


def keep_heap_filled() -> None:
    """In a worker: keep what a batch has used for the next one, which uses as much.

    Left alone, glibc gives it back after each, and the system has to fill it with zeros again.
    """
    if library := _glibc():
        library.mallopt(_M_MMAP_THRESHOLD, _LARGEST_BYTES)
        library.mallopt(_M_TRIM_THRESHOLD, _TRAINING_BYTES)


def _glibc() -> ctypes.CDLL | None:
    """Other C libraries are left alone."""
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    return library if hasattr(library, "mallopt") else None


def _trim_for_ever(library: ctypes.CDLL) -> None:
    """Give back what is free in the middle of the heap: by itself, glibc does so only at its end."""
    while True:
        time.sleep(_TRIM_EVERY_S)
        library.malloc_trim(0)  # a millisecond, in which other threads go on
