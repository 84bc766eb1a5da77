"""Uploads at the deadline of a wall-clock round: judged by when their last byte was read by the service."""

import fcntl
import hashlib
import os
import sqlite3
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from structlog.testing import capture_logs

from benchmarks.deadline_uploads import make_bodies, run_round
from tests.databases import new_database
from tests.in_process_service import TimedService
from tests.integration.cell import as_client, assert_problem, content_digest, make_model
from tests.integration.rounds_setup import (
    eventually,
    get_round,
    quick_round,
    round_in_state,
    slot_of,
    upload_as,
)
from tests.running_service import running_service, service_process

DEADLINE_S = 20
SETTLE_S = 30
KNOWN_AFTER_S = 1


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        yield pool


@contextmanager
def stalled_model_store(data_dir: Path) -> Iterator[None]:
    """Nothing can be kept meanwhile: the store takes this lock when it keeps a file."""
    descriptor = os.open(data_dir / "models", os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def begin_upload(
    pool: ThreadPoolExecutor, service: httpx.Client, key: str, round_id: str, client_id: str
) -> Future[httpx.Response]:
    return pool.submit(upload_as, service, key, round_id, client_id, fedcs_elapsed_s=None)


def arrived(timed: TimedService, round_id: str, client_id: str) -> bool:
    """Whether the slot says that an update has arrived."""
    with timed.parts.database.reading() as store:
        slot = store.rounds.slot(store.rounds.get(round_id).serial, client_id)
    return slot is not None and slot.uploaded_at is not None


def is_open(timed: TimedService, round_id: str) -> bool:
    """Whether a round is open, now that all are closed that are to be closed now."""
    timed.parts.reconciler._close_rounds()
    return get_round(timed.client, round_id)["state"] in ("scheduled", "collecting")


def test_an_update_that_arrived_in_time_is_accepted_however_long_the_store_takes(
    timed: TimedService, pool: ThreadPoolExecutor
) -> None:
    opened, keys = quick_round(timed.client, 2, round_deadline_s=DEADLINE_S)
    round_id, (client_id, silent) = opened["round_id"], list(keys)
    timed.clock.advance(DEADLINE_S - 0.001)
    with stalled_model_store(timed.data_dir):
        sent = begin_upload(pool, timed.client, keys[client_id], round_id, client_id)
        eventually(lambda: arrived(timed, round_id, client_id))
        timed.clock.advance(SETTLE_S)
        assert is_open(timed, round_id)
        retried = upload_as(timed.client, keys[client_id], round_id, client_id, fedcs_elapsed_s=None)
        assert_problem(retried, 409, "DEADLINE_PASSED")
        assert slot_of(timed.client, round_id, client_id)["outcome"] == "pending"
    assert sent.result().status_code == 201, sent.result().text
    slot = slot_of(timed.client, round_id, client_id)
    assert (slot["outcome"], slot["elapsed_s"], slot["actual_upload_s"]) == ("received", 19.999, 0)
    assert not is_open(timed, round_id)
    closed = get_round(timed.client, round_id)
    assert (closed["state"], closed["received"]) == ("aggregating", 1)
    assert slot_of(timed.client, round_id, silent)["outcome"] == "missed"


def test_a_round_past_its_deadline_assigns_nothing_while_it_waits(
    timed: TimedService, pool: ThreadPoolExecutor
) -> None:
    opened, keys = quick_round(timed.client, 2, round_deadline_s=DEADLINE_S)
    round_id, (client_id, silent) = opened["round_id"], list(keys)
    with stalled_model_store(timed.data_dir), as_client(timed.client, keys[silent]) as device:
        begin_upload(pool, timed.client, keys[client_id], round_id, client_id)
        eventually(lambda: arrived(timed, round_id, client_id))
        assert len(device.get("/assignments").json()["assignments"]) == 1
        timed.clock.advance(DEADLINE_S)
        assert device.get("/assignments").json()["assignments"] == []
        assert is_open(timed, round_id)


def test_a_round_waits_for_a_stalled_store_no_longer_than_settle_s(
    timed: TimedService, pool: ThreadPoolExecutor
) -> None:
    opened, keys = quick_round(timed.client, round_deadline_s=DEADLINE_S)
    round_id, ((client_id, key),) = opened["round_id"], keys.items()
    with stalled_model_store(timed.data_dir):
        sent = begin_upload(pool, timed.client, key, round_id, client_id)
        eventually(lambda: arrived(timed, round_id, client_id))
        timed.clock.advance(DEADLINE_S + SETTLE_S - 0.001)
        assert is_open(timed, round_id)
        timed.clock.advance(0.001)
        assert not is_open(timed, round_id)
    assert_problem(sent.result(), 409, "ROUND_NOT_COLLECTING")
    assert get_round(timed.client, round_id)["outcome"] == "TOO_FEW_UPDATES"
    assert slot_of(timed.client, round_id, client_id)["outcome"] == "missed"


def test_a_round_does_not_wait_for_an_upload_that_is_still_being_received(timed: TimedService) -> None:
    opened, keys = quick_round(timed.client, round_deadline_s=DEADLINE_S)
    round_id, ((client_id, key),) = opened["round_id"], keys.items()
    update, states = make_model(3), []

    def slowly() -> Iterator[bytes]:
        yield update[:-1]
        eventually(lambda: any((timed.data_dir / "models" / "incoming").iterdir()))
        timed.clock.advance(DEADLINE_S + KNOWN_AFTER_S)
        states.append(is_open(timed, round_id))
        yield update[-1:]

    headers = content_digest(update) | {"Fedcs-Data-Samples": "200", "Authorization": f"Bearer {key}"}
    response = timed.client.put(f"/rounds/{round_id}/updates/{client_id}", content=slowly(), headers=headers)
    assert states == [False]
    assert_problem(response, 409, "DEADLINE_PASSED")
    slot = slot_of(timed.client, round_id, client_id)
    assert (slot["outcome"], slot["elapsed_s"]) == ("late", DEADLINE_S + KNOWN_AFTER_S)


@pytest.mark.parametrize(
    ("update", "announced", "cause"),
    [(b"{}", b"{}", "BAD_TENSORS"), (make_model(1), make_model(2), "DIGEST_MISMATCH")],
)
def test_nobody_waits_for_an_update_that_was_rejected(
    timed: TimedService, update: bytes, announced: bytes, cause: str
) -> None:
    opened, keys = quick_round(timed.client, round_deadline_s=DEADLINE_S)
    round_id, ((client_id, key),) = opened["round_id"], keys.items()
    headers = content_digest(announced) | {"Fedcs-Data-Samples": "200", "Authorization": f"Bearer {key}"}
    response = timed.client.put(f"/rounds/{round_id}/updates/{client_id}", content=update, headers=headers)
    assert_problem(response, 422, cause)
    timed.clock.advance(DEADLINE_S + KNOWN_AFTER_S)
    assert not is_open(timed, round_id)
    assert slot_of(timed.client, round_id, client_id)["outcome"] == "rejected"


def test_nobody_waits_for_an_update_that_could_not_be_kept(timed: TimedService) -> None:
    opened, keys = quick_round(timed.client, round_deadline_s=DEADLINE_S)
    round_id, ((client_id, key),) = opened["round_id"], keys.items()
    update = make_model(42)
    in_the_way = timed.data_dir / "models" / hashlib.sha256(update).hexdigest()[:2]
    in_the_way.touch(exist_ok=False)  # where a directory should be
    with capture_logs():  # the traceback would take seconds to print
        response = upload_as(timed.client, key, round_id, client_id, update=update, fedcs_elapsed_s=None)
    in_the_way.unlink()
    assert_problem(response, 500, "INTERNAL_ERROR")
    assert not arrived(timed, round_id, client_id)
    again = upload_as(timed.client, key, round_id, client_id, update=update, fedcs_elapsed_s=None)
    assert again.status_code == 201


def test_another_process_waits_for_an_update_that_arrived_in_time(
    tmp_path: Path, postgres_url: str, pool: ThreadPoolExecutor
) -> None:
    """The first process closes rounds, the second receives the update."""
    url = new_database("postgresql", tmp_path, postgres_url)
    with running_service(tmp_path, database_url=url), running_service(tmp_path, database_url=url) as service:
        opened, keys = quick_round(service, 2, round_deadline_s=10)
        round_id, client_id = opened["round_id"], next(iter(keys))
        deadline = datetime.fromisoformat(opened["upload_deadline_at"])
        with stalled_model_store(tmp_path):
            sent = begin_upload(pool, service, keys[client_id], round_id, client_id)
            time.sleep(max(0.0, (deadline - datetime.now(UTC)).total_seconds()) + 2)
            assert slot_of(service, round_id, client_id)["outcome"] == "pending"
        assert sent.result().status_code == 201, sent.result().text
        assert round_in_state(service, round_id, "aggregating")["received"] == 1


def test_a_killed_process_holds_a_round_no_longer_than_settle_s(
    tmp_path: Path, pool: ThreadPoolExecutor
) -> None:
    url = new_database("sqlite", tmp_path, "")

    def is_recorded() -> bool:
        with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
            (number,) = connection.execute("SELECT count(uploaded_at) FROM slots").fetchone()
        return bool(number)

    with service_process(tmp_path, None, database_url=url) as (service, process):
        opened, keys = quick_round(service, round_deadline_s=3)
        round_id, ((client_id, key),) = opened["round_id"], keys.items()
        with stalled_model_store(tmp_path):
            sent = begin_upload(pool, service, key, round_id, client_id)
            eventually(is_recorded)
            process.kill()
            assert isinstance(sent.exception(), httpx.TransportError)
    with running_service(tmp_path, database_url=url, settle_s="4") as service:
        assert round_in_state(service, round_id, "failed")["duration_s"] >= 3 + 4
        assert slot_of(service, round_id, client_id)["outcome"] == "missed"


@pytest.mark.parametrize("lead_s", [0.05, -0.05])
def test_every_upload_at_the_deadline_is_judged_by_its_arrival(
    lead_s: float, service_on_each: httpx.Client
) -> None:
    """The last kilobyte of each is sent just before the deadline, or just after it."""
    model, bodies = make_bodies(200_000, 20)
    result = run_round(service_on_each, model, bodies, 4.0, lead_s)
    assert (len(result.arrived_s), result.wrong) == (20, 0)
    assert result.accepted == sum(arrived_s < 0 for arrived_s in result.arrived_s)
