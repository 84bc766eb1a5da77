"""Uploads of a simulated round: who may upload, when, and how often."""

from datetime import timedelta

import pytest

from services.domain.rounds import Round, RoundState, Slot, SlotOutcome
from services.domain.tasks import Clock, SlotEnforcement
from services.errors import (
    DeadlinePassedError,
    ElapsedTimeError,
    NotSelectedError,
    RoundNotCollectingError,
    RoundNotFoundError,
    SlotClosedError,
    SlotNotOpenError,
    UpdateExistsError,
)
from services.protocol.aggregation import close_round
from services.protocol.upload import ReceivedUpdate, UploadTiming, accept_updates, admit_upload, record_late
from services.storage.database import UnitOfWork
from services.storage.model_store import Blob
from tests.integration.storage import factories
from tests.integration.storage.factories import MODEL, NOW, SECOND, UPDATE
from tests.unit.protocol.side_effects import event_kinds

OTHER = Blob("c" * 64, 125_000)
IN_TIME = UploadTiming(NOW, elapsed_s=10.0, update_s=2.0, upload_s=3.0)


def _accept(uow: UnitOfWork, round_: Round, *received: ReceivedUpdate) -> list[object]:
    return list(accept_updates(uow, round_.round_id, received, NOW + SECOND))


def _received(client_id: str, blob: Blob = UPDATE, arrival: UploadTiming = IN_TIME) -> ReceivedUpdate:
    return ReceivedUpdate(client_id, blob, 100, arrival, NOW + SECOND)


def _slot(uow: UnitOfWork, round_: Round, client_id: str = "a") -> Slot:
    slot = uow.rounds.slot(round_.serial, client_id)
    assert slot is not None
    return slot


