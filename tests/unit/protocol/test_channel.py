"""Grants of the channel as they are stored: on both clocks, with lapses, refusals and replacements."""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest

from services.domain.channel import ChannelState
from services.domain.nanoseconds import to_ns
from services.domain.rounds import CandidateOutcome, Round, RoundState, Slot, SlotOutcome
from services.domain.tasks import Clock, Dispatch
from services.errors import (
    ChannelNotGrantedError,
    DeadlinePassedError,
    ElapsedTimeError,
    NotOnReadyError,
    NotSelectedError,
    RoundNotCollectingError,
    TimeNotMonotonicError,
)
from services.protocol.aggregation import close_round, drop_client
from services.protocol.ready import ChannelNews, channel_news, dispatch_round, is_dispatch_due, mark_ready
from services.protocol.upload import (
    ReceivedUpdate,
    UploadTiming,
    accept_updates,
    decline_slot,
    record_arrivals,
    record_late,
    record_rejection,
    start_upload,
    withdraw_arrival,
)
from services.storage.database import UnitOfWork
from tests.integration.storage import factories
from tests.integration.storage.factories import NOW, SECOND, UPDATE
from tests.unit.protocol.side_effects import event_kinds

ON_READY = {"dispatch": Dispatch.ON_READY}
ON_WALL: Mapping[str, Any] = {**ON_READY, "clock": Clock.WALL}


def _slot(uow: UnitOfWork, round_: Round, client_id: str) -> Slot:
    slot = uow.rounds.slot(round_.serial, client_id)
    assert slot is not None
    return slot


def _ready(
    uow: UnitOfWork, round_: Round, client_id: str, at_s: float, throughput_bps: float | None = None
) -> ChannelNews:
    return mark_ready(uow, round_.round_id, client_id, NOW, throughput_bps=throughput_bps, elapsed_s=at_s)


def _ready_on_wall(uow: UnitOfWork, round_: Round, client_id: str, at_s: float = 0.0) -> ChannelNews:
    return mark_ready(uow, round_.round_id, client_id, NOW + timedelta(seconds=at_s))


def _upload(
    uow: UnitOfWork, round_: Round, client_id: str, ends_s: float, upload_s: float | None = None
) -> bool | Exception:
    arrival = UploadTiming(NOW, elapsed_s=ends_s, upload_s=upload_s)
    (outcome,) = accept_updates(
        uow, round_.round_id, [ReceivedUpdate(client_id, UPDATE, 100, arrival, NOW)], NOW
    )
    return outcome


def _upload_on_wall(uow: UnitOfWork, round_: Round, client_id: str, at_s: float) -> bool | Exception:
    at = NOW + timedelta(seconds=at_s)
    received = ReceivedUpdate(client_id, UPDATE, 100, UploadTiming(at), at)
    (outcome,) = accept_updates(uow, round_.round_id, [received], at)
    return outcome


def _with_waiting_candidate(uow: UnitOfWork, **terms: object) -> Round:
    """A round with the selected clients a and b, and a candidate c for which there was no time.

    Each needs 3 s: a second to download, to update and to upload. With all three it takes 5 s.
    """
    return factories.scheduled_round(uow, "a", "b", "c", round_deadline_s=5.0, **{**ON_READY, **terms})


