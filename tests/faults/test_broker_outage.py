"""Redis dies with all that is in it, and another one, empty, takes its place: nothing is lost with it."""

import signal
from collections.abc import Iterator
from pathlib import Path
from subprocess import Popen

import pytest

from services.domain.jobs import JobState
from tests.databases import new_database
from tests.e2e.hosted_cell import PATIENCE_S
from tests.faults.faulty_stack import FaultyStack, complete, complete_round, faulty_stack
from tests.integration.rounds_setup import eventually
from tests.redis_server import redis_server
from tests.stateful.consistency import check_consistency

LINGER = "train_client.working.linger"


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[FaultyStack]:
    """Each test kills its Redis."""
    with faulty_stack(tmp_path, new_database("sqlite", tmp_path, "")) as running:
        yield running
        check_consistency(running.database)


@pytest.fixture
def worker(stack: FaultyStack) -> Iterator[Popen[str]]:
    with stack.worker("--processes", "1") as process:
        yield process


def kill_redis(stack: FaultyStack) -> None:
    stack.stack.redis_process.kill()
    stack.stack.redis_process.wait()


@pytest.mark.usefixtures("worker")
def test_messages_lost_in_the_middle_of_a_round_are_sent_again(stack: FaultyStack) -> None:
    peaceful_model = complete_round(stack.start())
    cell = stack.start()
    stack.arm(LINGER)
    opened = cell.begin_round()
    lingering = stack.struck(LINGER)
    eventually(lambda: stack.stack.broker.llen("train") == 2, PATIENCE_S)
    kill_redis(stack)
    with redis_server(stack.stack.directory, stack.stack.redis_port):
        assert stack.stack.broker.llen("train") == 0
        lingering.release()
        assert complete(cell, opened) == peaceful_model
    assert stack.job(lingering.job_id).attempts == 1, "the one who worked meanwhile was not disturbed"


@pytest.mark.usefixtures("worker")
def test_trainings_asked_for_while_the_broker_is_away_are_done_when_it_is_back(stack: FaultyStack) -> None:
    peaceful_model = complete_round(stack.start())
    cell = stack.start()
    kill_redis(stack)
    opened = cell.begin_round()
    assert stack.service.get("/readyz").json()["status"] == "degraded"
    with redis_server(stack.stack.directory, stack.stack.redis_port):
        assert complete(cell, opened) == peaceful_model


def test_a_worker_can_end_while_the_broker_is_away(stack: FaultyStack, worker: Popen[str]) -> None:
    cell = stack.start()
    stack.arm(LINGER)
    cell.begin_round()
    lingering = stack.struck(LINGER)
    kill_redis(stack)
    worker.send_signal(signal.SIGTERM)
    assert worker.wait(PATIENCE_S) == 0
    assert len(stack.told("job.handed_back", lingering.job_id)) == 1
    job = stack.job(lingering.job_id)
    assert (job.state, job.attempts) == (JobState.WAITING, 0)
