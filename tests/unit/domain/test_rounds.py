"""Rounds: the table of moves, and when an upload is in time."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from services.domain.rounds import (
    OPEN_STATES,
    ROUND_TRANSITIONS,
    UPLOAD_STATES,
    Round,
    RoundState,
    RoundTerms,
    Slot,
    Timing,
    classify_upload,
    may_have_waited,
)
from services.domain.tasks import Dispatch, SlotEnforcement
from tests.unit.domain.task_terms import ROUND_TERMS

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SECOND_NS = 1_000_000_000
SLOT = Slot(
    client_id="c1",
    cell_id="default",
    order=1,
    data_samples=200,
    update_ns=20 * SECOND_NS,
    upload_ns=10 * SECOND_NS,
    upload_start_ns=20 * SECOND_NS,
    upload_end_ns=30 * SECOND_NS,
    window_start_ns=30 * SECOND_NS,
    window_end_ns=40 * SECOND_NS,
    time_slot_first=40_000,
    time_slot_count=20_000,
)
STRICT = replace(ROUND_TERMS, slot_enforcement=SlotEnforcement.STRICT, slot_grace_s=0.5)


def _round(state: RoundState) -> Round:
    return Round(
        serial=1,
        round_id="round-1",
        task_serial=1,
        task_id="task-1",
        number=1,
        state=state,
        terms=ROUND_TERMS,
        model_version=0,
        clients=1,
        asked=1,
        opened_at=NOW,
        window_ends_at=None,
        started_at=NOW,
        upload_deadline_at=None,
        active_at=NOW,
        ended_at=None,
        outcome=None,
        selected=1,
        received=0,
        distribution_ns=0,
        elapsed_ns=0,
        upper_bound=1,
        duration_s=None,
        task_elapsed_s=None,
    )


def test_a_round_is_open_until_no_move_is_left() -> None:
    over = {RoundState.AGGREGATED, RoundState.FAILED, RoundState.CANCELLED}
    assert {state for state in RoundState if not _round(state).is_open} == over
    assert set(OPEN_STATES) == set(RoundState) - over
    assert set(UPLOAD_STATES) <= set(OPEN_STATES)


def test_every_state_of_a_round_can_be_reached_and_left_only_forwards() -> None:
    assert set(ROUND_TRANSITIONS) == set(RoundState)
    assert {RoundState.REQUESTING}.union(*ROUND_TRANSITIONS.values()) == set(RoundState)
    order = list(RoundState)
    for state, following in ROUND_TRANSITIONS.items():
        assert all(order.index(after) > order.index(state) for after in following)


def test_an_open_round_may_fail_or_be_cancelled() -> None:
    for state in OPEN_STATES:
        assert {RoundState.FAILED, RoundState.CANCELLED} <= ROUND_TRANSITIONS[state]


def test_nothing_is_aggregated_that_was_not_collected() -> None:
    before = {state for state, following in ROUND_TRANSITIONS.items() if RoundState.AGGREGATED in following}
    assert before == {RoundState.AGGREGATING}
    assert {
        state for state, following in ROUND_TRANSITIONS.items() if RoundState.AGGREGATING in following
    } == set(UPLOAD_STATES)


@pytest.mark.parametrize(
    ("elapsed_ns", "timing"),
    [
        (0, Timing.IN_TIME),
        (180 * SECOND_NS - 1, Timing.IN_TIME),
        (180 * SECOND_NS, Timing.DEADLINE_PASSED),
        (200 * SECOND_NS, Timing.DEADLINE_PASSED),
    ],
)
def test_an_upload_ends_before_the_deadline(elapsed_ns: int, timing: Timing) -> None:
    assert classify_upload(ROUND_TERMS, SLOT, elapsed_ns) is timing


@pytest.mark.parametrize(
    ("elapsed_ns", "timing"),
    [
        (0, Timing.SLOT_NOT_OPEN),
        (29_500_000_000 - 1, Timing.SLOT_NOT_OPEN),
        (29_500_000_000, Timing.IN_TIME),
        (40_500_000_000, Timing.IN_TIME),
        (40_500_000_000 + 1, Timing.SLOT_CLOSED),
        (180 * SECOND_NS, Timing.DEADLINE_PASSED),
    ],
)
def test_a_strict_slot_is_kept_but_for_the_grace_period(elapsed_ns: int, timing: Timing) -> None:
    assert classify_upload(STRICT, SLOT, elapsed_ns) is timing


def test_without_a_deadline_only_a_strict_slot_can_be_missed() -> None:
    assert classify_upload(replace(ROUND_TERMS, has_deadline=False), SLOT, 10**18) is Timing.IN_TIME
    assert classify_upload(replace(STRICT, has_deadline=False), SLOT, 10**18) is Timing.SLOT_CLOSED


@pytest.mark.parametrize(("terms", "opens_ns"), [(ROUND_TERMS, 30 * SECOND_NS), (STRICT, 29_500_000_000)])
def test_a_client_may_have_waited_if_its_upload_began_when_the_slot_was_open(
    terms: RoundTerms, opens_ns: int
) -> None:
    assert not may_have_waited(terms, SLOT, 0)
    assert not may_have_waited(terms, SLOT, opens_ns - 1)
    assert may_have_waited(terms, SLOT, opens_ns)
    assert may_have_waited(terms, SLOT, 100 * SECOND_NS)


def test_a_client_may_always_have_waited_for_the_channel() -> None:
    assert may_have_waited(replace(ROUND_TERMS, dispatch=Dispatch.ON_READY), SLOT, 0)
