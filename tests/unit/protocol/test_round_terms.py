"""A round keeps to the terms it was opened with, whatever becomes of its task's."""

from dataclasses import replace
from datetime import timedelta

import pytest

from operator_api.round_view import schedule_response
from services.access import Principal, Scope
from services.domain.rounds import Round, RoundState
from services.domain.tasks import Clock, SlotEnforcement
from services.errors import DeadlinePassedError
from services.protocol.aggregation import ARRIVALS_KNOWN_AFTER, close_if_overdue
from services.protocol.resource_request import end_report_window, open_round
from services.protocol.task_management import cancel_task
from services.protocol.transitions import end_round
from services.protocol.upload import ReceivedUpdate, UploadTiming, accept_updates
from services.storage.database import UnitOfWork
from tests.integration.storage import factories
from tests.integration.storage.factories import MODEL, NOW, SECOND, SETTLE, UPDATE

OPERATOR = Principal("key", Scope.READ)


def _change_task(uow: UnitOfWork, round_: Round) -> None:
    """Change every term of the task that a round has of its own."""
    task = uow.tasks.get(round_.task_id, lock=True)
    changed = replace(
        task.terms,
        policy="fl",
        round_deadline_s=20.0,
        selection_s=3.0,
        aggregation_s=4.0,
        model_size_bytes=7,
        resource_blocks=99,
        slot_enforcement=SlotEnforcement.STRICT,
        slot_grace_s=0.5,
    )
    uow.tasks.change(task, terms=changed)


def _upload(uow: UnitOfWork, round_: Round, elapsed_s: float) -> object:
    received = ReceivedUpdate("a", UPDATE, 100, UploadTiming(NOW, elapsed_s), NOW)
    (outcome,) = accept_updates(uow, round_.round_id, [received], NOW)
    return outcome


def test_terms_are_taken_over_when_the_round_opens(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a", aggregation_s=2.0, resource_blocks=5)
    assert (round_.terms.policy, round_.terms.has_deadline) == ("fedcs", True)
    assert (round_.terms.round_deadline_s, round_.terms.aggregation_s) == (180.0, 2.0)
    assert round_.terms.upload_size_bytes == round_.terms.download_size_bytes == MODEL.size_bytes
    assert uow.rounds.get(round_.round_id).terms == round_.terms


@pytest.mark.parametrize(("elapsed_s", "in_time"), [(150.0, True), (179.999, True), (180.0, False)])
def test_uploads_are_judged_by_the_deadline_of_the_round(
    uow: UnitOfWork, elapsed_s: float, in_time: bool
) -> None:
    round_ = factories.scheduled_round(uow, "a")
    _change_task(uow, round_)
    outcome = _upload(uow, round_, elapsed_s)
    assert outcome is True if in_time else isinstance(outcome, DeadlinePassedError)


def test_a_simulated_round_costs_its_own_deadline(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a", aggregation_s=1.0)
    _change_task(uow, round_)
    _upload(uow, round_, 10.0)
    task = uow.tasks.get(round_.task_id)
    ended = end_round(uow, task, uow.rounds.get(round_.round_id), RoundState.FAILED, NOW)
    assert (ended.duration_s, ended.task_elapsed_s) == (11.0, 180.0)
    assert uow.tasks.get(round_.task_id).elapsed_s == 180.0


def test_without_a_deadline_a_simulated_round_costs_what_it_took(uow: UnitOfWork) -> None:
    first = factories.scheduled_round(uow, "a", policy="fl", aggregation_s=0.5)
    for opened in (first, None):
        round_ = opened or open_round(uow, first.task_id, NOW)
        _upload(uow, round_, 10.0)
        task = uow.tasks.get(round_.task_id)
        ended = end_round(uow, task, uow.rounds.get(round_.round_id), RoundState.FAILED, NOW)
    assert (ended.duration_s, ended.task_elapsed_s) == (10.5, 21.0)


def test_a_wall_clock_round_ends_at_its_own_deadline_and_knows_the_time_of_its_task(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a", clock=Clock.WALL, aggregation_s=2.0)
    _change_task(uow, round_)
    ends_at = NOW + timedelta(seconds=178) + ARRIVALS_KNOWN_AFTER
    close_if_overdue(uow, round_.round_id, ends_at - timedelta(seconds=0.1), SETTLE)
    assert uow.rounds.get(round_.round_id).is_open
    close_if_overdue(uow, round_.round_id, ends_at, SETTLE)
    assert uow.rounds.get(round_.round_id).task_elapsed_s == (ends_at - NOW).total_seconds()


@pytest.mark.parametrize(("clock", "elapsed_s"), [(Clock.SIMULATED, 0.0), (Clock.WALL, 1.0)])
def test_a_cancelled_round_knows_the_time_of_its_task(
    uow: UnitOfWork, clock: Clock, elapsed_s: float
) -> None:
    round_ = factories.scheduled_round(uow, "a", clock=clock)
    assert round_.task_elapsed_s is None
    cancel_task(uow, round_.task_id, NOW + SECOND)
    assert uow.rounds.get(round_.round_id).task_elapsed_s == elapsed_s


def test_clients_are_selected_by_the_terms_of_the_round(uow: UnitOfWork) -> None:
    window = {"report_window_s": 60.0, "round_deadline_s": 3.5}
    asked = factories.scheduled_round(uow, "a", "b", **window)  # two seconds each, and one to distribute
    _change_task(uow, asked)
    scheduled = end_report_window(uow, asked.round_id, NOW + SECOND)
    assert scheduled.terms == asked.terms
    (slot,) = uow.rounds.slots(asked.serial)
    assert (scheduled.distribution_ns, slot.window_start_ns, slot.upload_ns) == (10**9, 2 * 10**9, 10**9)


def test_the_schedule_shows_the_terms_of_the_round(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a")
    before = schedule_response(uow, round_, OPERATOR)
    _change_task(uow, round_)
    assert before == schedule_response(uow, uow.rounds.get(round_.round_id), OPERATOR)
    assert before is not None
    assert (before.policy, before.round_deadline_s) == ("fedcs", 180.0)
    assert (before.upload_size_bytes, before.download_size_bytes) == (MODEL.size_bytes, MODEL.size_bytes)
    assert before.slots[0].resource_block_count == 10
