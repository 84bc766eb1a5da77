"""The rounds with their candidates, slots and updates in both kinds of database."""

from datetime import datetime, timedelta

import pytest
from sqlalchemy.exc import IntegrityError

from services.domain.rounds import (
    MAX_REJECTION_EVENTS_PER_SLOT,
    AcceptedUpdate,
    Candidate,
    CandidateOutcome,
    Round,
    RoundCell,
    RoundState,
    Slot,
    SlotOutcome,
    terms_of_round,
)
from services.domain.tasks import Task
from services.errors import RoundNotFoundError
from services.protocol.aggregation import close_round
from services.protocol.resource_request import end_report_window, open_round
from services.protocol.task_management import cancel_task
from services.storage.database import Database, Store, UnitOfWork
from services.storage.sql import Paging
from tests.integration.storage import factories
from tests.integration.storage.factories import NOW, SECOND


def test_a_new_round_is_kept_as_it_was_opened(database: Database) -> None:
    with database.unit_of_work() as uow:
        task = factories.ready_task(uow)
        opened = _add(uow, task, 1, clients=8, asked=3, window_ends_at=NOW + SECOND)
        uow.commit()
    with database.reading() as store:
        kept = store.rounds.get(opened.round_id)
    expected = Round(
        serial=opened.serial,
        round_id=opened.round_id,
        task_serial=task.serial,
        task_id=task.task_id,
        number=1,
        state=RoundState.REQUESTING,
        terms=terms_of_round(task.terms, 125_000),
        model_version=0,
        clients=8,
        asked=3,
        opened_at=NOW,
        window_ends_at=NOW + SECOND,
        started_at=None,
        upload_deadline_at=None,
        active_at=NOW,
        ended_at=None,
        outcome=None,
        selected=0,
        received=0,
        distribution_ns=None,
        elapsed_ns=None,
        upper_bound=None,
        duration_s=None,
        task_elapsed_s=None,
    )
    assert kept == opened == expected


def test_an_unknown_round_is_not_found(database: Database) -> None:
    with database.reading() as store, pytest.raises(RoundNotFoundError, match="'nothing'"):
        store.rounds.get("nothing")
    with database.unit_of_work() as uow:
        with pytest.raises(RoundNotFoundError, match="'nothing'"):
            uow.tasks.lock_of_round("nothing")
        with pytest.raises(RoundNotFoundError, match="'nothing'"):
            uow.updates.upload_context("nothing", "a")


def test_the_database_itself_refuses_a_second_open_round_of_a_task(database: Database) -> None:
    with database.unit_of_work() as uow:
        task, other = factories.ready_task(uow), factories.ready_task(uow)
        first = _add(uow, task, 1)
        _add(uow, other, 1)
        uow.commit()
    for state in (RoundState.REQUESTING, RoundState.SCHEDULED, RoundState.COLLECTING, RoundState.AGGREGATING):
        with database.unit_of_work() as uow:
            uow.rounds.change(first, state=state, started_at=NOW)
            with pytest.raises(IntegrityError):
                _add(uow, task, 2)
    for state in (RoundState.AGGREGATED, RoundState.FAILED, RoundState.CANCELLED):
        with database.unit_of_work() as uow:
            uow.rounds.change(first, state=state, started_at=NOW, ended_at=NOW)
            assert _add(uow, task, 2).number == 2


def test_a_tasks_rounds_are_told_in_order_with_the_open_and_the_last_one(database: Database) -> None:
    with database.unit_of_work() as uow:
        task = factories.ready_task(uow)
        assert uow.rounds.last_of(task.serial) is None
        assert uow.rounds.open_of(task.serial) is None
        first = _fail(uow, _add(uow, task, 1))
        assert uow.rounds.last_of(task.serial) == first
        assert uow.rounds.open_of(task.serial) is None
        second = _add(uow, task, 2)
        _add(uow, factories.ready_task(uow), 1)
        assert uow.rounds.of_task(task.serial) == [first, second]
        assert uow.rounds.open_of(task.serial) == uow.rounds.last_of(task.serial) == second


