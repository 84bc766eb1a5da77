"""Two API processes and two workers on PostgreSQL, Redis and S3: any of them may be killed, and S3 go away.

The model of a round in which that happened is, bit for bit, the one of a round in which nothing did.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import func, select

from services.domain.jobs import JobState
from services.storage.tables import events, leases
from tests.e2e.hosted_cell import PATIENCE_S
from tests.faults.faulty_stack import FaultyStack, complete, complete_round, faulty_stack
from tests.integration.cell import assert_problem
from tests.integration.rounds_setup import eventually
from tests.s3_server import S3Server
from tests.scaled_out import host, scaled_out_settings


@dataclass
class Site:
    """A stack, and what its tasks come to without faults."""

    stack: FaultyStack
    peaceful_model: bytes


@contextmanager
def scaled_out(directory: Path, postgres_url: str) -> Iterator[FaultyStack]:
    with (
        faulty_stack(directory, **scaled_out_settings(directory, postgres_url)) as stack,
        stack.worker("--processes", "1", **host(directory, "worker-1")),
        stack.worker("--processes", "1", **host(directory, "worker-2")),
    ):
        yield stack


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, postgres_url: str, s3: S3Server) -> Iterator[Site]:
    assert s3.endpoint
    with scaled_out(tmp_path_factory.mktemp("stack"), postgres_url) as stack:
        yield Site(stack, complete_round(stack.start()))


@pytest.mark.parametrize("fault", ["aggregate_round.working.kill", "aggregate_round.kept.kill"])
def test_a_worker_killed_while_it_aggregates_is_replaced(site: Site, fault: str) -> None:
    site.stack.arm(fault)
    assert complete_round(site.stack.start()) == site.peaceful_model
    job = site.stack.job(site.stack.struck(fault).job_id)
    assert job.state is JobState.DONE
    assert job.attempts >= 2


def test_while_s3_is_away_clients_are_told_and_workers_wait(site: Site, s3: S3Server) -> None:
    stack = site.stack
    cell = stack.start()
    failed_before = failures(stack)
    s3.stop()
    try:
        opened = cell.begin_round()
        first, *_ = opened["schedule"]["slots"]
        unready = assert_problem(stack.service.get("/readyz"), 503, "NOT_READY")
        assert unready["detail"].startswith("model_store: The model store s3://")
        assert_problem(cell.send(opened, first, site.peaceful_model), 503, "MODEL_STORE_AWAY")
        log = stack.stack.directory / "worker.log"
        eventually(lambda: '"event": "the job waits for the model store"' in log.read_text(), PATIENCE_S)
    finally:
        s3.start()
    assert complete(cell, opened) == site.peaceful_model
    assert failures(stack) == failed_before, "no attempt was used up"


def test_the_reconciler_is_killed_and_the_other_process_takes_over(
    site: Site, tmp_path: Path, postgres_url: str
) -> None:
    """Within 10 seconds, which is the reconciler's lease, and a tick; here without a limit."""
    with scaled_out(tmp_path, postgres_url) as stack:
        cell = stack.start()
        opened = cell.begin_round()
        reconciler = holder(stack)
        stack.stack.apis[0].kill()
        stack.stack.apis[0].wait()
        assert complete(cell, opened) == site.peaceful_model
        assert holder(stack) != reconciler


def failures(stack: FaultyStack) -> int:
    """How often a job has failed so far."""
    query = select(func.count()).select_from(events).where(events.c.kind == "job.failed")
    with stack.database.engine.connect() as connection:
        return connection.execute(query).scalar_one()


def holder(stack: FaultyStack) -> str:
    with stack.database.engine.connect() as connection:
        found: str = connection.execute(select(leases.c.holder)).scalar_one()
    return found
