"""A few stops of the long run in ``worker_signals``."""

from pathlib import Path

import pytest

from tests.faults.worker_signals import kill_stacks, stop_workers


def test_a_worker_stops_at_a_burst_of_signals_and_the_round_goes_on(tmp_path: Path) -> None:
    assert stop_workers(tmp_path, bursts=1, seed=1).rounds == 1


@pytest.mark.long
def test_a_killed_stack_leaves_nothing_running_and_the_round_goes_on(tmp_path: Path) -> None:
    assert kill_stacks(tmp_path, kills=1, seed=1).rounds == 1