def test_failures_in_a_row_count_from_the_last_round_that_did_not_fail(database: Database) -> None:
    with database.unit_of_work() as uow:
        task, other = factories.ready_task(uow), factories.ready_task(uow)
        _fail(uow, _add(uow, other, 1))
        counts = [uow.rounds.consecutive_failures(task.serial)]
        for number, state in enumerate("ffaffc", start=1):
            ended = {"f": RoundState.FAILED, "a": RoundState.AGGREGATED, "c": RoundState.CANCELLED}[state]
            uow.rounds.change(_add(uow, task, number), state=ended, started_at=NOW, ended_at=NOW)
            counts.append(uow.rounds.consecutive_failures(task.serial))
    assert counts == [0, 1, 2, 0, 1, 2, 0]


def test_rounds_are_listed_newest_first_by_task_state_and_client(database: Database) -> None:
    with database.unit_of_work() as uow:
        first = factories.scheduled_round(uow, "a", "b")
        close_round(uow, first.round_id, NOW)
        second = open_round(uow, first.task_id, NOW)
        third = factories.scheduled_round(uow, "c")
        uow.commit()
    ids = [first.round_id, second.round_id, third.round_id]
    with database.reading() as store:
        page = store.rounds.page(Paging(1, 2))
        assert ([row.round_id for row in page.items], page.total) == (ids[:0:-1], 3)
        page = store.rounds.page(Paging(2, 2))
        assert ([row.round_id for row in page.items], page.total) == ([ids[0]], 3)
        assert _listed(store, task_id=first.task_id) == [ids[1], ids[0]]
        assert _listed(store, state=RoundState.FAILED) == [ids[0]]
        assert _listed(store, client_id="c") == [ids[2]]
        assert _listed(store, client_id="a", task_id=first.task_id, state=RoundState.SCHEDULED) == [ids[1]]
        assert _listed(store, client_id="nobody") == []
        assert {
            item.round_id for item in store.rounds.in_states(RoundState.SCHEDULED, RoundState.FAILED)
        } == set(ids)
        assert store.rounds.in_states(RoundState.AGGREGATED) == []


def test_candidates_take_the_place_of_those_who_were_asked(database: Database) -> None:
    with database.unit_of_work() as uow:
        round_ = _add(uow, factories.ready_task(uow), 1, window_ends_at=NOW + SECOND)
        uow.rounds.set_candidates(round_, [_candidate(0, "b"), _candidate(1, "a")])
        assert uow.rounds.candidates(round_.serial) == [
            Candidate(0, "b", "default", CandidateOutcome.ASKED),
            Candidate(1, "a", "default", CandidateOutcome.ASKED),
        ]
        selected = Candidate(0, "a", "default", CandidateOutcome.SELECTED, 1.5, 2.5, 3, 4, 5, None)
        refused = Candidate(1, "c", "default", CandidateOutcome.DEADLINE, 1.5, 2.5, 3, 4, 5, 2**62)
        uow.rounds.set_candidates(round_, [refused, selected])
        assert uow.rounds.candidates(round_.serial) == [selected, refused]
        assert uow.rounds.candidate(round_.serial, "c") == refused
        assert uow.rounds.candidate(round_.serial, "b") is None
        uow.rounds.set_candidates(round_, [])
        assert uow.rounds.candidates(round_.serial) == []


def test_serials_of_candidates_are_of_those_still_enrolled(database: Database) -> None:
    with database.unit_of_work() as uow:
        serials = factories.clients(uow, "a", "b", "c", "d")
        round_ = _add(uow, factories.ready_task(uow), 1)
        uow.rounds.set_candidates(round_, [_candidate(place, name) for place, name in enumerate("dbca")])
        uow.clients.remove("b")
        uow.clients.remove("d")
        again = factories.clients(uow, "d")["d"]
        found = uow.rounds.serials_of_candidates(round_.serial)
        assert found == {"d": again, "c": serials["c"], "a": serials["a"]}


def test_a_round_whose_clients_have_all_been_removed_can_still_be_scheduled(database: Database) -> None:
    with database.unit_of_work() as uow:
        factories.reporting_clients(uow, "a")
        round_ = open_round(uow, factories.ready_task(uow, report_window_s=5.0).task_id, NOW)
        uow.clients.remove("a")
        ended = end_report_window(uow, round_.round_id, NOW + SECOND)
        assert (ended.state, ended.outcome) == (RoundState.FAILED, "TOO_FEW_CLIENTS")
        (candidate,) = uow.rounds.candidates(round_.serial)
        assert candidate == Candidate(0, "a", "default", CandidateOutcome.NO_REPORT)


