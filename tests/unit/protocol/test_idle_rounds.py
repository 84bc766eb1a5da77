"""Rounds without a deadline on the wall clock whose clients fall silent."""

from datetime import timedelta

import pytest

from services.domain.jobs import JobKind
from services.domain.rounds import RoundState, SlotOutcome
from services.domain.tasks import Clock
from services.protocol.aggregation import close_if_overdue
from services.storage.database import UnitOfWork
from tests.integration.storage import factories
from tests.integration.storage.factories import NOW, SECOND, SETTLE

IDLE_S = 600
SIMULATED = {"clock": Clock.SIMULATED}
WITHOUT_DEADLINE = {"clock": Clock.WALL, "policy": "fl"}


@pytest.mark.parametrize("terms", [SIMULATED, WITHOUT_DEADLINE])
@pytest.mark.parametrize(
    ("min_updates", "state", "outcome"),
    [(1, RoundState.AGGREGATING, None), (2, RoundState.AGGREGATING, None), (3, "failed", "IDLE_TIMEOUT")],
)
def test_after_silence_a_round_with_enough_updates_is_aggregated(
    uow: UnitOfWork, terms: dict[str, object], min_updates: int, state: str, outcome: str | None
) -> None:
    round_ = factories.scheduled_round(
        uow, "a", "b", "silent", idle_timeout_s=float(IDLE_S), min_updates=min_updates, **terms
    )
    for client_id in ("a", "b"):
        factories.received_update(uow, round_, client_id)
    close_if_overdue(uow, round_.round_id, NOW + timedelta(seconds=IDLE_S) - SECOND, SETTLE)
    assert uow.rounds.get(round_.round_id).state is RoundState.COLLECTING
    close_if_overdue(uow, round_.round_id, NOW + timedelta(seconds=IDLE_S), SETTLE)
    closed = uow.rounds.get(round_.round_id)
    assert (closed.state, closed.outcome) == (state, outcome)
    outcomes = {slot.client_id: slot.outcome for slot in uow.rounds.slots(round_.serial)}
    assert outcomes == {
        "a": SlotOutcome.RECEIVED,
        "b": SlotOutcome.RECEIVED,
        "silent": SlotOutcome.MISSED,
    }
    waiting = [job.kind for job in uow.jobs.to_publish(NOW, SECOND, 100)]
    assert (JobKind.AGGREGATE_ROUND in waiting) == (outcome is None)
