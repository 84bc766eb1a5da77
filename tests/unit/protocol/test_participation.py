"""Rounds pass over clients that did not deliver or had their share, and plan with expected figures."""

import numpy as np
import pytest

from services.domain.plausibility import ImplausibleReason
from services.domain.radio import RadioModel
from services.domain.rounds import Candidate, CandidateOutcome, Round, RoundState
from services.domain.tasks import DeadlineMode, Task
from services.protocol.candidates import implausible_figures, implausible_share
from services.protocol.resource_request import end_report_window, open_round
from services.protocol.upload import ReceivedUpdate, UploadTiming, accept_updates, decline_slot
from services.storage.database import UnitOfWork
from tests.integration.storage import factories
from tests.integration.storage.factories import NOW, SECOND, UPDATE


def _candidates(uow: UnitOfWork, round_: Round) -> dict[str, Candidate]:
    return {candidate.client_id: candidate for candidate in uow.rounds.candidates(round_.serial)}


def _outcome(uow: UnitOfWork, round_: Round, client_id: str) -> CandidateOutcome | None:
    found = uow.rounds.candidate(round_.serial, client_id)
    return None if found is None else found.outcome


def _end(uow: UnitOfWork, round_: Round) -> None:
    uow.rounds.settle_slots(round_.serial)
    uow.rounds.change(round_, state=RoundState.AGGREGATED, ended_at=NOW)


def _upload(
    uow: UnitOfWork, round_: Round, client_id: str, *, update_s: float = 1.0, upload_s: float = 1.0
) -> None:
    arrival = UploadTiming(NOW, elapsed_s=5.0, update_s=update_s, upload_s=upload_s)
    received = ReceivedUpdate(client_id, UPDATE, 100, arrival, NOW)
    assert accept_updates(uow, round_.round_id, [received], NOW) == [True]


def _play(uow: UnitOfWork, task: Task, actions: str, client_id: str = "a") -> list[str]:
    """Rounds in which the others upload; one client misses (M), declines (D) or uploads (U) if selected."""
    outcomes = []
    for action in actions:
        round_ = open_round(uow, task.task_id, NOW)
        outcomes.append(str(_outcome(uow, round_, client_id)))
        for slot in uow.rounds.slots(round_.serial):
            if slot.client_id != client_id:
                _upload(uow, round_, slot.client_id)
            elif action == "D":
                decline_slot(uow, round_.round_id, client_id, "no", NOW)
            elif action == "U":
                _upload(uow, round_, client_id)
        _end(uow, round_)
    return outcomes


SELECTED, COOLDOWN = "SELECTED", "COOLDOWN"


@pytest.mark.parametrize(
    ("actions", "expected"),
    [
        ("MM--M----M", [SELECTED] * 2 + [COOLDOWN] * 2 + [SELECTED] + [COOLDOWN] * 4 + [SELECTED]),
        ("MUMUMUM", [SELECTED] * 7),
        ("MM--UMM", [SELECTED] * 2 + [COOLDOWN] * 2 + [SELECTED] * 3),
        ("MDDDM", [SELECTED] * 4 + [COOLDOWN]),
    ],
)
def test_a_client_that_did_not_deliver_is_not_drawn(
    uow: UnitOfWork, actions: str, expected: list[str]
) -> None:
    factories.reporting_clients(uow, "a", "b")
    assert _play(uow, factories.ready_task(uow, cooldown=True), actions) == expected


def test_without_cooldown_it_is_drawn_all_the_same(uow: UnitOfWork) -> None:
    factories.reporting_clients(uow, "a", "b")
    assert _play(uow, factories.ready_task(uow), "MMMM") == [SELECTED] * 4


def test_a_new_task_does_not_know_of_it(uow: UnitOfWork) -> None:
    factories.reporting_clients(uow, "a", "b")
    assert _play(uow, factories.ready_task(uow, cooldown=True), "MM-")[-1] == COOLDOWN
    assert _play(uow, factories.ready_task(uow, cooldown=True), "M") == [SELECTED]


