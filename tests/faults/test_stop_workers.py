"""Whole workers end, killed or asked to, and others take over."""

import signal
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen

import pytest

from services.domain.jobs import JobState
from tests.databases import new_database
from tests.faults.faulty_stack import FaultyStack, complete, complete_round, faulty_stack
from tests.integration.rounds_setup import eventually
from tests.stateful.consistency import check_consistency

LINGER = "train_client.working.linger"
PATIENCE_S = 300.0


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyStack]:
    directory = tmp_path_factory.mktemp("stack")
    with faulty_stack(directory, new_database("sqlite", directory, "")) as running:
        yield running


@pytest.fixture
def stack(shared: FaultyStack) -> Iterator[FaultyStack]:
    yield shared
    check_consistency(shared.database)


def children_of(worker: "Popen[str]") -> list[int]:
    listed = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text()
    return [int(pid) for pid in listed.split()]


def runs(pid: int) -> bool:
    """Whether there is such a process, other than one that only waits for its parent to see its end."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def test_another_worker_takes_over_from_one_that_is_killed(stack: FaultyStack) -> None:
    with stack.worker("--processes", "2") as first:
        peaceful_model = complete_round(stack.start())
        cell = stack.start()
        stack.arm(LINGER)
        opened = cell.begin_round()
        lingering = stack.struck(LINGER)
        processes = children_of(first)
        assert lingering.pid in processes
        first.kill()
        eventually(lambda: not any(map(runs, processes)), PATIENCE_S)
    with stack.worker("--processes", "1"):
        assert complete(cell, opened) == peaceful_model
    job = stack.job(lingering.job_id)
    assert job.state is JobState.DONE
    assert job.attempts >= 2


def test_a_worker_that_is_to_end_hands_back_its_job(stack: FaultyStack) -> None:
    with stack.worker("--processes", "1") as first:
        peaceful_model = complete_round(stack.start())
        cell = stack.start()
        stack.arm(LINGER)
        opened = cell.begin_round()
        lingering = stack.struck(LINGER)
        with stack.worker("--processes", "1"):
            first.send_signal(signal.SIGTERM)
            assert first.wait(PATIENCE_S) == 0
            assert complete(cell, opened) == peaceful_model
    assert len(stack.told("job.handed_back", lingering.job_id)) == 1
    assert stack.told("job.failed", lingering.job_id) == [], "nobody had to wait for the end of its lease"
    assert [started["attempt"] for started in stack.told("job.started", lingering.job_id)] == [1, 1]
    job = stack.job(lingering.job_id)
    assert (job.state, job.attempts, job.token) == (JobState.DONE, 1, 2)
