"""Memory that was freed goes back to the system."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from pathlib import Path
from operator_api.heap import keep_heap_small

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