def test_another_client_is_drawn_in_its_place(uow: UnitOfWork) -> None:
    factories.reporting_clients(uow, "a", "b", "c")
    task = factories.ready_task(uow, cooldown=True, request_fraction=0.6, seed=1)
    for _ in range(8):
        round_ = open_round(uow, task.task_id, NOW)
        assert (round_.asked, round_.selected) == (2, 2)
        for slot in uow.rounds.slots(round_.serial):
            if slot.client_id != "a":
                _upload(uow, round_, slot.client_id)
        _end(uow, round_)
    passed_over = [
        outcome
        for round_ in uow.rounds.of_task(task.serial)
        if (outcome := _outcome(uow, round_, "a")) is not None
    ]
    assert passed_over.count(CandidateOutcome.SELECTED) < 4
    assert CandidateOutcome.COOLDOWN in passed_over


def test_the_beginning_of_a_cooldown_is_an_event_once(uow: UnitOfWork) -> None:
    factories.reporting_clients(uow, "a", "b")
    task = factories.ready_task(uow, cooldown=True)
    _play(uow, task, "MM---")
    uow.events.write()
    events = [event for event in uow.events.after(0, 10_000) if event.kind == "client.cooldown"]
    third = uow.rounds.of_task(task.serial)[2]
    assert [(event.client_id, event.task_id, event.round_id) for event in events] == [
        ("a", task.task_id, third.round_id)
    ]
    assert events[0].data == {"misses": 2, "until_round": 4}


def test_a_client_has_its_share_of_the_rounds_and_no_more(uow: UnitOfWork) -> None:
    factories.reporting_clients(uow, "a", "b")
    task = factories.ready_task(uow, max_share=0.4)
    outcomes = _play(uow, task, "UUUUUUU")
    other = "MAX_SHARE"
    assert outcomes == [SELECTED, other, SELECTED, other, other, SELECTED, other]
    failed = [round_.number for round_ in uow.rounds.of_task(task.serial) if not round_.selected]
    assert failed == [2, 4, 5, 7]  # both clients had their share


def test_those_who_were_passed_over_stay_so_when_the_report_window_ends(uow: UnitOfWork) -> None:
    factories.reporting_clients(uow, "a", "b")
    task = factories.ready_task(uow, cooldown=True)
    _play(uow, task, "MM")
    terms = factories.terms(cooldown=True, report_window_s=30.0)
    uow.tasks.change(uow.tasks.get(task.task_id, lock=True), terms=terms)
    asked = open_round(uow, task.task_id, NOW)
    assert {name: candidate.outcome.value for name, candidate in _candidates(uow, asked).items()} == {
        "a": "COOLDOWN",
        "b": "ASKED",
    }
    scheduled = end_report_window(uow, asked.round_id, NOW + 30 * SECOND)
    assert {name: candidate.outcome.value for name, candidate in _candidates(uow, scheduled).items()} == {
        "a": "COOLDOWN",
        "b": "SELECTED",
    }


def test_an_adaptive_deadline_does_not_count_on_them(uow: UnitOfWork) -> None:
    factories.reporting_clients(uow, "a", "b")
    task = factories.ready_task(uow, cooldown=True, deadline_mode=DeadlineMode.ADAPTIVE)
    first = open_round(uow, task.task_id, NOW)
    assert first.terms.deadline_tradeoff is not None
    assert max(point.clients for point in first.terms.deadline_tradeoff) == 2
    _upload(uow, first, "b")
    _end(uow, first)
    _play(uow, task, "M")
    third = open_round(uow, task.task_id, NOW)
    assert third.terms.deadline_tradeoff is not None
    assert max(point.clients for point in third.terms.deadline_tradeoff) == 1


