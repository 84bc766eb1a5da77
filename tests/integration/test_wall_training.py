"""Hosted training in runs on the wall clock: a device sends a synthetic update if training is not done."""

import asyncio
import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from client_sim.results import RoundRecord
from client_sim.wall_run import WallRun, run_wall
from fedcs_client.api import AsyncApi
from services.domain.jobs import Job, JobKind
from services.domain.rounds import SlotOutcome
from tests.integration.cell import fresh_name, make_model
from tests.integration.rounds_setup import Site, site
from tests.integration.wall_cell import PATIENCE_S, QUICK, scenario_of
from tests.running_service import OPERATOR_KEY

TRAINED = 5
"""The seed of what comes of a training."""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site("sqlite", tmp_path_factory.mktemp("data"), "") as found:
        yield found


class OnlyWorker:
    """Does all there is to do, but of the trainings those of some devices only."""

    def __init__(self, here: Site, trained: set[int]) -> None:
        self._worker = here.worker
        self._trained = trained
        self.asked: set[int] = set()

    async def work(self) -> None:
        while True:
            with self._worker.database.reading() as store:
                waiting = store.jobs.to_publish(datetime.now(UTC), timedelta(0), 100)
            for job in waiting:
                self._do(job)
            await asyncio.sleep(0.02)

    def _do(self, job: Job) -> None:
        worker = self._worker
        if job.kind is JobKind.INITIALIZE_MODEL:
            worker.initialize(worker.take(job))
        elif job.kind is JobKind.AGGREGATE_ROUND:
            worker.aggregate(worker.take(job), seed=7)
        elif job.kind is JobKind.EVALUATE_MODEL:
            worker.evaluate(worker.take(job), accuracy=0.5)
        else:
            with worker.database.reading() as store:
                number = store.trainings.get(job.subject["training_id"]).partition
            self.asked.add(number)
            if number in self._trained:
                worker.train(worker.take(job), seed=TRAINED)


def run(here: Site, worker: OnlyWorker, clients: int, samples: int = 15, **given: Any) -> WallRun:
    """A round of devices whose updates take a second for each ten samples."""
    cell = QUICK | {"data_samples": (samples, samples), "compute_samples_per_s": (10.0, 10.0)}
    scenario = scenario_of(clients, cell=cell, dataset="generated", **given)
    told: list[RoundRecord] = []

    async def play() -> WallRun:
        working = asyncio.create_task(worker.work())
        async with AsyncApi(str(here.service.base_url), OPERATOR_KEY) as api, asyncio.timeout(PATIENCE_S):
            found = await run_wall(
                api, scenario, name=fresh_name("wall"), time_scale=1, training=True, on_round=told.append
            )
        working.cancel()
        return found

    return asyncio.run(play())


def test_a_device_sends_a_synthetic_update_if_training_is_not_done(here: Site) -> None:
    worker = OnlyWorker(here, {1})
    found = run(here, worker, 2, samples=60, round_deadline_s=300.0)
    assert worker.asked == {0, 1}
    uploads = {found.fleet.number(upload.client_id): upload for upload in found.uploads}
    assert {number: upload.is_synthetic for number, upload in uploads.items()} == {0: True, 1: False}
    assert {upload.outcome for upload in found.uploads} == {SlotOutcome.RECEIVED}
    (record,) = found.record.rounds
    assert (record.received, record.accuracy, record.loss) == (2, 0.5, 1.0)
    assert found.last_round is not None
    with here.worker.database.reading() as store:
        round_ = store.rounds.get(found.last_round.schedule.round_id)
        digests = {update.client_id: update.digest for update in store.updates.of_round(round_.serial)}
    trained = hashlib.sha256(make_model(TRAINED)).hexdigest()
    assert digests[uploads[1].client_id] == trained != digests[uploads[0].client_id]


def test_nobody_trains_for_those_who_will_not_be_in_time(here: Site) -> None:
    worker = OnlyWorker(here, {0, 1, 2})
    found = run(here, worker, 3, seed=181, uncertainty=0.6, dropout=0.3, round_deadline_s=3.0)
    assert found.last_round is not None
    played = found.last_round.simulated_slots
    in_time = {played_.client_id for played_ in played if not (played_.late or played_.dropped)}
    assert in_time
    assert any(played_.late for played_ in played)
    assert any(played_.dropped for played_ in played)
    assert {found.fleet.client_id(number) for number in worker.asked} == in_time
