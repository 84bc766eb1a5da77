"""From reports to a schedule: who is selected, and the reason for every other candidate."""

import numpy as np
import pytest

from services.domain.resources import LocalWork, ResourceReports
from services.domain.rounds import Round, RoundState
from services.domain.selection import POLICIES, ClientHistory, make_policy
from services.protocol.client_selection import SelectionTerms, select_clients
from services.protocol.resource_request import open_round
from services.protocol.transitions import end_round
from services.storage.database import UnitOfWork
from tests.integration.storage import factories
from tests.integration.storage.factories import NOW
from tests.unit.domain.example_policy import MostReliable

TERMS = SelectionTerms(LocalWork(125_000, local_epochs=1), round_deadline_s=100.0)


@pytest.fixture(autouse=True)
def _with_example_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(POLICIES, "most-reliable", MostReliable)


def _reports(*throughputs_bps: float, empty: int = 0) -> ResourceReports:
    """Of clients that update in a second; the last ones have no data."""
    samples = np.full(len(throughputs_bps), 100)
    samples[len(samples) - empty :] = 0
    return ResourceReports(np.array(throughputs_bps), np.full(len(samples), 100.0), samples)


def _reasons(reports: ResourceReports, policy: str, **parameters: object) -> dict[int, str]:
    history = ClientHistory(*(np.arange(len(reports)) for _ in range(3)))
    plan = select_clients(reports, TERMS, make_policy(policy, parameters), 0, history)
    selected = dict.fromkeys(plan.schedule.positions.tolist(), "SELECTED")
    others = {candidate.position: candidate.reason.value for candidate in plan.not_selected}
    assert not selected.keys() & others.keys()
    return dict(sorted((selected | others).items()))


@pytest.mark.parametrize("policy", ["fedcs", "optimal", "fedlim"])
def test_with_a_deadline_the_reason_is_the_deadline(policy: str) -> None:
    reports = _reports(1e6, 1e-300, 1e4, 1e6, empty=1)
    assert _reasons(reports, policy) == {0: "SELECTED", 1: "DEADLINE", 2: "DEADLINE", 3: "NO_DATA"}


def test_without_a_deadline_only_clients_that_would_never_finish_are_not_selected() -> None:
    reports = _reports(*[1e6] * 10, 1e-300, 1e4, 1e6, empty=1)
    expected = dict.fromkeys(range(10), "SELECTED")
    assert _reasons(reports, "fl") == expected | {10: "TOO_SLOW", 11: "SELECTED", 12: "NO_DATA"}


def test_a_policy_that_does_without_a_client_is_the_reason() -> None:
    reports = _reports(*[1e6] * 4)
    expected = {0: "SELECTED", 1: "SELECTED", 2: "NOT_CHOSEN", 3: "NOT_CHOSEN"}
    assert _reasons(reports, "most-reliable", clients=2) == expected


def test_a_policy_with_a_deadline_can_do_without_clients_that_would_fit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(MostReliable, "honours_deadline", True)
    reports = _reports(1e6, 1e6, 1e4)
    assert _reasons(reports, "most-reliable") == {0: "SELECTED", 1: "NOT_CHOSEN", 2: "DEADLINE"}


def test_costs_are_shown_for_policies_that_go_by_them() -> None:
    reports = _reports(1e6, 1e4, 1e6, empty=1)
    for policy in POLICIES:
        history = ClientHistory(*(np.zeros(3, dtype=np.int64) for _ in range(3)))
        plan = select_clients(reports, TERMS, make_policy(policy, {}), 0, history)
        costs = {candidate.position: candidate.cost_ns for candidate in plan.not_selected}
        assert costs[2] is None
        assert costs.get(1) == (199 * 10**9 if policy == "fedcs" else None)  # 99 longer, then 100


def _outcomes(uow: UnitOfWork, round_: Round) -> dict[str, str]:
    return {
        candidate.client_id: candidate.outcome.value for candidate in uow.rounds.candidates(round_.serial)
    }


def test_one_client_that_would_never_finish_does_not_stop_a_task(uow: UnitOfWork) -> None:
    honest = [f"honest-{number}" for number in range(20)]
    factories.reporting_clients(uow, *honest)
    serials = factories.clients(uow, "hostile")
    uow.reports.add([factories.report(serials["hostile"], throughput_bps=1e-300)])
    round_ = open_round(uow, factories.ready_task(uow, policy="fl").task_id, NOW)
    assert (round_.state, round_.selected) == (RoundState.SCHEDULED, 20)
    assert _outcomes(uow, round_) == {**dict.fromkeys(honest, "SELECTED"), "hostile": "TOO_SLOW"}


def test_a_round_s_policy_has_the_task_s_parameters_and_the_clients_history(uow: UnitOfWork) -> None:
    factories.reporting_clients(uow, "late", "good", "new")
    task = factories.ready_task(uow, policy="most-reliable", policy_parameters={"clients": 2}, seed=1)
    first = open_round(uow, task.task_id, NOW)
    chosen = [slot.client_id for slot in uow.rounds.slots(first.serial)]
    assert first.terms.policy_parameters == {"clients": 2}
    assert sorted(_outcomes(uow, first).values()) == ["NOT_CHOSEN", "SELECTED", "SELECTED"]
    factories.received_update(uow, first, chosen[0])
    uow.rounds.settle_slots(first.serial)
    task = uow.tasks.get(task.task_id, lock=True)
    end_round(uow, task, uow.rounds.get(first.round_id), RoundState.FAILED, NOW)

    second = open_round(uow, task.task_id, NOW)
    assert _outcomes(uow, second)[chosen[1]] == "NOT_CHOSEN"  # it missed the first
    assert uow.rounds.get(second.round_id).terms.policy_parameters == {"clients": 2}