def test_slots_are_kept_in_upload_order(database: Database) -> None:
    with database.unit_of_work() as uow:
        round_ = _add(uow, factories.ready_task(uow), 1)
        uow.rounds.set_candidates(round_, [_candidate(0, "a"), _candidate(1, "b")])
        planned = [_slot("a", 2, upload_start_ns=2**61), _slot("b", 1, upload_start_ns=0)]
        uow.rounds.add_slots(round_, planned)
        uow.rounds.add_slots(round_, [])
        assert uow.rounds.slots(round_.serial) == planned[::-1]
        assert uow.rounds.slot(round_.serial, "a") == planned[0]
        assert uow.rounds.slot(round_.serial, "c") is None


def test_pending_slots_are_settled_by_what_had_come_for_them(database: Database) -> None:
    with database.unit_of_work() as uow:
        round_ = factories.scheduled_round(uow, *"abcd")
        other = open_round(uow, factories.ready_task(uow).task_id, NOW)
        factories.received_update(uow, round_, "a")
        uow.rounds.change_slot(round_.serial, "b", rejections=2, last_rejection="NaN")
        uow.rounds.change_slot(round_.serial, "c", outcome=SlotOutcome.LATE, rejections=1)
        assert uow.rounds.pending_slots(round_.serial) == 2
        uow.rounds.settle_slots(round_.serial)
        assert {slot.client_id: slot.outcome for slot in uow.rounds.slots(round_.serial)} == {
            "a": SlotOutcome.RECEIVED,
            "b": SlotOutcome.REJECTED,
            "c": SlotOutcome.LATE,
            "d": SlotOutcome.MISSED,
        }
        assert uow.rounds.pending_slots(round_.serial) == 0
        assert uow.rounds.pending_slots(other.serial) == 4


def test_the_history_of_clients_counts_the_rounds_of_the_task(database: Database) -> None:
    with database.unit_of_work() as uow:
        first = factories.scheduled_round(uow, "a", "b", "c")
        factories.received_update(uow, first, "a")
        uow.rounds.change_slot(first.serial, "b", outcome=SlotOutcome.LATE)
        task = uow.tasks.get(first.task_id)
        pending = uow.rounds.history(task.serial, ["c", "b", "a"])
        assert [column.tolist() for column in vars(pending).values()] == [[1, 1, 1], [0, 0, 1], [0, 1, 0]]
        uow.rounds.settle_slots(first.serial)
        _fail(uow, first)
        second = open_round(uow, first.task_id, NOW)
        factories.received_update(uow, second, "a")
        open_round(uow, factories.ready_task(uow).task_id, NOW)  # of another task
        history = uow.rounds.history(task.serial, ["a", "unknown", "b", "c"])
        assert history.selected.tolist() == [2, 0, 2, 2]
        assert history.received.tolist() == [2, 0, 0, 0]
        assert history.missed.tolist() == [0, 0, 1, 1]
        assert len(uow.rounds.history(task.serial, []).selected) == 0


def test_rejections_of_a_slot_count_up_to_the_limit_of_its_events(database: Database) -> None:
    with database.unit_of_work() as uow:
        round_ = factories.scheduled_round(uow, *"abc")
        assert uow.rounds.rejection_events(round_.serial) == 0
        uow.rounds.change_slot(round_.serial, "a", rejections=3)
        uow.rounds.change_slot(round_.serial, "b", rejections=MAX_REJECTION_EVENTS_PER_SLOT + 1)
        assert uow.rounds.rejection_events(round_.serial) == 3 + MAX_REJECTION_EVENTS_PER_SLOT


