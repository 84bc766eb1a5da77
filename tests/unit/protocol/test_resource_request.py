"""A round opens: clients are drawn, asked for their resources, and selected."""

from datetime import timedelta

import pytest

from services.domain.rounds import CandidateOutcome, Round, RoundState
from services.domain.tasks import Clock, TaskState
from services.errors import (
    EvaluationPendingError,
    ModelNotReadyError,
    RoundNotFoundError,
    RoundOpenError,
    TaskOverError,
)
from services.protocol.initialization import start_task
from services.protocol.resource_request import end_report_window, open_round
from services.storage.database import UnitOfWork
from tests.integration.storage import factories
from tests.integration.storage.factories import NOW, SECOND, UPDATE
from tests.unit.protocol.side_effects import event_kinds

WINDOW_S = 60.0


def _outcomes(uow: UnitOfWork, round_: Round) -> dict[str, str]:
    return {
        candidate.client_id: candidate.outcome.value for candidate in uow.rounds.candidates(round_.serial)
    }


def test_without_a_report_window_clients_are_selected_at_once(uow: UnitOfWork) -> None:
    serials = factories.clients(uow, "a", "idle", "empty", "slow", "stale")
    uow.reports.add(
        [
            factories.report(serials["a"]),
            factories.report(serials["empty"], data_samples=0),
            factories.report(serials["slow"], throughput_bps=1000.0),
            factories.report(serials["stale"], observed_at=NOW - timedelta(hours=2)),
        ]
    )
    task = factories.ready_task(uow)
    round_ = open_round(uow, task.task_id, NOW)
    assert (round_.state, round_.selected, round_.clients, round_.asked) == (RoundState.SCHEDULED, 1, 5, 5)
    assert _outcomes(uow, round_) == {
        "a": "SELECTED",
        "idle": "NO_REPORT",
        "empty": "NO_DATA",
        "slow": "DEADLINE",
        "stale": "NO_REPORT",
    }
    (slot,) = uow.rounds.slots(round_.serial)
    assert (slot.client_id, slot.order, slot.window_start_ns) == ("a", 1, 2 * 10**9)
    running = uow.tasks.get(task.task_id)
    assert (running.state, running.rounds, running.first_round_at) == (TaskState.RUNNING, 1, NOW)
    assert event_kinds(uow)[-3:] == ["task.running", "round.requesting", "round.scheduled"]


def test_a_share_of_the_clients_with_the_labels_is_drawn_the_same_for_a_seed(uow: UnitOfWork) -> None:
    factories.clients(uow, *(f"bus-{number}" for number in range(20)), labels={"vehicle": "bus"})
    factories.clients(uow, "tram", labels={"vehicle": "tram"})
    drawn = []
    for seed in (7, 7, 8):
        terms = {"labels": {"vehicle": "bus"}, "request_fraction": 0.25, "seed": seed}
        round_ = open_round(uow, factories.ready_task(uow, **terms).task_id, NOW)
        drawn.append(list(_outcomes(uow, round_)))
        assert (round_.clients, round_.asked) == (20, 5)
    assert drawn[0] == drawn[1] != drawn[2]
    assert all(client_id.startswith("bus") for client_id in drawn[0])


def test_with_a_report_window_only_reports_since_the_opening_count(uow: UnitOfWork) -> None:
    serials = factories.reporting_clients(uow, "answers", "silent", "removed")
    task = factories.ready_task(uow, report_window_s=WINDOW_S)
    opened_at = NOW + SECOND
    round_ = open_round(uow, task.task_id, opened_at)
    assert (round_.state, round_.started_at) == (RoundState.REQUESTING, None)
    assert round_.window_ends_at == opened_at + timedelta(seconds=WINDOW_S)
    assert set(_outcomes(uow, round_).values()) == {CandidateOutcome.ASKED}
    uow.reports.add(
        [factories.report(serials["answers"], observed_at=opened_at, received_at=opened_at + SECOND)]
    )
    uow.clients.remove("removed")
    scheduled = end_report_window(uow, round_.round_id, opened_at + 60 * SECOND)
    assert (scheduled.state, scheduled.started_at) == (RoundState.SCHEDULED, opened_at + 60 * SECOND)
    outcomes = {"answers": "SELECTED", "silent": "NO_REPORT", "removed": "NO_REPORT"}
    assert _outcomes(uow, round_) == outcomes
    assert end_report_window(uow, round_.round_id, NOW) == scheduled


@pytest.mark.parametrize(("reporting", "min_clients"), [(False, 1), (True, 2)])
def test_with_too_few_clients_a_round_fails_and_is_paid_for(
    uow: UnitOfWork, reporting: bool, min_clients: int
) -> None:
    (factories.reporting_clients if reporting else factories.clients)(uow, "a")
    round_ = open_round(uow, factories.ready_task(uow, min_clients=min_clients).task_id, NOW)
    assert (round_.state, round_.outcome) == (RoundState.FAILED, "TOO_FEW_CLIENTS")
    assert uow.rounds.slots(round_.serial) == []
    assert uow.tasks.get(round_.task_id).elapsed_s == 180.0
    assert open_round(uow, round_.task_id, NOW).number == 2


@pytest.mark.parametrize(
    ("clock", "policy", "closes_after_s"),
    [(Clock.WALL, "fedcs", 178.0), (Clock.WALL, "fl", None), (Clock.SIMULATED, "fedcs", None)],
)
def test_the_service_closes_wall_clock_rounds_with_a_deadline(
    uow: UnitOfWork, clock: Clock, policy: str, closes_after_s: float | None
) -> None:
    round_ = factories.scheduled_round(uow, "a", clock=clock, policy=policy, aggregation_s=2.0)
    expected = None if closes_after_s is None else NOW + timedelta(seconds=closes_after_s)
    assert round_.upload_deadline_at == expected


def test_no_round_without_a_model(uow: UnitOfWork) -> None:
    with pytest.raises(ModelNotReadyError):
        open_round(uow, start_task(uow, factories.terms(), NOW).task_id, NOW)


def test_no_round_beside_another(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "a")
    with pytest.raises(RoundOpenError, match=round_.round_id):
        open_round(uow, round_.task_id, NOW)


def test_no_round_while_the_newest_model_may_have_reached_the_target(uow: UnitOfWork) -> None:
    task = factories.ready_task(uow, target_accuracy=0.5)
    uow.models.put(task, 1, UPDATE, NOW)
    uow.tasks.change(task, model_version=1)
    with pytest.raises(EvaluationPendingError):
        open_round(uow, task.task_id, NOW)


@pytest.mark.parametrize(("final_deadline_s", "fits"), [(180.0, True), (179.9, False)])
def test_no_round_that_would_end_after_the_final_deadline(
    uow: UnitOfWork, final_deadline_s: float, fits: bool
) -> None:
    task = factories.ready_task(uow, final_deadline_s=final_deadline_s)
    if fits:
        assert open_round(uow, task.task_id, NOW).number == 1
    else:
        with pytest.raises(TaskOverError, match="final deadline"):
            open_round(uow, task.task_id, NOW)


def test_the_report_window_of_no_round(uow: UnitOfWork) -> None:
    with pytest.raises(RoundNotFoundError):
        end_report_window(uow, "nothing", NOW)
