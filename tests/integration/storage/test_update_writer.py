"""Updates that come at once, in one transaction and each with an outcome of its own, in both databases."""

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import pytest
from sqlalchemy.exc import SQLAlchemyError

from operator_api.writers import UpdateWriter
from services.domain.rounds import RoundState, SlotOutcome
from services.errors import DeadlinePassedError, UpdateExistsError
from services.protocol.upload import ReceivedUpdate, UploadTiming
from services.storage.database import Database
from services.storage.model_store import Blob
from tests.integration.storage import factories
from tests.integration.storage.factories import NOW, SECOND, UPDATE

OTHER = Blob("c" * 64, 125_000)


def received(client_id: str, blob: Blob = UPDATE, elapsed_s: float = 10.0) -> ReceivedUpdate:
    return ReceivedUpdate(client_id, blob, 100, UploadTiming(NOW, elapsed_s, 2.0, 3.0), NOW + SECOND)


def round_of(database: Database, *client_ids: str) -> str:
    with database.unit_of_work() as uow:
        round_ = factories.scheduled_round(uow, *client_ids)
        uow.commit()
    return round_.round_id


def accept_at_once(writer: UpdateWriter, uploads: Sequence[tuple[str, ReceivedUpdate]]) -> list[Future[bool]]:
    """As if all had come while another transaction was under way."""
    with ThreadPoolExecutor(len(uploads)) as pool:
        with writer._lock:
            sent = []
            for round_id, item in uploads:
                sent.append(pool.submit(writer.accept, round_id, item))
                while len(writer._waiting) < len(sent):
                    time.sleep(0.001)
        return sent


def test_those_who_come_at_once_share_a_transaction_and_its_events(database: Database) -> None:
    round_id = round_of(database, *"abc")
    commits: list[set[str]] = []
    database.add_event_listener(lambda kinds: commits.append(set(kinds)))
    sent = accept_at_once(UpdateWriter(database), [(round_id, received(item)) for item in "cab"])
    assert [item.result() for item in sent] == [True] * 3
    assert commits == [{"update.received", "round.collecting", "round.aggregating"}]
    with database.reading() as store:
        round_ = store.rounds.get(round_id)
        assert (round_.state, round_.received) == (RoundState.AGGREGATING, 3)
        assert round_.active_at == NOW + SECOND
        assert {slot.outcome for slot in store.rounds.slots(round_.serial)} == {SlotOutcome.RECEIVED}
        assert sorted(update.client_id for update in store.updates.of_round(round_.serial)) == ["a", "b", "c"]
        told = [event.client_id for event in store.events.after(0, 100) if event.kind == "update.received"]
    assert told == ["c", "a", "b"], "in the order they came"


def test_each_has_its_own_outcome(database: Database) -> None:
    round_id, elsewhere = round_of(database, *"abc"), round_of(database, "d")
    uploads = [
        (round_id, received("a")),
        (round_id, received("b", elapsed_s=180.0)),
        (elsewhere, received("d")),
        (round_id, received("a")),
        (round_id, received("a", OTHER)),
    ]
    first, late, other_round, repeated, other_bytes = accept_at_once(UpdateWriter(database), uploads)
    assert first.result() is True
    assert repeated.result() is False
    assert other_round.result() is True
    assert isinstance(late.exception(), DeadlinePassedError)
    assert isinstance(other_bytes.exception(), UpdateExistsError)
    with database.reading() as store:
        round_ = store.rounds.get(round_id)
        assert (round_.state, round_.received) == (RoundState.COLLECTING, 1)
        kept = store.updates.of_round(round_.serial)
    assert [(item.client_id, item.digest) for item in kept] == [("a", UPDATE.digest)]


def test_what_was_recorded_before_is_known(database: Database) -> None:
    round_id = round_of(database, *"ab")
    writer = UpdateWriter(database)
    assert writer.accept(round_id, received("a")) is True
    assert writer.accept(round_id, received("a")) is False
    with pytest.raises(UpdateExistsError):
        writer.accept(round_id, received("a", OTHER))


def test_a_transaction_that_fails_fails_for_all_in_it_and_for_nobody_else(database: Database) -> None:
    round_id, elsewhere = round_of(database, *"ab"), round_of(database, "c")
    wrong = replace(received("b"), data_samples=0)  # which the database refuses
    uploads = [(round_id, received("a")), (round_id, wrong), (elsewhere, received("c"))]
    first, second, third = accept_at_once(UpdateWriter(database), uploads)
    assert isinstance(first.exception(), SQLAlchemyError)
    assert isinstance(second.exception(), SQLAlchemyError)
    assert third.result() is True
    writer = UpdateWriter(database)
    assert writer.accept(round_id, received("a")) is True, "nothing of it was recorded"


def test_what_an_upload_is_held_against_is_read_at_once(database: Database) -> None:
    round_id = round_of(database, *"ab")
    with database.reading() as store:
        round_ = store.rounds.get(round_id)
        task = store.tasks.get(round_.task_id)
        awaited = store.updates.upload_context(round_id, "b")
        assert awaited == (task, round_, store.rounds.slot(round_.serial, "b"), factories.MODEL)
        assert store.updates.upload_context(round_id, "stranger") == (task, round_, None, factories.MODEL)