def test_estimates_follow_from_past_slots(uow: UnitOfWork) -> None:
    factories.reporting_clients(uow, "slow", "exact", "new")
    task = factories.ready_task(uow, correct_estimates=True)
    for _ in range(5):  # also when the estimates are corrected: the ratios are those to the report
        round_ = open_round(uow, task.task_id, NOW)
        _upload(uow, round_, "slow", update_s=3.0, upload_s=5.0)
        _upload(uow, round_, "exact")
        _end(uow, round_)
    found = _candidates(uow, open_round(uow, task.task_id, NOW))
    slow = found["slow"]
    assert (slow.throughput_bps, slow.compute_samples_per_s) == (1e6, 100.0)
    assert slow.expected_throughput_bps == pytest.approx(1e6 / 5, rel=0.05)
    assert slow.expected_compute_samples_per_s == pytest.approx(100 / 3, rel=0.05)
    assert slow.upload_ns == pytest.approx(5e9, rel=0.05)
    for name in ("exact", "new"):
        assert found[name].expected_throughput_bps is None
        assert found[name].upload_ns == 1_000_000_000
    record = uow.clients.track_records(["slow"])["slow"]
    assert (record.update_ratio, record.upload_ratio) == pytest.approx((3.0, 5.0), rel=1e-6)
    assert (record.update_spread, record.upload_spread) == pytest.approx((0.0, 0.0), abs=1e-3)


def test_estimates_stay_if_the_task_does_not_want_them_corrected(uow: UnitOfWork) -> None:
    factories.reporting_clients(uow, "slow")
    task = factories.ready_task(uow)
    round_ = open_round(uow, task.task_id, NOW)
    _upload(uow, round_, "slow", upload_s=5.0)
    _end(uow, round_)
    found = _candidates(uow, open_round(uow, task.task_id, NOW))["slow"]
    assert (found.upload_ns, found.expected_throughput_bps) == (1_000_000_000, None)


def _boasting_fleet(uow: UnitOfWork) -> dict[str, int]:
    """Twenty honest clients, one above the peak rate of its cell, and one with an unheard-of processor."""
    names = [f"honest-{number:02}" for number in range(20)]
    serials = factories.reporting_clients(uow, *names)
    boasting = factories.clients(uow, "radio", "processor")
    rows = [
        factories.report(boasting["radio"], throughput_bps=1e9),
        factories.report(boasting["processor"]),
    ]
    uow.reports.add([rows[0], (*rows[1][:3], 1e6, *rows[1][4:])])
    return serials | boasting


def test_a_task_can_plan_with_plausible_figures(uow: UnitOfWork) -> None:
    _boasting_fleet(uow)
    found = _candidates(uow, open_round(uow, factories.ready_task(uow, cap_reports=True).task_id, NOW))
    assert found["radio"].throughput_bps == 1e9
    assert found["radio"].expected_throughput_bps == RadioModel().peak_throughput_bps
    assert found["processor"].expected_compute_samples_per_s == 1000.0
    assert found["honest-00"].expected_throughput_bps is None
    others = _candidates(uow, open_round(uow, factories.ready_task(uow).task_id, NOW))
    assert others["radio"].expected_throughput_bps is None


def test_implausible_reports_are_found(uow: UnitOfWork) -> None:
    serials = _boasting_fleet(uow)
    silent = factories.clients(uow, "silent")
    clients = [uow.clients.get(name) for name in ("radio", "processor", "honest-00", "silent")]
    found = implausible_figures(uow, clients)
    assert [(implausible.figure, implausible.reason) for implausible in found["radio"]] == [
        ("throughput_bps", ImplausibleReason.PEAK_RATE)
    ]
    assert [(implausible.figure, implausible.reason) for implausible in found["processor"]] == [
        ("compute_samples_per_s", ImplausibleReason.FLEET_RANGE)
    ]
    assert found["honest-00"] == []
    assert "silent" not in found
    assert implausible_share(uow) == pytest.approx(2 / 22)
    assert uow.clients.sample(1000).tolist() == sorted([*serials.values(), *silent.values()])
    assert 1 <= len(uow.clients.sample(5)) <= 5


def test_a_report_for_one_task_can_be_implausible_too(uow: UnitOfWork) -> None:
    serials = factories.clients(uow, "a")
    task = factories.ready_task(uow)
    uow.reports.add([factories.report(serials["a"], task_serial=task.serial, throughput_bps=1e9)])
    assert implausible_figures(uow, [uow.clients.get("a")])["a"] != []


def test_without_clients_nothing_is_implausible(uow: UnitOfWork) -> None:
    assert implausible_share(uow) == 0.0
    assert implausible_figures(uow, []) == {}
    assert uow.clients.sample(10).tolist() == np.empty(0).tolist()