def test_a_client_sees_the_open_rounds_that_want_something_of_it(database: Database) -> None:
    with database.unit_of_work() as uow:
        serials = factories.reporting_clients(uow, "a", "b")
        later = NOW + timedelta(seconds=1)
        asking = open_round(uow, factories.ready_task(uow, report_window_s=5.0).task_id, later)
        collecting = open_round(uow, factories.ready_task(uow).task_id, NOW)
        over = open_round(uow, factories.ready_task(uow).task_id, NOW)
        cancel_task(uow, over.task_id, NOW)
        factories.clients(uow, "late")
        assert _wanting(uow, "a") == _wanting(uow, "b") == [asking.round_id, collecting.round_id]
        assert _wanting(uow, "late") == []

        factories.received_update(uow, collecting, "a")
        assert _wanting(uow, "a") == [asking.round_id]
        assert _wanting(uow, "b") == [asking.round_id, collecting.round_id]
        close_round(uow, collecting.round_id, NOW)
        assert _wanting(uow, "b") == [asking.round_id]
        elsewhere = factories.report(
            serials["a"], task_serial=factories.ready_task(uow).serial, received_at=later
        )
        uow.reports.add([elsewhere])
        assert _wanting(uow, "a") == [asking.round_id]
        assert sorted(uow.rounds.clients_to_notify(asking.round_id)) == ["a", "b"]
        uow.reports.add([factories.report(serial, received_at=later) for serial in serials.values()])
        assert _wanting(uow, "a") == _wanting(uow, "b") == []
        scheduled = end_report_window(uow, asking.round_id, later)
        assert sorted(uow.rounds.clients_to_notify(asking.round_id)) == ["a", "b"]
        assert scheduled.selected == 2
        factories.received_update(uow, scheduled, "a")
        assert (_wanting(uow, "a"), _wanting(uow, "b")) == ([], [asking.round_id])
        cancel_task(uow, asking.task_id, NOW)
        assert _wanting(uow, "b") == []


def test_updates_come_in_slot_order_whatever_the_order_they_arrived_in(database: Database) -> None:
    with database.unit_of_work() as uow:
        round_ = factories.scheduled_round(uow, *"abcd")
        in_order = [slot.client_id for slot in uow.rounds.slots(round_.serial)]
        for client_id in reversed(in_order[1:]):
            update = AcceptedUpdate(client_id, client_id * 64, 2**33, 2**33, NOW + SECOND)
            uow.updates.add(round_.serial, [update])
        assert [item.client_id for item in uow.updates.of_round(round_.serial)] == in_order[1:]
        last = in_order[3]
        assert uow.updates.of_client(round_.serial, last) == AcceptedUpdate(
            last, last * 64, 2**33, 2**33, NOW + SECOND
        )
        assert uow.updates.of_client(round_.serial, in_order[0]) is None
        with pytest.raises(IntegrityError):
            uow.updates.add(round_.serial, [AcceptedUpdate(last, "0" * 64, 1, 1, NOW)])


def _add(
    uow: UnitOfWork,
    task: Task,
    number: int,
    *,
    clients: int = 4,
    asked: int = 4,
    opened_at: datetime = NOW,
    window_ends_at: datetime | None = None,
) -> Round:
    round_ = uow.rounds.add(
        task.serial,
        number,
        terms_of_round(task.terms, 125_000),
        model_version=0,
        clients=clients,
        asked=asked,
        opened_at=opened_at,
        window_ends_at=window_ends_at,
    )
    uow.rounds.add_cells(round_, [RoundCell("default", 0, 10)])
    return round_


def _fail(uow: UnitOfWork, round_: Round) -> Round:
    return uow.rounds.change(round_, state=RoundState.FAILED, started_at=NOW, ended_at=NOW)


def _candidate(position: int, client_id: str) -> Candidate:
    return Candidate(position, client_id, "default", CandidateOutcome.ASKED)


def _slot(client_id: str, order: int, upload_start_ns: int) -> Slot:
    return Slot(
        client_id=client_id,
        cell_id="default",
        order=order,
        data_samples=2**33,
        update_ns=7,
        upload_ns=2**60,
        upload_start_ns=upload_start_ns,
        upload_end_ns=upload_start_ns + 2**60,
        window_start_ns=upload_start_ns + 5,
        window_end_ns=upload_start_ns + 5 + 2**60,
        time_slot_first=2**40,
        time_slot_count=2**41,
    )


def _listed(
    store: Store,
    *,
    task_id: str | None = None,
    state: RoundState | None = None,
    client_id: str | None = None,
) -> list[str]:
    page = store.rounds.page(Paging(1, 100), task_id=task_id, state=state, client_id=client_id)
    assert page.total == len(page.items)
    return [row.round_id for row in page.items]


def _wanting(store: Store, client_id: str) -> list[str]:
    return [item.round_id for item in store.rounds.open_for(client_id)]
