"""Rounds with an adaptive deadline: the choice, the cost, and the limits."""

from dataclasses import replace
from datetime import timedelta

import pytest

from services.domain.clipping import AggregationRecord
from services.domain.jobs import JobKind
from services.domain.noise_scale import NoiseEstimate, StepMoments
from services.domain.rounds import Round, RoundState, SlotOutcome
from services.domain.tasks import Clock, DeadlineMode, Dispatch, TaskState
from services.protocol.aggregation import close_round, finish_aggregation
from services.protocol.ready import mark_ready
from services.protocol.resource_request import end_report_window, open_round
from services.protocol.transitions import end_round
from services.protocol.upload import (
    ReceivedUpdate,
    UploadTiming,
    accept_updates,
    decline_slot,
    record_late,
)
from services.storage.database import UnitOfWork
from tests.integration.storage import factories
from tests.integration.storage.factories import NOW, SECOND, UPDATE
from tests.unit.protocol.side_effects import claimed_job

CLIENTS = [f"c{number:02}" for number in range(20)]


def adaptive_round(uow: UnitOfWork, *client_ids: str, **changes: object) -> Round:
    terms = {"deadline_mode": DeadlineMode.ADAPTIVE, "min_round_deadline_s": 1.0, **changes}
    return factories.scheduled_round(uow, *(client_ids or CLIENTS), **terms)


def upload(uow: UnitOfWork, round_: Round, client_id: str, elapsed_s: float) -> None:
    received = ReceivedUpdate(client_id, UPDATE, 100, UploadTiming(NOW, elapsed_s), NOW)
    assert accept_updates(uow, round_.round_id, [received], NOW) == [True]


def best_count(noise_scale: float, most: int = 20) -> int:
    """Clients that each update and upload in a second: m of them take m + 2 seconds with the distribution."""
    return min(range(1, most + 1), key=lambda clients: (2 + clients) * (1 + noise_scale / clients))


def test_the_first_round_is_planned_with_a_noise_scale_of_4(uow: UnitOfWork) -> None:
    round_ = adaptive_round(uow)
    assert round_.selected == best_count(4.0) == 3
    assert round_.terms.noise_scale == 4.0
    assert round_.terms.round_deadline_s == pytest.approx(5 * 1.1)
    assert round_.terms.deadline_tradeoff is not None
    (best,) = [point for point in round_.terms.deadline_tradeoff if point.relative_cost == 1]
    assert best.clients == 3
    assert best.deadline_s == pytest.approx(5, abs=1e-6)
    assert uow.rounds.get(round_.round_id).terms == round_.terms


def test_the_noise_of_the_newest_version_decides(uow: UnitOfWork) -> None:
    first = adaptive_round(uow)
    for slot in uow.rounds.slots(first.serial):
        upload(uow, first, slot.client_id, 4.0)
    job = claimed_job(uow, JobKind.AGGREGATE_ROUND)
    record = AggregationRecord(moments=StepMoments(3, 100.0, 100 / 3 + 2))
    assert finish_aggregation(uow, job, factories.MODEL, record, NOW)
    estimate = uow.models.get(first.task_serial, 1).noise_estimate
    assert estimate is not None
    assert uow.models.noise_scales(first.task_serial) == {1: estimate.noise_scale}
    second = open_round(uow, first.task_id, NOW)
    assert second.terms.noise_scale == estimate.noise_scale > 20
    assert second.selected == best_count(estimate.noise_scale) > first.selected


