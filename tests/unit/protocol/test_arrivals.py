"""Uploads that have arrived and are not yet checked: judged by their arrival, and waited for."""

from datetime import timedelta

import pytest

from services.domain.rounds import Round, RoundState, Slot, SlotOutcome
from services.domain.tasks import Clock, SlotEnforcement
from services.errors import DeadlinePassedError, RoundNotCollectingError, SlotClosedError
from services.protocol.aggregation import ARRIVALS_KNOWN_AFTER, close_if_overdue, close_round
from services.protocol.upload import (
    ReceivedUpdate,
    UploadTiming,
    accept_updates,
    admit_upload,
    check_arrival,
    record_arrivals,
    record_late,
    record_rejection,
    withdraw_arrival,
)
from services.storage.database import UnitOfWork
from tests.integration.storage import factories
from tests.integration.storage.factories import NOW, SETTLE, UPDATE

DEADLINE = NOW + timedelta(seconds=180)
MOMENT = timedelta(microseconds=1)
IN_TIME = DEADLINE - MOMENT
BEGAN = UploadTiming(NOW)


def _round(uow: UnitOfWork, **terms: object) -> Round:
    return factories.scheduled_round(uow, "a", "b", clock=Clock.WALL, **terms)


def _slot(uow: UnitOfWork, round_: Round, client_id: str = "a") -> Slot:
    slot = uow.rounds.slot(round_.serial, client_id)
    assert slot is not None
    return slot


def _is_closed(uow: UnitOfWork, round_: Round, after: timedelta, *, has_unrecorded: bool = False) -> bool:
    """Whether the round is closed, when the reconciler has looked at it so long after its deadline."""
    close_if_overdue(uow, round_.round_id, DEADLINE + after, SETTLE, has_unrecorded=has_unrecorded)
    return uow.rounds.get(round_.round_id).state not in (RoundState.SCHEDULED, RoundState.COLLECTING)


def test_an_update_that_arrived_in_time_is_accepted_when_it_is_checked_after_the_deadline(
    uow: UnitOfWork,
) -> None:
    round_ = _round(uow)
    record_arrivals(uow, round_.round_id, {"a": IN_TIME}, IN_TIME)
    assert (_slot(uow, round_).outcome, _slot(uow, round_).uploaded_at) == (SlotOutcome.PENDING, IN_TIME)
    assert not _is_closed(uow, round_, SETTLE - MOMENT)
    received = ReceivedUpdate("a", UPDATE, 100, BEGAN, IN_TIME)
    assert accept_updates(uow, round_.round_id, [received], DEADLINE + SETTLE - MOMENT) == [True]
    slot = _slot(uow, round_)
    assert (slot.outcome, slot.uploaded_at) == (SlotOutcome.RECEIVED, IN_TIME)
    assert slot.elapsed_s == slot.actual_upload_s == pytest.approx(180, abs=1e-5)
    assert _is_closed(uow, round_, SETTLE - MOMENT)
    closed = uow.rounds.get(round_.round_id)
    assert (closed.state, closed.received) == (RoundState.AGGREGATING, 1)
    assert _slot(uow, round_, "b").outcome is SlotOutcome.MISSED


def test_an_update_that_arrives_at_the_deadline_is_late(uow: UnitOfWork) -> None:
    round_ = _round(uow)
    expected = admit_upload(uow, round_.round_id, "a", BEGAN)
    check_arrival(expected, BEGAN, IN_TIME)
    with pytest.raises(DeadlinePassedError):
        check_arrival(expected, BEGAN, DEADLINE)
    (outcome,) = accept_updates(
        uow, round_.round_id, [ReceivedUpdate("a", UPDATE, 100, BEGAN, DEADLINE)], DEADLINE
    )
    assert isinstance(outcome, DeadlinePassedError)


