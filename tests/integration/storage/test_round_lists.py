"""Who took part in a round, a page at a time, in both kinds of database."""

from services.domain.clipping import AggregationRecord
from services.domain.jobs import JobKind
from services.domain.rounds import CandidateOutcome, Round, RoundState
from services.protocol.aggregation import close_round, finish_aggregation
from services.protocol.resource_request import open_round
from services.protocol.upload import UploadTiming, record_late, record_rejection
from services.storage.database import Database, UnitOfWork
from services.storage.round_lists import DISCARDED
from tests.integration.storage import factories
from tests.integration.storage.factories import NOW, SECOND, UPDATE

SENT_LATE = UploadTiming(NOW, elapsed_s=1000.0)


def _slot_ids(uow: UnitOfWork, round_: Round, outcome: str | None = None) -> set[str]:
    return {slot.slot.client_id for slot in uow.round_lists.selected(round_, 100, 0, outcome)}


def test_slots_by_what_became_of_them(database: Database) -> None:
    with database.unit_of_work() as uow:
        opened = factories.scheduled_round(uow, "good", "bad", "late", "refused", "silent")
        other = factories.scheduled_round(uow, "elsewhere")
        assert uow.round_lists.count_outcomes(opened) == {"pending": 5}
        factories.received_update(uow, opened, "good")
        factories.received_update(uow, opened, "bad")
        record_late(uow, opened.round_id, "late", SENT_LATE, NOW)
        record_rejection(uow, opened.round_id, "refused", "no tensors", NOW)
        close_round(uow, opened.round_id, NOW)
        (job,) = [
            item for item in uow.jobs.to_publish(NOW, SECOND * 0, 99) if item.kind is JobKind.AGGREGATE_ROUND
        ]
        claimed = uow.jobs.claim(job.job_id, NOW, SECOND)
        assert claimed is not None
        assert finish_aggregation(uow, claimed, UPDATE, AggregationRecord(outliers={"bad": "too far"}), NOW)
        closed = uow.rounds.get(opened.round_id)
        assert closed.state is RoundState.AGGREGATED
        outcomes = {
            "received": "good",
            DISCARDED: "bad",
            "late": "late",
            "rejected": "refused",
            "missed": "silent",
        }
        assert uow.round_lists.count_outcomes(closed) == dict.fromkeys(outcomes, 1)
        for outcome, client_id in outcomes.items():
            assert _slot_ids(uow, closed, outcome) == {client_id}
        assert _slot_ids(uow, closed) == set(outcomes.values())
        assert uow.round_lists.count_outcomes(other) == {"pending": 6}, "its task asks everybody"


def test_slots_come_in_order_with_their_reports_a_page_at_a_time(database: Database) -> None:
    with database.unit_of_work() as uow:
        opened = factories.scheduled_round(uow, *"abcde")
        slots = uow.rounds.slots(opened.serial)
        pages = [uow.round_lists.selected(opened, 2, offset) for offset in (0, 2, 4, 6)]
    assert [row.slot for page in pages for row in page] == slots
    assert [len(page) for page in pages] == [2, 2, 1, 0]
    assert {(row.throughput_bps, row.compute_samples_per_s) for row in pages[0]} == {(1e6, 100.0)}


def test_candidates_without_a_slot(database: Database) -> None:
    with database.unit_of_work() as uow:
        serials = factories.clients(uow, "fits", "silent", "slow", "empty", "slower")
        uow.reports.add(
            [
                factories.report(serials["fits"]),
                factories.report(serials["slow"], throughput_bps=2e3),
                factories.report(serials["slower"], throughput_bps=1e3),
                factories.report(serials["empty"], data_samples=0),
            ]
        )
        opened = open_round(uow, factories.ready_task(uow).task_id, NOW)
        drawn = [
            candidate for candidate in uow.rounds.candidates(opened.serial) if candidate.client_id != "fits"
        ]
        lists = uow.round_lists
        assert lists.count_without_slot(opened) == {"NO_REPORT": 1, "DEADLINE": 2, "NO_DATA": 1}
        assert lists.without_slot(opened, 100, 0) == drawn
        assert [lists.without_slot(opened, 3, offset) for offset in (0, 3, 6)] == [drawn[:3], drawn[3:], []]
        left_out = [item for item in drawn if item.outcome is CandidateOutcome.DEADLINE]
        assert lists.without_slot(opened, 100, 0, CandidateOutcome.DEADLINE) == left_out
        assert lists.without_slot(opened, 100, 0, CandidateOutcome.SELECTED) == []


def test_too_few_were_selected_and_have_no_slot(database: Database) -> None:
    with database.unit_of_work() as uow:
        failed = factories.scheduled_round(uow, "a", "b", min_clients=3)
        assert failed.outcome == "TOO_FEW_CLIENTS"
        assert uow.round_lists.count_outcomes(failed) == {}
        assert uow.round_lists.count_without_slot(failed) == {"SELECTED": 2}
        assert len(uow.round_lists.without_slot(failed, 100, 0)) == 2


def test_the_rounds_before_and_after(database: Database) -> None:
    with database.unit_of_work() as uow:
        first = factories.scheduled_round(uow, "a")
        close_round(uow, first.round_id, NOW)
        second = open_round(uow, first.task_id, NOW)
        other = factories.scheduled_round(uow, "b")
        assert uow.round_lists.neighbours(first) == (None, second.round_id)
        assert uow.round_lists.neighbours(second) == (first.round_id, None)
        assert uow.round_lists.neighbours(other) == (None, None)
