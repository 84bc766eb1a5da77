"""A short run of ``bad_worker``."""

from pathlib import Path

from tests.faults.bad_worker import train_beside_a_bad_worker


def test_a_worker_without_its_data_sets_fails_no_task(tmp_path: Path) -> None:
    outcome = train_beside_a_bad_worker(tmp_path, tasks=2, rounds=1)
    assert outcome.states == ["finished", "finished"]
    assert outcome.refused >= 1, "the bad one was told of some of the eight jobs or more"
    assert outcome.failed == 0
