"""Rejected uploads: all are counted, and only some cause an event."""

from services.domain.rounds import MAX_REJECTION_EVENTS_PER_ROUND, MAX_REJECTION_EVENTS_PER_SLOT, Round
from services.protocol.upload import record_rejection
from services.storage.database import UnitOfWork
from tests.integration.storage import factories
from tests.integration.storage.factories import NOW


def _events(uow: UnitOfWork) -> list[tuple[str | None, str]]:
    uow.events.write()
    told = uow.events.after(0, 10_000)
    return [(event.client_id, event.data["reason"]) for event in told if event.kind == "update.rejected"]


def _rejections(uow: UnitOfWork, round_: Round, client_id: str) -> tuple[int, str | None]:
    slot = uow.rounds.slot(round_.serial, client_id)
    assert slot is not None
    return slot.rejections, slot.last_rejection


def test_a_slot_has_a_limited_number_of_events(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "hostile", "honest")
    attempts = MAX_REJECTION_EVENTS_PER_SLOT + 5
    for attempt in range(attempts):
        record_rejection(uow, round_.round_id, "hostile", f"bad {attempt}", NOW)
    record_rejection(uow, round_.round_id, "honest", "not finite", NOW)
    assert _events(uow) == [
        *(("hostile", f"bad {attempt}") for attempt in range(MAX_REJECTION_EVENTS_PER_SLOT)),
        ("honest", "not finite"),
    ]
    assert _rejections(uow, round_, "hostile") == (attempts, f"bad {attempts - 1}")


def test_a_round_has_a_limited_number_of_events(uow: UnitOfWork) -> None:
    slots = MAX_REJECTION_EVENTS_PER_ROUND // MAX_REJECTION_EVENTS_PER_SLOT
    others = [f"other-{number}" for number in range(slots)]
    round_ = factories.scheduled_round(uow, "last", "beyond", *others, policy="fl")
    for client_id in others:
        uow.rounds.change_slot(round_.serial, client_id, rejections=MAX_REJECTION_EVENTS_PER_SLOT)
    uow.rounds.change_slot(round_.serial, others[0], rejections=MAX_REJECTION_EVENTS_PER_SLOT - 1)
    record_rejection(uow, round_.round_id, "last", "within the limit", NOW)
    for _ in range(2):
        record_rejection(uow, round_.round_id, "beyond", "not finite", NOW)
    assert _events(uow) == [("last", "within the limit")]
    assert _rejections(uow, round_, "beyond") == (2, "not finite")


def test_one_client_does_not_use_up_the_events_of_a_round(uow: UnitOfWork) -> None:
    round_ = factories.scheduled_round(uow, "hostile", "honest")
    uow.rounds.change_slot(round_.serial, "hostile", rejections=10 * MAX_REJECTION_EVENTS_PER_ROUND)
    record_rejection(uow, round_.round_id, "honest", "not finite", NOW)
    assert _events(uow) == [("honest", "not finite")]