def test_an_update_that_arrives_after_its_strict_slot_is_late(uow: UnitOfWork) -> None:
    round_ = _round(uow, slot_enforcement=SlotEnforcement.STRICT)
    slot = _slot(uow, round_)
    opens, closes = (timedelta(microseconds=ns // 1000) for ns in (slot.window_start_ns, slot.window_end_ns))
    arrival = UploadTiming(NOW + opens)
    expected = admit_upload(uow, round_.round_id, "a", arrival)
    check_arrival(expected, arrival, NOW + closes)
    late_at = NOW + closes + MOMENT
    record_arrivals(uow, round_.round_id, {"a": late_at}, late_at)
    with pytest.raises(SlotClosedError):
        check_arrival(expected, arrival, late_at)
    record_late(uow, round_.round_id, "a", arrival, late_at)
    assert _slot(uow, round_).outcome is SlotOutcome.LATE, "its own arrival does not keep it from being late"


def test_a_round_waits_a_bounded_time_for_an_update_that_has_arrived(uow: UnitOfWork) -> None:
    """As when the process that received it was killed."""
    round_ = _round(uow)
    record_arrivals(uow, round_.round_id, {"a": IN_TIME}, IN_TIME)
    assert not _is_closed(uow, round_, SETTLE - MOMENT)
    assert _is_closed(uow, round_, SETTLE)
    assert (_slot(uow, round_).outcome, _slot(uow, round_).uploaded_at) == (SlotOutcome.MISSED, IN_TIME)
    received = ReceivedUpdate("a", UPDATE, 100, BEGAN, IN_TIME)
    (outcome,) = accept_updates(uow, round_.round_id, [received], DEADLINE + SETTLE)
    assert isinstance(outcome, RoundNotCollectingError)


def test_a_round_is_not_closed_before_other_processes_can_have_recorded_arrivals(uow: UnitOfWork) -> None:
    round_ = _round(uow)
    assert not _is_closed(uow, round_, -MOMENT)
    assert not _is_closed(uow, round_, ARRIVALS_KNOWN_AFTER - MOMENT)
    assert not _is_closed(uow, round_, SETTLE - MOMENT, has_unrecorded=True)
    assert _is_closed(uow, round_, ARRIVALS_KNOWN_AFTER)


def test_a_short_time_to_settle_bounds_every_wait(uow: UnitOfWork) -> None:
    round_ = _round(uow)
    record_arrivals(uow, round_.round_id, {"a": IN_TIME}, IN_TIME)
    settle = ARRIVALS_KNOWN_AFTER / 2
    close_if_overdue(uow, round_.round_id, DEADLINE + settle, settle, has_unrecorded=True)
    assert uow.rounds.get(round_.round_id).state is RoundState.FAILED


def test_nobody_waits_for_an_update_that_was_rejected_or_could_not_be_stored(uow: UnitOfWork) -> None:
    round_ = _round(uow)
    record_arrivals(uow, round_.round_id, {"a": IN_TIME, "b": IN_TIME}, IN_TIME)
    now = DEADLINE + ARRIVALS_KNOWN_AFTER
    record_rejection(uow, round_.round_id, "a", "not finite", now, arrived_at=IN_TIME)
    assert not _is_closed(uow, round_, ARRIVALS_KNOWN_AFTER)
    withdraw_arrival(uow, round_.round_id, "b", IN_TIME)
    assert _is_closed(uow, round_, ARRIVALS_KNOWN_AFTER)
    assert (_slot(uow, round_, "a").outcome, _slot(uow, round_, "a").uploaded_at) == (
        SlotOutcome.REJECTED,
        None,
    )
    assert (_slot(uow, round_, "b").outcome, _slot(uow, round_, "b").uploaded_at) == (
        SlotOutcome.MISSED,
        None,
    )


def test_the_end_of_one_upload_says_nothing_of_another_of_the_same_client(uow: UnitOfWork) -> None:
    round_ = _round(uow)
    earlier = IN_TIME - MOMENT
    record_arrivals(uow, round_.round_id, {"a": earlier}, earlier)
    record_arrivals(uow, round_.round_id, {"a": IN_TIME}, IN_TIME)
    record_rejection(uow, round_.round_id, "a", "not finite", IN_TIME, arrived_at=earlier)
    record_rejection(uow, round_.round_id, "a", "too large", IN_TIME)
    withdraw_arrival(uow, round_.round_id, "a", earlier)
    record_late(uow, round_.round_id, "a", UploadTiming(DEADLINE), DEADLINE)
    assert (_slot(uow, round_).outcome, _slot(uow, round_).uploaded_at) == (SlotOutcome.PENDING, IN_TIME)
    received = ReceivedUpdate("a", UPDATE, 100, BEGAN, IN_TIME)
    assert accept_updates(uow, round_.round_id, [received], DEADLINE) == [True]


def test_an_arrival_is_recorded_in_a_pending_slot_only(uow: UnitOfWork) -> None:
    round_ = _round(uow)
    record_late(uow, round_.round_id, "a", UploadTiming(DEADLINE), DEADLINE)
    record_arrivals(uow, round_.round_id, {"a": IN_TIME, "stranger": IN_TIME}, IN_TIME)
    assert _slot(uow, round_).uploaded_at == DEADLINE
    close_round(uow, round_.round_id, DEADLINE)
    record_arrivals(uow, round_.round_id, {"b": IN_TIME}, IN_TIME)
    assert _slot(uow, round_, "b").uploaded_at is None
    withdraw_arrival(uow, round_.round_id, "stranger", IN_TIME)


def test_an_operator_who_closes_a_round_does_not_wait(uow: UnitOfWork) -> None:
    round_ = _round(uow)
    given_at = NOW + timedelta(seconds=20)
    accept_updates(uow, round_.round_id, [ReceivedUpdate("b", UPDATE, 100, BEGAN, given_at)], given_at)
    record_arrivals(uow, round_.round_id, {"a": given_at}, given_at)
    assert close_round(uow, round_.round_id, given_at).state is RoundState.AGGREGATING
    assert _slot(uow, round_).outcome is SlotOutcome.MISSED
