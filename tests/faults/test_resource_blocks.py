"""Resource blocks while processes are killed: a sample, and the whole run as a long test."""

from pathlib import Path

import pytest

from tests.faults.resource_blocks import Findings, find_overlaps, run


def test_no_block_is_shared_or_lost_when_processes_are_killed(tmp_path: Path, database_url: str) -> None:
    found = run(database_url, tmp_path, seconds=5.0, pause_s=2.0)
    assert found.overlaps == []
    assert found.leaked == 0
    assert found.allocations
    assert found.kills


@pytest.mark.long
def test_every_task_has_rounds_during_two_minutes_of_kills(tmp_path: Path, database_url: str) -> None:
    run(database_url, tmp_path, seconds=120.0).check()


def _allocation(first: int, count: int, begin: int, end: int) -> dict[str, object]:
    return {
        "resource_block_first": first,
        "resource_block_count": count,
        "held_from": f"2026-01-01T00:00:{begin:02}Z",
        "held_until": f"2026-01-01T00:00:{end:02}Z",
    }


def test_the_check_findsfind_overlaps_and_only_those() -> None:
    item = _allocation(0, 10, 10, 20)
    assert len(list(find_overlaps("north", [item, _allocation(9, 1, 19, 30)]))) == 1
    assert not list(find_overlaps("north", [item, _allocation(10, 5, 10, 20)]))
    assert not list(find_overlaps("north", [item, _allocation(0, 10, 20, 30)]))


def test_the_check_refuses_a_task_without_rounds() -> None:
    with pytest.raises(AssertionError):
        Findings({"a": 1, "b": 0}, 1, 1, 1, [], 0).check()
    Findings({"a": 1, "b": 2}, 1, 1, 1, [], 0).check()