def test_an_admitted_upload_is_held_against_round_slot_and_model(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a")
    expected = admit_upload(uow, round_.round_id, "a", IN_TIME)
    assert (expected.round_, expected.slot) == (round_, _slot(uow, round_))
    assert expected.task == uow.tasks.get(round_.task_id)
    assert expected.model.digest == MODEL.digest


def test_the_first_update_begins_the_collection_and_the_last_one_ends_it(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a", "b")
    assert _accept(uow, round_, _received("a")) == [True]
    collecting = uow.rounds.get(round_.round_id)
    assert (collecting.state, collecting.received) == (RoundState.COLLECTING, 1)
    slot = _slot(uow, round_)
    assert (slot.outcome, slot.uploaded_at, slot.elapsed_s) == (SlotOutcome.RECEIVED, NOW + SECOND, 10.0)
    assert (slot.actual_update_s, slot.actual_upload_s) == (2.0, 3.0)
    assert _accept(uow, round_, _received("b")) == [True]
    assert uow.rounds.get(round_.round_id).state is RoundState.AGGREGATING
    assert [update.client_id for update in uow.updates.of_round(round_.serial)] == ["a", "b"]
    expected = ["update.received", "round.collecting", "update.received", "round.aggregating"]
    assert event_kinds(uow)[-4:] == expected


def test_the_same_update_again_changes_nothing_and_another_is_refused(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a", "b")
    outcomes = _accept(uow, round_, _received("a"), _received("a"), _received("a", OTHER))
    assert outcomes[:2] == [True, False]
    assert isinstance(outcomes[2], UpdateExistsError)
    again = _accept(uow, round_, _received("a"), _received("a", OTHER))
    assert again[0] is False
    assert isinstance(again[1], UpdateExistsError)
    close_round(uow, round_.round_id, NOW)
    late = UploadTiming(NOW, elapsed_s=500.0)
    assert _accept(uow, round_, _received("a", arrival=late)) == [False]
    assert admit_upload(uow, round_.round_id, "a", late).slot.outcome is SlotOutcome.RECEIVED
    assert uow.rounds.get(round_.round_id).received == 1


def test_only_selected_clients_upload_to_a_round_that_exists(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a")
    factories.clients(uow, "b")
    with pytest.raises(NotSelectedError, match="'b'"):
        admit_upload(uow, round_.round_id, "b", IN_TIME)
    with pytest.raises(RoundNotFoundError):
        admit_upload(uow, "nothing", "a", IN_TIME)


@pytest.mark.parametrize(
    ("clock", "arrival"),
    [
        (Clock.SIMULATED, UploadTiming(NOW)),
        (Clock.WALL, UploadTiming(NOW, elapsed_s=1.0)),
        (Clock.WALL, UploadTiming(NOW, upload_s=1.0)),
    ],
)
def test_round_time_is_sent_on_the_simulated_clock_and_only_there(
    uow: UnitOfWork, clock: Clock, arrival: UploadTiming
) -> None:
    round_ = factories.scheduled_round(uow, "a", clock=clock)
    with pytest.raises(ElapsedTimeError):
        admit_upload(uow, round_.round_id, "a", arrival)


def test_after_its_end_a_round_takes_no_update(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a")
    close_round(uow, round_.round_id, NOW)
    with pytest.raises(RoundNotCollectingError, match="failed"):
        admit_upload(uow, round_.round_id, "a", IN_TIME)
    (outcome,) = _accept(uow, round_, _received("a"))
    assert isinstance(outcome, RoundNotCollectingError)
    assert uow.updates.of_round(round_.serial) == []


@pytest.mark.parametrize(
    ("elapsed_s", "refusal"),
    [(1.4, SlotNotOpenError), (1.5, None), (3.5, None), (3.6, SlotClosedError), (180.0, DeadlinePassedError)],
)
def test_a_strict_slot_is_kept(uow: UnitOfWork, elapsed_s: float, refusal: type[Exception] | None) -> None:
    strict = {"slot_enforcement": SlotEnforcement.STRICT, "slot_grace_s": 0.5}
    round_ = factories.scheduled_round(uow, "a", **strict)  # its window is from 2 s to 3 s
    arrival = UploadTiming(NOW, elapsed_s=elapsed_s)
    (outcome,) = _accept(uow, round_, _received("a", arrival=arrival))
    assert outcome is True if refusal is None else isinstance(outcome, refusal)


def test_a_late_update_is_the_outcome_of_its_slot(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a", "b")
    late = UploadTiming(NOW, elapsed_s=200.0, update_s=190.0)
    for _ in range(2):
        record_late(uow, round_.round_id, "a", late, NOW + SECOND)
    record_late(uow, round_.round_id, "stranger", late, NOW + SECOND)
    slot = _slot(uow, round_)
    assert (slot.outcome, slot.elapsed_s, slot.actual_update_s) == (SlotOutcome.LATE, 200.0, 190.0)
    assert event_kinds(uow).count("update.late") == 1
    with pytest.raises(DeadlinePassedError, match="200 s"):
        admit_upload(uow, round_.round_id, "a", IN_TIME)
    record_late(uow, round_.round_id, "b", late, NOW + SECOND)
    closed = uow.rounds.get(round_.round_id)
    assert (closed.state, closed.outcome) == (RoundState.FAILED, "TOO_FEW_UPDATES")


def test_what_came_after_the_end_of_the_round_is_late_and_what_was_received_stays(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a", "b")
    _accept(uow, round_, _received("a"))
    close_round(uow, round_.round_id, NOW)
    for client_id in ("a", "b"):
        record_late(uow, round_.round_id, client_id, UploadTiming(NOW, elapsed_s=200.0), NOW + SECOND)
    assert _slot(uow, round_, "a").outcome is SlotOutcome.RECEIVED
    assert _slot(uow, round_, "b").outcome is SlotOutcome.LATE
    assert uow.rounds.get(round_.round_id).state is RoundState.AGGREGATING


def test_on_the_wall_clock_the_service_says_what_time_it_is(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a", clock=Clock.WALL)
    received = ReceivedUpdate("a", UPDATE, 100, UploadTiming(NOW + SECOND), NOW + timedelta(seconds=2.5))
    assert accept_updates(uow, round_.round_id, [received], NOW + 3 * SECOND) == [True]
    slot = _slot(uow, round_)
    assert (slot.elapsed_s, slot.actual_upload_s) == (2.5, 1.5)
