import json
import os
import subprocess
import sys

from tests.unit.learning import reproducible


def test_equal_seeds_give_equal_results_bit_for_bit_in_another_process_too() -> None:
    here = reproducible.reproduce()
    assert len(set(here.values())) == len(here)
    assert reproducible.reproduce() == here
    there = subprocess.run(
        [sys.executable, "-m", reproducible.__name__],
        env={**os.environ, "PYTHONHASHSEED": "4711", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        check=True,
        timeout=120,
        text=True,
    )
    assert json.loads(there.stdout) == here