def test_the_channel_is_granted_to_one_client_at_a_time(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a", "b", "c", **ON_READY)
    first = _ready(uow, round_, "b", 3.0)
    assert (first.state, [grant.client_id for grant in first.grants]) == (ChannelState.GRANTED, ["b"])
    waiting = _ready(uow, round_, "c", 3.5)
    assert (waiting.state, waiting.grants) == (ChannelState.WAITING, [])
    assert _ready(uow, round_, "a", 3.5).state is ChannelState.WAITING
    assert _upload(uow, round_, "b", 4.0) is True
    task = uow.tasks.get(round_.task_id)
    (grant,) = channel_news(uow, task, uow.rounds.get(round_.round_id), "b").grants
    assert (grant.client_id, grant.granted_ns) == ("a", to_ns(4.0))
    assert _upload(uow, round_, "a", 5.0) is True
    assert _upload(uow, round_, "c", 6.0) is True
    assert uow.rounds.get(round_.round_id).state is RoundState.AGGREGATING
    assert event_kinds(uow).count("channel.granted") == 3


def test_the_same_ready_call_again_answers_the_same(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a", "b", **ON_READY)
    first = _ready(uow, round_, "a", 3.0)
    assert _ready(uow, round_, "a", 3.0) == first
    assert event_kinds(uow).count("channel.granted") == 1


def test_an_upload_without_a_grant(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a", "b", **ON_READY)
    _ready(uow, round_, "a", 3.0)
    assert isinstance(_upload(uow, round_, "b", 3.5), ChannelNotGrantedError)
    assert _upload(uow, round_, "a", 4.0) is True
    overlapping = _upload(uow, round_, "b", 4.5, upload_s=1.0)
    assert isinstance(overlapping, ChannelNotGrantedError)
    assert _upload(uow, round_, "b", 5.0, upload_s=1.0) is True  # the channel was free all the time
    assert _slot(uow, round_, "b").granted_ns == to_ns(4.0)


def test_simulated_time_never_goes_back(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a", "b", **ON_READY)
    _ready(uow, round_, "a", 3.0)
    with pytest.raises(TimeNotMonotonicError, match="come to 3 s"):
        _ready(uow, round_, "b", 2.9)
    assert isinstance(_upload(uow, round_, "a", 2.9), TimeNotMonotonicError)
    assert _ready(uow, round_, "b", 3.0).state is ChannelState.WAITING


def test_ready_calls_that_are_refused(uow: UnitOfWork) -> None:
    planned = factories.scheduled_round(uow, "p")
    with pytest.raises(NotOnReadyError):
        _ready(uow, planned, "p", 1.0)
    round_ = factories.scheduled_round(uow, "a", "b", labels={}, **ON_READY)
    with pytest.raises(NotSelectedError):
        _ready(uow, round_, "stranger", 1.0)
    with pytest.raises(ElapsedTimeError):
        mark_ready(uow, round_.round_id, "a", NOW)
    with pytest.raises(DeadlinePassedError):
        _ready(uow, round_, "a", 180.0)
    _ready(uow, round_, "a", 3.0)
    _upload(uow, round_, "a", 4.0)
    with pytest.raises(RoundNotCollectingError, match="received"):
        _ready(uow, round_, "a", 5.0)
    close_round(uow, round_.round_id, NOW)
    with pytest.raises(RoundNotCollectingError, match="aggregating"):
        _ready(uow, round_, "b", 5.0)
    assert _slot(uow, round_, "b").grant_expires_ns is None


def test_elapsed_time_is_for_simulated_clocks(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a", **ON_WALL)
    with pytest.raises(ElapsedTimeError):
        _ready(uow, round_, "a", 3.0)


def test_a_grant_lapses_after_twice_the_expected_upload(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a", "b", **ON_READY)
    _ready(uow, round_, "a", 3.0)
    _ready(uow, round_, "b", 3.1)
    late = _upload(uow, round_, "a", 5.1)
    assert isinstance(late, ChannelNotGrantedError)
    assert _slot(uow, round_, "b").granted_ns == to_ns(5.0)
    lapsed = _slot(uow, round_, "a")
    assert (lapsed.ready_ns, lapsed.lapses, lapsed.outcome) == (None, 1, SlotOutcome.PENDING)
    assert _ready(uow, round_, "a", 5.2).state is ChannelState.WAITING
    assert _upload(uow, round_, "b", 6.0) is True
    assert _slot(uow, round_, "a").granted_ns == to_ns(6.0)


def test_a_client_is_refused_by_its_throughput_only(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a", "b", **ON_READY)
    slow = 1e6 / 200  # 200 s for an upload that was planned for one
    refused = _ready(uow, round_, "a", 3.0, slow)
    assert (refused.state, refused.grants) == (ChannelState.REFUSED, [])
    assert _ready(uow, round_, "a", 4.0).state is ChannelState.REFUSED
    assert _slot(uow, round_, "a").outcome is SlotOutcome.REFUSED
    assert _ready(uow, round_, "b", 5.0).state is ChannelState.GRANTED
    assert "channel.refused" in event_kinds(uow)


def test_a_round_ends_when_its_last_client_is_refused(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a", **ON_READY)
    _ready(uow, round_, "a", 3.0, 1.0)
    assert uow.rounds.get(round_.round_id).outcome == "TOO_FEW_UPDATES"


def _candidate_outcome(uow: UnitOfWork, round_: Round, client_id: str) -> CandidateOutcome:
    candidate = uow.rounds.candidate(round_.serial, client_id)
    assert candidate is not None
    return candidate.outcome


def _decline(uow: UnitOfWork, round_: Round) -> None:
    decline_slot(uow, round_.round_id, "a", "no", NOW)


def _remove(uow: UnitOfWork, round_: Round) -> None:
    drop_client(uow, "a", round_.round_id, NOW)


def _refuse(uow: UnitOfWork, round_: Round) -> None:
    assert _ready(uow, round_, "a", 0.5, 1.0).replacements == ["c"]


def _lapse(uow: UnitOfWork, round_: Round) -> None:
    _ready(uow, round_, "a", 0.1, 1e8)
    assert _ready(uow, round_, "b", 0.2).replacements == ["c"]


@pytest.mark.parametrize("fail", [_decline, _remove, _refuse, _lapse])
def test_a_client_that_fails_is_replaced(uow: UnitOfWork, fail: Any) -> None:
    round_ = _with_waiting_candidate(uow)
    assert round_.selected == 2
    assert _candidate_outcome(uow, round_, "c") is CandidateOutcome.DEADLINE
    fail(uow, round_)
    slot = _slot(uow, round_, "c")
    assert (slot.replaces, slot.order, slot.outcome) == ("a", 3, SlotOutcome.PENDING)
    assert _candidate_outcome(uow, round_, "c") is CandidateOutcome.SELECTED
    assert uow.rounds.get(round_.round_id).selected == 3
    assert event_kinds(uow).count("channel.replaced") == 1
    assert [found.round_id for found in uow.rounds.open_for("c")] == [round_.round_id]


def test_nobody_replaces_who_would_come_too_late(uow: UnitOfWork) -> None:
    round_ = _with_waiting_candidate(uow)
    _ready(uow, round_, "b", 2.5)
    decline_slot(uow, round_.round_id, "a", "no", NOW)
    assert _candidate_outcome(uow, round_, "c") is CandidateOutcome.DEADLINE


def test_a_removed_candidate_replaces_nobody(uow: UnitOfWork) -> None:
    round_ = _with_waiting_candidate(uow)
    uow.clients.remove("c")
    decline_slot(uow, round_.round_id, "a", "no", NOW)
    assert uow.rounds.slot(round_.serial, "c") is None


def test_the_planned_order_has_no_replacements(uow: UnitOfWork) -> None:
    round_ = _with_waiting_candidate(uow, dispatch=Dispatch.SCHEDULED)
    decline_slot(uow, round_.round_id, "a", "no", NOW)
    assert uow.rounds.slot(round_.serial, "c") is None


def test_a_client_that_lapses_again_is_not_replaced_again(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a", "b", "c", "d", round_deadline_s=5.0, **ON_READY)
    first, second = (slot.client_id for slot in uow.rounds.slots(round_.serial))
    _ready(uow, round_, first, 0.1, 1e8)
    _ready(uow, round_, first, 0.2, 1e8)
    _ready(uow, round_, second, 0.5)
    assert _slot(uow, round_, first).lapses == 2
    assert event_kinds(uow).count("channel.replaced") == 1


def test_a_policy_without_deadline_replaces_nobody(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a", "b", policy="fl", **ON_READY)
    decline_slot(uow, round_.round_id, "a", "no", NOW)
    assert _ready(uow, round_, "b", 500.0, 1.0).state is ChannelState.GRANTED


def test_a_declined_grant_goes_to_the_next_client(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a", "b", **ON_READY)
    _ready(uow, round_, "a", 3.0)
    _ready(uow, round_, "b", 3.1)
    decline_slot(uow, round_.round_id, "a", "no", NOW)
    assert _slot(uow, round_, "b").granted_ns == to_ns(3.1)


def test_a_rejected_upload_frees_the_channel(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a", "b", **ON_READY)
    _ready(uow, round_, "a", 3.0)
    _ready(uow, round_, "b", 3.1)
    record_rejection(uow, round_.round_id, "a", "NaN", NOW)
    assert _slot(uow, round_, "b").granted_ns == to_ns(3.1)
    assert _slot(uow, round_, "a").ready_ns is None
    record_rejection(uow, round_.round_id, "a", "NaN", NOW)
    assert _slot(uow, round_, "a").rejections == 2


def test_a_late_upload_holds_no_channel(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a", "b", **ON_READY)
    _ready(uow, round_, "a", 179.5)
    record_late(uow, round_.round_id, "a", UploadTiming(NOW, elapsed_s=180.5), NOW)
    assert _slot(uow, round_, "a").grant_expires_ns is None


def test_times_of_planning_are_multiplied_and_shown_as_estimated(uow: UnitOfWork) -> None:
    round_ = _with_waiting_candidate(uow, planning_factor=0.5)
    assert round_.selected == 3
    assert [slot.upload_ns for slot in uow.rounds.slots(round_.serial)] == [to_ns(1.0)] * 3


# The wall clock.


def test_an_upload_on_the_wall_clock_from_ready_to_received(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a", "b", **ON_WALL)
    granted = _ready_on_wall(uow, round_, "a", 1.0)
    assert [grant.client_id for grant in granted.grants] == ["a"]
    waiting = _ready_on_wall(uow, round_, "b", 1.5)
    assert (waiting.state, waiting.grants, waiting.replacements) == (ChannelState.WAITING, [], [])
    assert _ready_on_wall(uow, round_, "b", 1.6).state is ChannelState.WAITING
    assert _slot(uow, round_, "b").ready_ns == to_ns(1.5)
    start_upload(uow, round_.round_id, "a", NOW + 2 * SECOND)
    with pytest.raises(ChannelNotGrantedError) as refused:
        start_upload(uow, round_.round_id, "b", NOW + 2 * SECOND)
    assert refused.value.retry_after_s >= 1
    record_arrivals(uow, round_.round_id, {"a": NOW + 3 * SECOND}, NOW + 3 * SECOND)
    assert _slot(uow, round_, "b").granted_ns == to_ns(3.0)  # while the update of a is being checked
    assert _upload_on_wall(uow, round_, "a", 3.0) is True
    assert _slot(uow, round_, "b").granted_ns == to_ns(3.0)


def test_a_silent_client_loses_its_grant(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a", "b", **ON_WALL)
    _ready_on_wall(uow, round_, "a", 1.0)
    _ready_on_wall(uow, round_, "b", 1.5)
    assert not is_dispatch_due(uow, round_, NOW + timedelta(seconds=2.9))
    assert is_dispatch_due(uow, round_, NOW + timedelta(seconds=3.5))
    dispatch_round(uow, round_.round_id, NOW + timedelta(seconds=3.5))
    assert _slot(uow, round_, "b").granted_ns == to_ns(3.5)
    assert _slot(uow, round_, "a").lapses == 1
    with pytest.raises(ChannelNotGrantedError):
        start_upload(uow, round_.round_id, "a", NOW + 4 * SECOND)


def test_an_upload_that_has_begun_has_twice_its_expected_time(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a", model_size_bytes=1_250_000, **ON_WALL)  # 10 s
    _ready_on_wall(uow, round_, "a", 1.0)
    start_upload(uow, round_.round_id, "a", NOW + 2 * SECOND)
    assert not is_dispatch_due(uow, round_, NOW + 21 * SECOND)
    record_arrivals(uow, round_.round_id, {"a": NOW + 22 * SECOND}, NOW + 22 * SECOND)
    assert _slot(uow, round_, "a").uploaded_at is None
    assert isinstance(_upload_on_wall(uow, round_, "a", 22.0), ChannelNotGrantedError)


def test_a_device_that_does_not_know_ready_is_granted_a_free_channel(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a", "b", **ON_WALL)
    start_upload(uow, round_.round_id, "a", NOW + 2 * SECOND)
    assert _slot(uow, round_, "a").granted_ns == to_ns(2.0)
    with pytest.raises(ChannelNotGrantedError):
        start_upload(uow, round_.round_id, "b", NOW + 3 * SECOND)
    record_arrivals(uow, round_.round_id, {"a": NOW + 3 * SECOND}, NOW + 3 * SECOND)
    with pytest.raises(ChannelNotGrantedError):
        start_upload(uow, round_.round_id, "a", NOW + 3 * SECOND)  # it is being checked
    assert _upload_on_wall(uow, round_, "a", 3.0) is True
    start_upload(uow, round_.round_id, "a", NOW + 3 * SECOND)  # the same bytes again are answered later
    start_upload(uow, round_.round_id, "b", NOW + 4 * SECOND)


def test_an_upload_that_cannot_be_stored_gives_the_grant_back(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a", **ON_WALL)
    _ready_on_wall(uow, round_, "a", 1.0)
    record_arrivals(uow, round_.round_id, {"a": NOW + 2 * SECOND}, NOW + 2 * SECOND)
    withdraw_arrival(uow, round_.round_id, "a", NOW + 2 * SECOND)
    assert _slot(uow, round_, "a").ready_ns is None
    assert _ready_on_wall(uow, round_, "a", 3.0).state is ChannelState.GRANTED


def test_the_reconciler_leaves_other_rounds_alone(uow: UnitOfWork) -> None:
    simulated = factories.scheduled_round(uow, "a", "b", **ON_READY)
    _ready(uow, simulated, "a", 3.0)
    _ready(uow, simulated, "b", 3.0)
    assert not is_dispatch_due(uow, simulated, NOW + 3600 * SECOND)
    planned = factories.scheduled_round(uow, "c", clock=Clock.WALL)
    assert not is_dispatch_due(uow, planned, NOW + 3600 * SECOND)
    close_round(uow, planned.round_id, NOW)
    dispatch_round(uow, planned.round_id, NOW)
    assert uow.rounds.get(planned.round_id).state is RoundState.FAILED
