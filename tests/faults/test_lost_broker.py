"""Redis dies with all that is in it, and another one, empty, takes its place: nothing is lost with it."""

from collections.abc import Iterator

import pytest

from tests.databases import new_database
from tests.e2e.hosted_cell import PATIENCE_S
from tests.faults.faulty_stack import FaultyStack, complete, complete_round, faulty_stack
from tests.integration.rounds_setup import eventually
from tests.redis_server import redis_server
from tests.stateful.consistency import check_consistency

LINGER = "train_client.working.linger"


@pytest.fixture
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyStack]:
    """Each test kills its Redis."""
    directory = tmp_path_factory.mktemp("stack")
    with (
        faulty_stack(directory, new_database("sqlite", directory, "")) as running,
        running.worker("--processes", "1"),
    ):
        yield running
        check_consistency(running.database)


def kill_redis(stack: FaultyStack) -> None:
    stack.stack.redis_process.kill()
    stack.stack.redis_process.wait()


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


def test_trainings_asked_for_while_the_broker_is_away_are_done_when_it_is_back(stack: FaultyStack) -> None:
    peaceful_model = complete_round(stack.start())
    cell = stack.start()
    kill_redis(stack)
    opened = cell.begin_round()
    assert stack.service.get("/readyz").json()["status"] == "degraded"
    with redis_server(stack.stack.directory, stack.stack.redis_port):
        assert complete(cell, opened) == peaceful_model
