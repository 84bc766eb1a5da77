"""How long updates took, on the wall clock: told by the client, or measured without the wait for the slot."""

from datetime import datetime, timedelta

import pytest

from services.domain.rounds import Slot
from services.domain.tasks import Clock
from services.protocol.distribution import record_model_fetched
from services.protocol.upload import ReceivedUpdate, UploadTiming, accept_updates, record_late
from services.storage.database import UnitOfWork
from tests.integration.storage import factories
from tests.integration.storage.factories import NOW, UPDATE

WINDOW_START_S = 2
"""In a round of one client: a second to distribute the model, and a second to update it."""


def _at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def _slot(
    uow: UnitOfWork, *, fetched_s: float | None, began_s: float, update_s: float | None, is_late: bool = False
) -> Slot:
    """The slot of a client whose upload began then, and took half a second."""
    round_ = factories.scheduled_round(uow, "a", clock=Clock.WALL)
    if fetched_s is not None:
        record_model_fetched(uow, round_.round_id, "a", _at(fetched_s))
    arrival = UploadTiming(_at(began_s), update_s=update_s)
    if is_late:
        record_late(uow, round_.round_id, "a", arrival, _at(began_s + 0.5))
    else:
        received = ReceivedUpdate("a", UPDATE, 100, arrival, _at(began_s + 0.5))
        accept_updates(uow, round_.round_id, [received], _at(began_s + 0.5))
    slot = uow.rounds.slot(round_.serial, "a")
    assert slot is not None
    assert slot.window_start_ns == WINDOW_START_S * 10**9
    assert slot.actual_upload_s == 0.5
    return slot


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize(
    ("fetched_s", "began_s", "update_s", "actual_s"),
    [
        (0.25, 1.75, None, 1.5),
        (0.25, WINDOW_START_S, None, None),
        (0.25, 8.0, None, None),
        (0.25, 8.0, 2.75, 2.75),
        (0.25, 1.75, 1.0, 1.0),
        (None, 1.75, None, None),
        (None, 1.75, 1.0, 1.0),
        (None, 8.0, 0.0, 0.0),
    ],
)
def test_an_update_takes_what_the_client_says_or_what_cannot_have_been_a_wait(
    uow: UnitOfWork,
    fetched_s: float | None,
    began_s: float,
    update_s: float | None,
    actual_s: float | None,
    *,
    is_late: bool,
) -> None:
    slot = _slot(uow, fetched_s=fetched_s, began_s=began_s, update_s=update_s, is_late=is_late)
    assert slot.actual_update_s == actual_s


def test_an_honest_device_that_waits_for_its_slot_is_as_fast_as_it_reported(uow: UnitOfWork) -> None:
    _slot(uow, fetched_s=0.25, began_s=8.0, update_s=1.0)
    assert uow.clients.track_records(["a"])["a"].update_ratio == 1.0


def test_without_a_known_time_there_is_no_ratio(uow: UnitOfWork) -> None:
    _slot(uow, fetched_s=0.25, began_s=8.0, update_s=None)
    assert uow.clients.track_records(["a"])["a"].update_ratio is None
