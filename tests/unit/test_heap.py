"""Memory that was freed goes back to the system in the API, and stays in a worker."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from pathlib import Path
from services.heap import keep_heap_small

def resident_mb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6

if sys.argv[1] == "small":
    keep_heap_small()
bytes(20_000_000)  # glibc learns from it that large buffers come and go, and takes them from its heap
before = resident_mb()
kept = []
for _ in range(200):
    large = [bytearray(800_000) for _ in range(2)]
    kept.append(bytearray(2_000))  # a stopper on top of each
    kept.append(large)
grown = resident_mb() - before
kept = [one for one in kept if isinstance(one, bytearray)]
del large
print(grown, resident_mb() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="it is glibc that is told")
@pytest.mark.parametrize("heap", ["small", "as it comes"])
def test_large_buffers_go_back_to_the_system(heap: str) -> None:
    command = [sys.executable, "-c", PROGRAM, heap]
    grown, left = map(float, subprocess.run(command, capture_output=True, check=True).stdout.split())
    assert grown > 300
    if heap == "small":
        assert left < 10
    else:
        assert left > 200  # else there would be nothing to do


HOLES = """
import sys, time
from pathlib import Path
from services import heap

def resident_mb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 1e6

heap._TRIM_EVERY_S = float(sys.argv[1])
heap.keep_heap_small()
parts = [bytearray(size) for _ in range(2000) for size in (100_000, 2_000)]  # with a stopper on top of each
before = resident_mb()
del parts[::2]
time.sleep(1)
print(before - resident_mb())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="it is glibc that is told")
@pytest.mark.parametrize(("trim_every_s", "gives_back"), [(0.1, True), (60, False)])
def test_holes_in_the_heap_go_back_to_the_system(trim_every_s: float, gives_back: bool) -> None:
    command = [sys.executable, "-c", HOLES, str(trim_every_s)]
    given_back_mb = float(subprocess.run(command, capture_output=True, check=True).stdout)
    assert (given_back_mb > 100) == gives_back


BATCHES = """
import resource, sys
from services.heap import keep_heap_filled

if sys.argv[1] == "filled":
    keep_heap_filled()

def batch():
    layers = [bytearray(5_000_000) for _ in range(10)]

batch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    batch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="it is glibc that is told")
@pytest.mark.parametrize(("heap", "is_filled_again"), [("filled", False), ("as it comes", True)])
def test_the_memory_of_a_batch_is_there_for_the_next(heap: str, is_filled_again: bool) -> None:
    command = [sys.executable, "-c", BATCHES, heap]
    pages = int(subprocess.run(command, capture_output=True, check=True).stdout)
    assert (pages > 5_000_000 / 4096) == is_filled_again
