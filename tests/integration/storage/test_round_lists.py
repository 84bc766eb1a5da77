"""Who took part in a round, a page at a time, in both kinds of database."""

from services.domain.jobs import JobKind
from services.domain.rounds import CandidateOutcome, Round, RoundState
from services.protocol.aggregation import close_round, finish_aggregation
from services.protocol.resource_request import open_round
from services.protocol.upload import Arrival, record_late, record_rejection
from services.storage.database import Database, UnitOfWork
from services.storage.round_lists import LEFT_OUT
from tests.integration.storage import given
from tests.integration.storage.given import NOW, SECOND, UPDATE

SENT_LATE = Arrival(NOW, elapsed_s=1000.0)


def _slot_ids(uow: UnitOfWork, round_: Round, fate: str | None = None) -> set[str]:
    return {one.slot.client_id for one in uow.round_lists.selected(round_, 100, 0, fate)}


def test_slots_by_what_became_of_them(database: Database) -> None:
    with database.unit_of_work() as uow:
        opened = given.scheduled_round(uow, "good", "bad", "late", "refused", "silent")
        other = given.scheduled_round(uow, "elsewhere")
        assert uow.round_lists.count_fates(opened) == {"pending": 5}
        given.received_update(uow, opened, "good")
        given.received_update(uow, opened, "bad")
        record_late(uow, opened.round_id, "late", SENT_LATE, NOW)
        record_rejection(uow, opened.round_id, "refused", "no tensors", NOW)
        close_round(uow, opened.round_id, NOW)
        (job,) = [
            one for one in uow.jobs.to_publish(NOW, SECOND * 0, 99) if one.kind is JobKind.AGGREGATE_ROUND
        ]
        claimed = uow.jobs.claim(job.job_id, NOW, SECOND)
        assert claimed is not None
        assert finish_aggregation(uow, claimed, UPDATE, {"bad": "too far"}, NOW)
        closed = uow.rounds.get(opened.round_id)
        assert closed.state is RoundState.AGGREGATED
        fates = {
            "received": "good",
            LEFT_OUT: "bad",
            "late": "late",
            "rejected": "refused",
            "missed": "silent",
        }
        assert uow.round_lists.count_fates(closed) == dict.fromkeys(fates, 1)
        for fate, client_id in fates.items():
            assert _slot_ids(uow, closed, fate) == {client_id}
        assert _slot_ids(uow, closed) == set(fates.values())
        assert uow.round_lists.count_fates(other) == {"pending": 6}, "its task asks everybody"


def test_slots_come_in_order_with_their_reports_a_page_at_a_time(database: Database) -> None:
    with database.unit_of_work() as uow:
        opened = given.scheduled_round(uow, *"abcde")
        slots = uow.rounds.slots(opened.serial)
        pages = [uow.round_lists.selected(opened, 2, offset) for offset in (0, 2, 4, 6)]
    assert [one.slot for page in pages for one in page] == slots
    assert [len(page) for page in pages] == [2, 2, 1, 0]
    assert {(one.throughput_bps, one.compute_samples_per_s) for one in pages[0]} == {(1e6, 100.0)}


def test_candidates_without_a_slot(database: Database) -> None:
    with database.unit_of_work() as uow:
        serials = given.clients(uow, "fits", "silent", "slow", "empty", "slower")
        uow.reports.add(
            [
                given.report(serials["fits"]),
                given.report(serials["slow"], throughput_bps=2e3),
                given.report(serials["slower"], throughput_bps=1e3),
                given.report(serials["empty"], data_samples=0),
            ]
        )
        opened = open_round(uow, given.ready_task(uow).task_id, NOW)
        drawn = [one for one in uow.rounds.candidates(opened.serial) if one.client_id != "fits"]
        lists = uow.round_lists
        assert lists.count_without_slot(opened) == {"NO_REPORT": 1, "DEADLINE": 2, "NO_DATA": 1}
        assert lists.without_slot(opened, 100, 0) == drawn
        assert [lists.without_slot(opened, 3, offset) for offset in (0, 3, 6)] == [drawn[:3], drawn[3:], []]
        left_out = [one for one in drawn if one.outcome is CandidateOutcome.DEADLINE]
        assert lists.without_slot(opened, 100, 0, CandidateOutcome.DEADLINE) == left_out
        assert lists.without_slot(opened, 100, 0, CandidateOutcome.SELECTED) == []


def test_too_few_were_selected_and_have_no_slot(database: Database) -> None:
    with database.unit_of_work() as uow:
        failed = given.scheduled_round(uow, "a", "b", min_clients=3)
        assert failed.outcome == "TOO_FEW_CLIENTS"
        assert uow.round_lists.count_fates(failed) == {}
        assert uow.round_lists.count_without_slot(failed) == {"SELECTED": 2}
        assert len(uow.round_lists.without_slot(failed, 100, 0)) == 2


def test_the_rounds_before_and_after(database: Database) -> None:
    with database.unit_of_work() as uow:
        first = given.scheduled_round(uow, "a")
        close_round(uow, first.round_id, NOW)
        second = open_round(uow, first.task_id, NOW)
        other = given.scheduled_round(uow, "b")
        assert uow.round_lists.neighbours(first) == (None, second.round_id)
        assert uow.round_lists.neighbours(second) == (first.round_id, None)
        assert uow.round_lists.neighbours(other) == (None, None)
