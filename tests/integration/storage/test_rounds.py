"""The rounds with their candidates, slots and updates in both kinds of database."""

from datetime import timedelta

import numpy as np
import pytest
from sqlalchemy.exc import IntegrityError

from services.domain.rounds import (
    AcceptedUpdate,
    Candidate,
    CandidateOutcome,
    Round,
    RoundState,
    Slot,
    SlotOutcome,
)
from services.domain.tasks import Task
from services.errors import RoundNotFoundError
from services.protocol.aggregation import close_round
from services.protocol.initialization import cancel_task
from services.protocol.resource_request import end_report_window, open_round
from services.storage.database import Database, Store, UnitOfWork
from services.storage.rows import Paging
from tests.integration.storage import given
from tests.integration.storage.given import NOW, SECOND


def test_a_new_round_is_kept_as_it_was_opened(database: Database) -> None:
    with database.unit_of_work() as uow:
        task = given.ready_task(uow)
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
    )
    assert kept == opened == expected


def test_an_unknown_round_is_not_found(database: Database) -> None:
    with database.reading() as store, pytest.raises(RoundNotFoundError, match="'nothing'"):
        store.rounds.get("nothing")


def test_the_database_itself_refuses_a_second_open_round_of_a_task(database: Database) -> None:
    with database.unit_of_work() as uow:
        task, other = given.ready_task(uow), given.ready_task(uow)
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
        task = given.ready_task(uow)
        assert uow.rounds.last_of(task.serial) is None
        assert uow.rounds.open_of(task.serial) is None
        first = _fail(uow, _add(uow, task, 1))
        assert uow.rounds.last_of(task.serial) == first
        assert uow.rounds.open_of(task.serial) is None
        second = _add(uow, task, 2)
        _add(uow, given.ready_task(uow), 1)
        assert uow.rounds.of_task(task.serial) == [first, second]
        assert uow.rounds.open_of(task.serial) == uow.rounds.last_of(task.serial) == second


def test_rounds_are_listed_newest_first_by_task_state_and_client(database: Database) -> None:
    with database.unit_of_work() as uow:
        first = given.scheduled_round(uow, "a", "b")
        close_round(uow, first.round_id, NOW)
        second = open_round(uow, first.task_id, NOW)
        third = given.scheduled_round(uow, "c")
        uow.commit()
    ids = [first.round_id, second.round_id, third.round_id]
    with database.reading() as store:
        page = store.rounds.page(Paging(1, 2))
        assert ([one.round_id for one in page.items], page.total) == (ids[:0:-1], 3)
        page = store.rounds.page(Paging(2, 2))
        assert ([one.round_id for one in page.items], page.total) == ([ids[0]], 3)
        assert _listed(store, task_id=first.task_id) == [ids[1], ids[0]]
        assert _listed(store, state=RoundState.FAILED) == [ids[0]]
        assert _listed(store, client_id="c") == [ids[2]]
        assert _listed(store, client_id="a", task_id=first.task_id, state=RoundState.SCHEDULED) == [ids[1]]
        assert _listed(store, client_id="nobody") == []
        assert {
            one.round_id for one in store.rounds.in_states(RoundState.SCHEDULED, RoundState.FAILED)
        } == set(ids)
        assert store.rounds.in_states(RoundState.AGGREGATED) == []


def test_candidates_take_the_place_of_those_who_were_asked(database: Database) -> None:
    with database.unit_of_work() as uow:
        round_ = _add(uow, given.ready_task(uow), 1, window_ends_at=NOW + SECOND)
        uow.rounds.set_candidates(round_, [_candidate(0, "b"), _candidate(1, "a")])
        assert uow.rounds.candidates(round_.serial) == [
            Candidate(0, "b", CandidateOutcome.ASKED),
            Candidate(1, "a", CandidateOutcome.ASKED),
        ]
        selected = Candidate(0, "a", CandidateOutcome.SELECTED, 1.5, 2.5, 3, 4, 5, None)
        refused = Candidate(1, "c", CandidateOutcome.DEADLINE, 1.5, 2.5, 3, 4, 5, 2**62)
        uow.rounds.set_candidates(round_, [refused, selected])
        assert uow.rounds.candidates(round_.serial) == [selected, refused]
        assert uow.rounds.candidate(round_.serial, "c") == refused
        assert uow.rounds.candidate(round_.serial, "b") is None
        uow.rounds.set_candidates(round_, [])
        assert uow.rounds.candidates(round_.serial) == []


def test_those_asked_are_found_in_the_order_drawn_apart_from_those_removed(database: Database) -> None:
    with database.unit_of_work() as uow:
        serials = given.clients(uow, "a", "b", "c", "d")
        round_ = _add(uow, given.ready_task(uow), 1)
        uow.rounds.set_candidates(round_, [_candidate(place, name) for place, name in enumerate("dbca")])
        uow.clients.remove("b")
        uow.clients.remove("d")
        again = given.clients(uow, "d")["d"]
        found, enrolled, removed = uow.rounds.asked_clients(round_.serial)
        assert (enrolled, removed) == (["d", "c", "a"], ["b"])
        assert found.tolist() == [again, serials["c"], serials["a"]]
        assert found.dtype == np.int64