def test_a_round_of_one_update_keeps_the_estimate(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a")
    task = uow.tasks.get(round_.task_id)
    known = NoiseEstimate(3.0, 1.0, 0.5)
    uow.models.put(task, 0, factories.MODEL, NOW, noise_estimate=known)
    upload(uow, round_, "a", 10.0)
    job = claimed_job(uow, JobKind.AGGREGATE_ROUND)
    assert finish_aggregation(uow, job, factories.MODEL, AggregationRecord(moments=StepMoments(1, 1, 1)), NOW)
    assert uow.models.get(task.serial, 1).noise_estimate == known


@pytest.mark.parametrize(
    ("changes", "deadline_s"),
    [
        ({"min_round_deadline_s": 30.0}, 30.0),
        ({"deadline_slack": 1.0}, 10.0),
        ({"deadline_slack": 1.0, "round_deadline_s": 7.0}, 7.0),
        ({"final_deadline_s": 5.2}, 5.2),
    ],
)
def test_the_deadline_keeps_to_its_limits(
    uow: UnitOfWork, changes: dict[str, float], deadline_s: float
) -> None:
    assert adaptive_round(uow, **changes).terms.round_deadline_s == pytest.approx(deadline_s)


def test_no_slack_leaves_the_last_upload_in_time(uow: UnitOfWork) -> None:
    round_ = adaptive_round(uow, deadline_slack=0.0)
    for slot in uow.rounds.slots(round_.serial):
        upload(uow, round_, slot.client_id, slot.window_end_ns / 1e9)
    assert uow.rounds.get(round_.round_id).state is RoundState.AGGREGATING


def test_a_simulated_round_costs_what_it_took_if_all_updates_came(uow: UnitOfWork) -> None:
    round_ = adaptive_round(uow, aggregation_s=0.25)
    for number, slot in enumerate(uow.rounds.slots(round_.serial)):
        upload(uow, round_, slot.client_id, 3.0 + number / 2)
    assert failed_round_s(uow, round_) == pytest.approx(3.0 + (round_.selected - 1) / 2 + 0.25)


def test_a_simulated_round_costs_its_deadline_if_an_update_is_missing(uow: UnitOfWork) -> None:
    round_ = adaptive_round(uow)
    upload(uow, round_, uow.rounds.slots(round_.serial)[0].client_id, 3.0)
    close_round(uow, round_.round_id, NOW)
    assert failed_round_s(uow, round_) == round_.terms.round_deadline_s


def failed_round_s(uow: UnitOfWork, round_: Round) -> float:
    task, round_ = uow.tasks.get(round_.task_id), uow.rounds.get(round_.round_id)
    cost_s = end_round(uow, task, round_, RoundState.FAILED, NOW).task_elapsed_s
    assert cost_s is not None
    return cost_s


def test_a_declined_slot_does_not_cost_the_deadline(uow: UnitOfWork) -> None:
    round_ = adaptive_round(uow)
    first, *others = uow.rounds.slots(round_.serial)
    for slot in others:
        upload(uow, round_, slot.client_id, 4.0)
    decline_slot(uow, round_.round_id, first.client_id, "no power", NOW)
    assert uow.rounds.get(round_.round_id).state is RoundState.AGGREGATING
    assert failed_round_s(uow, round_) == pytest.approx(4.0)


def test_a_refused_slot_costs_the_time_until_it_was_refused(uow: UnitOfWork) -> None:
    """There is nobody to replace its client."""
    round_ = adaptive_round(uow, *CLIENTS[:3], dispatch=Dispatch.ON_READY, deadline_slack=1.0)
    *others, last = uow.rounds.slots(round_.serial)
    for number, slot in enumerate(others):
        mark_ready(uow, round_.round_id, slot.client_id, NOW, elapsed_s=2.0 + number)
        upload(uow, round_, slot.client_id, 3.0 + number)
    mark_ready(uow, round_.round_id, last.client_id, NOW, throughput_bps=1.0, elapsed_s=4.5)
    outcomes = [slot.outcome for slot in uow.rounds.slots(round_.serial)]
    assert outcomes == [*[SlotOutcome.RECEIVED] * len(others), SlotOutcome.REFUSED]
    assert failed_round_s(uow, round_) == pytest.approx(4.5)


def test_a_late_update_costs_the_deadline(uow: UnitOfWork) -> None:
    round_ = adaptive_round(uow)
    first, *others = uow.rounds.slots(round_.serial)
    for slot in others:
        upload(uow, round_, slot.client_id, 4.0)
    late = UploadTiming(NOW, round_.terms.round_deadline_s + 1)
    record_late(uow, round_.round_id, first.client_id, late, NOW)
    assert failed_round_s(uow, round_) == round_.terms.round_deadline_s


def test_a_round_that_all_clients_declined_costs_its_deadline(uow: UnitOfWork) -> None:
    """Nothing says when; if it cost nothing, the task could go on for ever."""
    round_ = adaptive_round(uow)
    for slot in uow.rounds.slots(round_.serial):
        decline_slot(uow, round_.round_id, slot.client_id, "no power", NOW)
    assert uow.rounds.get(round_.round_id).state is RoundState.FAILED
    assert uow.tasks.get(round_.task_id).elapsed_s == round_.terms.round_deadline_s


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_the_choice_has_the_times_that_clients_are_selected_with(factor: float, uow: UnitOfWork) -> None:
    round_ = adaptive_round(uow, dispatch=Dispatch.ON_READY, planning_factor=factor)
    assert round_.terms.deadline_tradeoff is not None
    (best,) = [point for point in round_.terms.deadline_tradeoff if point.relative_cost == 1]
    assert round_.selected == best.clients == best_count(4.0)
    assert round_.terms.round_deadline_s == pytest.approx(5 * 1.1)


def test_a_round_without_clients_costs_the_shortest_deadline(uow: UnitOfWork) -> None:
    round_ = adaptive_round(uow, "a", min_clients=2, min_round_deadline_s=7.0)
    assert (round_.state, round_.outcome) == (RoundState.FAILED, "TOO_FEW_CLIENTS")
    assert uow.tasks.get(round_.task_id).elapsed_s == 7.0


@pytest.mark.parametrize(("final_s", "state"), [(12.5, TaskState.RUNNING), (11.0, TaskState.FINISHED)])
def test_the_task_ends_when_less_than_the_shortest_deadline_is_left(
    final_s: float, state: TaskState, uow: UnitOfWork
) -> None:
    round_ = adaptive_round(uow, "a", min_clients=2, min_round_deadline_s=6.0, final_deadline_s=final_s)
    assert uow.tasks.get(round_.task_id).state is state
    if state is TaskState.RUNNING:
        assert open_round(uow, round_.task_id, NOW).terms.round_deadline_s == 6.0


def test_on_the_wall_clock_the_round_closes_at_its_own_deadline(uow: UnitOfWork) -> None:
    round_ = adaptive_round(uow, clock=Clock.WALL)
    deadline = timedelta(seconds=round_.terms.round_deadline_s)
    assert round_.upload_deadline_at == NOW + deadline < NOW + timedelta(seconds=10)


def test_a_deadline_is_chosen_when_the_report_window_ends(uow: UnitOfWork) -> None:
    factories.reporting_clients(uow, *CLIENTS)
    task = factories.ready_task(
        uow, deadline_mode=DeadlineMode.ADAPTIVE, min_round_deadline_s=1.0, report_window_s=5.0
    )
    opened = open_round(uow, task.task_id, NOW)
    assert (opened.state, opened.terms.noise_scale) == (RoundState.REQUESTING, None)
    ended = end_report_window(uow, opened.round_id, NOW + 5 * SECOND)
    assert (ended.selected, ended.terms.noise_scale) == (3, 4.0)


@pytest.mark.parametrize("policy", ["fedcs", "optimal", "fedlim"])
def test_every_policy_with_a_deadline_adapts_it(policy: str, uow: UnitOfWork) -> None:
    round_ = adaptive_round(uow, policy=policy)
    assert round_.selected == 3
    assert round_.terms.round_deadline_s < 10


def test_a_fixed_round_has_no_noise_scale(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a")
    assert (round_.terms.noise_scale, round_.terms.deadline_tradeoff) == (None, None)
    assert replace(round_.terms).round_deadline_s == 180.0
