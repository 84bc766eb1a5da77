"""The clients in both kinds of database."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from services.domain.rounds import SlotOutcome
from services.errors import ClientExistsError, ClientNotFoundError
from services.storage.clients import Client, TrackRecord
from services.storage.database import Database, Store, UnitOfWork
from services.storage.sql import Paging
from tests.integration.storage import factories
from tests.integration.storage.factories import NOW, SECOND


def test_a_client_is_kept_with_its_labels(database: Database) -> None:
    with database.unit_of_work() as uow:
        serials = uow.clients.add({"a": {"city": "Ålborg", "class": "car"}, "b": {}}, NOW)
        uow.commit()
    with database.reading() as store:
        assert store.clients.get("a") == Client(
            serials["a"], "a", NOW, "default", {"city": "Ålborg", "class": "car"}
        )
        assert store.clients.get("b") == Client(serials["b"], "b", NOW, "default", {})
        with pytest.raises(ClientNotFoundError, match="'A'"):
            store.clients.get("A")


def test_a_known_client_is_refused_and_with_it_all_that_came_with_it(database: Database) -> None:
    with database.unit_of_work() as uow:
        factories.clients(uow, "a")
        uow.commit()
    with database.unit_of_work() as uow, pytest.raises(ClientExistsError, match="'a'"):
        factories.clients(uow, "b", "a", "c")
    with database.reading() as store:
        assert store.clients.page(Paging(1, 10), {}).total == 1


def test_of_two_that_enrol_the_same_client_at_once_one_is_refused(database: Database) -> None:
    def enrol() -> None:
        with database.unit_of_work() as uow:
            factories.clients(uow, "a", labels={"class": "bus"})
            uow.commit()

    with ThreadPoolExecutor(1) as pool:
        with database.unit_of_work() as uow:
            factories.clients(uow, "a", labels={"class": "car"})
            other = pool.submit(enrol)
            with pytest.raises(TimeoutError):
                other.result(timeout=0.2)
            uow.commit()
        with pytest.raises(ClientExistsError):
            other.result()
    with database.reading() as store:
        assert store.clients.get("a").labels == {"class": "car"}


def test_more_clients_than_a_query_takes_parameters_are_enrolled_at_once(database: Database) -> None:
    client_ids = [f"client-{number}" for number in range(2500)]
    with database.unit_of_work() as uow:
        serials = factories.clients(uow, *client_ids, labels={"class": "car"})
        uow.commit()
        assert set(serials) == set(client_ids)
        assert uow.clients.serials_of([*client_ids, "stranger"]) == serials
        assert len(uow.clients.serials_with({"class": "car"})) == 2500


def test_pages_are_in_the_order_of_enrolment_and_tell_how_many_there_are(database: Database) -> None:
    with database.unit_of_work() as uow:
        factories.clients(uow, "z", "y", labels={"class": "car", "city": "A"})
        factories.clients(uow, "x", labels={"class": "bus", "city": "A"})
        factories.clients(uow, "b", "a", labels={"class": "car", "city": "B"})
        uow.commit()
    with database.reading() as store:
        assert _page(store, 1, 2) == (["z", "y"], 5)
        assert _page(store, 3, 2) == (["a"], 5)
        assert _page(store, 4, 2) == ([], 5)
        assert _page(store, 1, 9, {"class": "car"}) == (["z", "y", "b", "a"], 4)
        assert _page(store, 2, 3, {"class": "car"}) == (["a"], 4)
        assert _page(store, 1, 9, {"class": "car", "city": "B"}) == (["b", "a"], 2)
        assert _page(store, 1, 9, {"class": "A"}) == ([], 0)
        assert len(store.clients.serials_with({"city": "A", "class": "bus"})) == 1
        (first,) = store.clients.page(Paging(1, 1), {}).items
        assert first.labels == {"city": "A", "class": "car"}


def test_serials_come_in_the_order_of_enrolment_and_lead_to_ids(database: Database) -> None:
    with database.unit_of_work() as uow:
        serials = factories.clients(uow, *"hgfedcba")
        found = uow.clients.serials_with({}).serials
        assert found.tolist() == [serials[client_id] for client_id in "hgfedcba"]
        assert uow.clients.ids_of(found[[6, 0]]) == {serials["b"]: "b", serials["h"]: "h"}
        assert uow.clients.ids_of(found[[]]) == {}
        assert uow.clients.serials_with({"class": "car"}).serials.tolist() == []


def test_serials_are_of_those_with_the_labels_and_not_of_those_removed(database: Database) -> None:
    with database.unit_of_work() as uow:
        for client_id in "abcdef":
            factories.clients(uow, client_id, labels={"class": "car" if client_id in "bdf" else "bus"})
        assert _ids(uow, {"class": "car"}) == ["b", "d", "f"]
        removed = uow.clients.get("d").serial
        uow.clients.remove("d")
        uow.clients.remove("a")
        factories.clients(uow, "g", labels={"class": "car"})
        assert _ids(uow, {"class": "car"}) == ["b", "f", "g"]
        assert _ids(uow, {}) == ["b", "c", "e", "f", "g"]
        assert uow.clients.ids_of(np.array([removed])) == {}


def _ids(uow: UnitOfWork, labels: dict[str, str]) -> list[str]:
    serials = uow.clients.serials_with(labels).serials
    ids = uow.clients.ids_of(serials)
    return [ids[serial] for serial in serials.tolist()]


def test_with_a_client_go_its_keys_labels_and_reports_but_not_its_past(database: Database) -> None:
    with database.unit_of_work() as uow:
        busy = factories.busy_round(uow)
        serial = uow.clients.get("idle").serial
        uow.clients.remove("idle")
        uow.commit()
    with database.reading() as store:
        with pytest.raises(ClientNotFoundError):
            store.clients.get("idle")
        assert store.keys.find(busy.client_key.key_id) is None
        assert store.keys.find(busy.operator_key.key_id) is not None
        assert len(store.clients.serials_with({"city": "Aalborg"})) == 2
        assert store.reports.page(serial, Paging(1, 10)).total == 0
        assert store.reports.page(store.clients.get("done").serial, Paging(1, 10)).total == 1
        assert store.rounds.candidate(busy.round_.serial, "idle") is not None
        assert store.rounds.slot(busy.round_.serial, "idle") is not None
        assert store.clients.track_records(["idle"])["idle"].slots == 1


def test_an_unknown_client_cannot_be_removed(database: Database) -> None:
    with database.unit_of_work() as uow, pytest.raises(ClientNotFoundError, match="'nobody'"):
        uow.clients.remove("nobody")


def test_a_removed_clients_serial_never_comes_back(database: Database) -> None:
    with database.unit_of_work() as uow:
        serials = factories.clients(uow, "a", "b")
        uow.clients.remove("b")
        uow.commit()
    with database.unit_of_work() as uow:
        assert factories.clients(uow, "b")["b"] > max(serials.values())


def test_the_track_record_counts_outcomes_and_compares_times_with_the_estimates(database: Database) -> None:
    with database.unit_of_work() as uow:
        first = factories.scheduled_round(uow, "a", "b", "c")
        _outcome(uow, first.serial, "a", SlotOutcome.RECEIVED, actual_update_s=1.5, actual_upload_s=1.0)
        _outcome(uow, first.serial, "b", SlotOutcome.MISSED)
        second = factories.scheduled_round(uow, "d", "e")
        _outcome(uow, second.serial, "a", SlotOutcome.LATE, actual_update_s=2.5, actual_upload_s=None)
        _outcome(uow, second.serial, "c", SlotOutcome.REJECTED)
        uow.commit()
    with database.reading() as store:
        records = store.clients.track_records(["a", "b", "c", "nobody"])
        assert records["a"] == TrackRecord(
            2, received=1, late=1, update_ratio=2.0, upload_ratio=1.0, update_spread=0.5, upload_spread=0.0
        )
        assert records["b"] == TrackRecord(2, missed=1)
        assert records["c"] == TrackRecord(2, rejected=1)
        assert records["nobody"] == TrackRecord()
        assert "d" not in records


def test_a_client_without_work_to_do_spoils_no_ratio(database: Database) -> None:
    with database.unit_of_work() as uow:
        round_ = factories.scheduled_round(uow, "a")
        _outcome(
            uow,
            round_.serial,
            "a",
            SlotOutcome.RECEIVED,
            update_ns=0,
            actual_update_s=1.0,
            actual_upload_s=2.0,
        )
        uow.commit()
    with database.reading() as store:
        record = store.clients.track_records(["a"])["a"]
    assert (record.update_ratio, record.upload_ratio) == (None, 2.0)


def _outcome(uow: UnitOfWork, round_serial: int, client_id: str, outcome: SlotOutcome, **values: Any) -> None:
    uow.rounds.change_slot(round_serial, client_id, outcome=outcome, uploaded_at=NOW + SECOND, **values)


def _page(
    store: Store, page: int, per_page: int, labels: Mapping[str, str] | None = None
) -> tuple[list[str], int]:
    found = store.clients.page(Paging(page, per_page), labels or {})
    return [client.client_id for client in found.items], found.total