def test_a_round_whose_clients_have_all_been_removed_can_still_be_scheduled(database: Database) -> None:
    with database.unit_of_work() as uow:
        given.reporting_clients(uow, "a")
        round_ = open_round(uow, given.ready_task(uow, report_window_s=5.0).task_id, NOW)
        uow.clients.remove("a")
        ended = end_report_window(uow, round_.round_id, NOW + SECOND)
        assert (ended.state, ended.outcome) == (RoundState.FAILED, "TOO_FEW_CLIENTS")
        assert uow.rounds.candidates(round_.serial) == [Candidate(0, "a", CandidateOutcome.NO_REPORT)]


def test_slots_are_kept_in_upload_order(database: Database) -> None:
    with database.unit_of_work() as uow:
        round_ = _add(uow, given.ready_task(uow), 1)
        uow.rounds.set_candidates(round_, [_candidate(0, "a"), _candidate(1, "b")])
        planned = [_slot("a", 2, upload_start_ns=2**61), _slot("b", 1, upload_start_ns=0)]
        uow.rounds.add_slots(round_, planned)
        uow.rounds.add_slots(round_, [])
        assert uow.rounds.slots(round_.serial) == planned[::-1]
        assert uow.rounds.slot(round_.serial, "a") == planned[0]
        assert uow.rounds.slot(round_.serial, "c") is None


def test_pending_slots_are_settled_by_what_had_come_for_them(database: Database) -> None:
    with database.unit_of_work() as uow:
        round_ = given.scheduled_round(uow, *"abcd")
        other = open_round(uow, given.ready_task(uow).task_id, NOW)
        given.received_update(uow, round_, "a")
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


def test_a_client_sees_the_open_rounds_that_want_something_of_it(database: Database) -> None:
    with database.unit_of_work() as uow:
        serials = given.reporting_clients(uow, "a", "b")
        later = NOW + timedelta(seconds=1)
        asking = open_round(uow, given.ready_task(uow, report_window_s=5.0).task_id, later)
        collecting = open_round(uow, given.ready_task(uow).task_id, NOW)
        over = open_round(uow, given.ready_task(uow).task_id, NOW)
        cancel_task(uow, over.task_id, NOW)
        given.clients(uow, "late")
        assert _wanting(uow, "a") == _wanting(uow, "b") == [asking.round_id, collecting.round_id]
        assert _wanting(uow, "late") == []

        given.received_update(uow, collecting, "a")
        assert _wanting(uow, "a") == [asking.round_id]
        assert _wanting(uow, "b") == [asking.round_id, collecting.round_id]
        close_round(uow, collecting.round_id, NOW)
        assert _wanting(uow, "b") == [asking.round_id]
        elsewhere = given.report(serials["a"], task_serial=given.ready_task(uow).serial, received_at=later)
        uow.reports.add([elsewhere])
        assert _wanting(uow, "a") == [asking.round_id]
        assert sorted(uow.rounds.wanted_clients(asking.round_id)) == ["a", "b"]
        uow.reports.add([given.report(serial, received_at=later) for serial in serials.values()])
        assert _wanting(uow, "a") == _wanting(uow, "b") == []
        scheduled = end_report_window(uow, asking.round_id, later)
        assert sorted(uow.rounds.wanted_clients(asking.round_id)) == ["a", "b"]
        assert scheduled.selected == 2
        given.received_update(uow, scheduled, "a")
        assert (_wanting(uow, "a"), _wanting(uow, "b")) == ([], [asking.round_id])
        cancel_task(uow, asking.task_id, NOW)
        assert _wanting(uow, "b") == []


def test_updates_come_in_slot_order_whatever_the_order_they_arrived_in(database: Database) -> None:
    with database.unit_of_work() as uow:
        round_ = given.scheduled_round(uow, *"abcd")
        in_order = [slot.client_id for slot in uow.rounds.slots(round_.serial)]
        for client_id in reversed(in_order[1:]):
            update = AcceptedUpdate(client_id, client_id * 64, 2**33, 2**33, NOW + SECOND)
            uow.updates.add(round_.serial, [update])
        assert [one.client_id for one in uow.updates.of_round(round_.serial)] == in_order[1:]
        last = in_order[3]
        assert uow.updates.of_client(round_.serial, last) == AcceptedUpdate(
            last, last * 64, 2**33, 2**33, NOW + SECOND
        )
        assert uow.updates.of_client(round_.serial, in_order[0]) is None
        with pytest.raises(IntegrityError):
            uow.updates.add(round_.serial, [AcceptedUpdate(last, "0" * 64, 1, 1, NOW)])


def _add(uow: UnitOfWork, task: Task, number: int, **changes: object) -> Round:
    values: dict[str, object] = {
        "model_version": 0,
        "clients": 4,
        "asked": 4,
        "opened_at": NOW,
        "active_at": NOW,
        "window_ends_at": None,
    }
    return uow.rounds.add(task.serial, number, **(values | changes))


def _fail(uow: UnitOfWork, round_: Round) -> Round:
    return uow.rounds.change(round_, state=RoundState.FAILED, started_at=NOW, ended_at=NOW)


def _candidate(position: int, client_id: str) -> Candidate:
    return Candidate(position, client_id, CandidateOutcome.ASKED)


def _slot(client_id: str, order: int, upload_start_ns: int) -> Slot:
    return Slot(
        client_id=client_id,
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
    return [one.round_id for one in page.items]


def _wanting(store: Store, client_id: str) -> list[str]:
    return [one.round_id for one in store.rounds.open_for(client_id)]
