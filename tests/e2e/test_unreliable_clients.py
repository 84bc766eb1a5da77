"""A cell in which clients report 100 times their throughput and never deliver, over many rounds."""

import statistics
from pathlib import Path

import numpy as np
import pytest

from services.domain.nanoseconds import to_ns, to_seconds
from services.domain.radio import Cell
from services.domain.rounds import Round, RoundState
from services.protocol.resource_request import open_round
from services.protocol.upload import ReceivedUpdate, UploadTiming, accept_updates, record_late
from services.storage.database import Database, UnitOfWork
from services.storage.migration import migrate
from services.storage.sql import to_microseconds
from tests.integration.storage import factories
from tests.integration.storage.factories import NOW, UPDATE

CLIENTS, LIARS, ROUNDS, FROM_ROUND = 100, 5, 30, 10
R = 0.2
BOTH = {"cooldown": True, "correct_estimates": True}


def _received(uow: UnitOfWork, seed: int, liars: int, **terms: object) -> list[int]:
    """Updates in time in each round. The liars are the first clients; the others are always the same."""
    reports = Cell().draw_reports(CLIENTS, np.random.default_rng(seed))
    names = [f"{number:03}" for number in range(LIARS - liars, CLIENTS)]
    serials = factories.clients(uow, *names, labels={"cell": f"{liars} {terms}"})
    boasts = np.where(np.arange(CLIENTS) < LIARS, 100.0, 1.0)
    now_us = to_microseconds(NOW)
    uow.reports.add(
        [
            (
                serials[name],
                None,
                float(reports.throughput_bps[int(name)] * boasts[int(name)]),
                float(reports.compute_samples_per_s[int(name)]),
                int(reports.data_samples[int(name)]),
                *(10, now_us, now_us, None, None),
            )
            for name in names
        ]
    )
    task = factories.ready_task(
        uow,
        seed=seed,
        local_epochs=5,
        model_size_bytes=18_300_000,
        labels={"cell": f"{liars} {terms}"},
        **terms,
    )
    received = []
    for number in range(1, ROUNDS + 1):
        round_ = open_round(uow, task.task_id, NOW)
        received.append(_play(uow, round_, liars, np.random.default_rng([seed, number])))
        uow.rounds.settle_slots(round_.serial)
        uow.rounds.change(uow.rounds.get(round_.round_id), state=RoundState.AGGREGATED, ended_at=NOW)
    for name in names:
        uow.clients.remove(name)
    return received


def _play(uow: UnitOfWork, round_: Round, liars: int, rng: np.random.Generator) -> int:
    """Uploads in the planned order, with actual times around the reported ones; how many were in time."""
    known = {candidate.client_id: candidate for candidate in uow.rounds.candidates(round_.serial)}
    begin_ns = free_ns = round_.distribution_ns or 0
    in_time = 0
    for slot in uow.rounds.slots(round_.serial):
        factors = np.maximum(rng.normal(1.0, R, 2), 0.1)
        if int(slot.client_id) < LIARS and liars:
            continue
        candidate = known[slot.client_id]
        expected_bps, reported_bps = candidate.expected_throughput_bps, candidate.throughput_bps
        upload = 1.0 if expected_bps is None or reported_bps is None else expected_bps / reported_bps
        expected, reported = candidate.expected_compute_samples_per_s, candidate.compute_samples_per_s
        update = 1.0 if expected is None or reported is None else expected / reported
        update_s = to_seconds(slot.update_ns) * update / factors[0]
        upload_s = to_seconds(slot.upload_ns) * upload / factors[1]
        free_ns = max(free_ns, begin_ns + to_ns(update_s)) + to_ns(upload_s)
        arrival = UploadTiming(NOW, elapsed_s=to_seconds(free_ns), update_s=update_s, upload_s=upload_s)
        if free_ns < (round_.terms.upload_deadline_ns or 0):
            update_ = ReceivedUpdate(slot.client_id, UPDATE, 100, arrival, NOW)
            in_time += accept_updates(uow, round_.round_id, [update_], NOW) == [True]
        else:
            record_late(uow, round_.round_id, slot.client_id, arrival, NOW)
    return in_time


@pytest.mark.long
def test_the_others_deliver_as_much_as_without_them(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/fedcs.sqlite")
    migrate(database)
    with database.unit_of_work() as uow:
        alone = statistics.mean(_received(uow, 0, 0)[FROM_ROUND - 1 :])
        disturbed = statistics.mean(_received(uow, 0, LIARS)[FROM_ROUND - 1 :])
        protected = statistics.mean(_received(uow, 0, LIARS, **BOTH)[FROM_ROUND - 1 :])
    database.close()
    assert disturbed < 0.95 * alone <= protected
