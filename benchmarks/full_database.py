"""A large database: 200 tasks, 1,000 rounds, 10,000 clients, 100,000 events."""

from datetime import UTC, datetime, timedelta

import numpy as np
from sqlalchemy import Connection, insert, update

from services.contract.tasks import TaskRequest
from services.domain.radio import Cell
from services.domain.rounds import Round, RoundState, SlotOutcome
from services.domain.tasks import Clock
from services.protocol.initialization import set_initial_model, start_task
from services.protocol.resource_request import open_round
from services.storage.database import Database
from services.storage.model_store import Blob
from services.storage.sql import to_microseconds
from services.storage.tables import evaluations, model_versions, rounds, slots, tasks

TASKS = 200
ROUNDS_PER_TASK = 5
CLIENTS = 10_000
EVENTS = 100_000
_ASKED = 0.01
"""100 clients, as in the paper."""
_ROUND_S = 180.0
_MODEL = Blob("0" * 64, 18_300_000)


def fill(database: Database) -> tuple[str, str]:
    """Fill the database; return the ids of the newest task and of its newest round."""
    now = datetime.now(UTC)
    _enrol(database, now)
    for place in range(TASKS):
        task_id, round_id = _play_task(database, place, now)
    with database.unit_of_work() as uow:
        missing = EVENTS - uow.events.last_number()
        for place in range(missing):
            client_id = f"client-{place % CLIENTS}"
            uow.events.record(
                "update.received", now, task_id=task_id, round_id=round_id, client_id=client_id, elapsed_s=1.0
            )
        uow.commit()
    with database.engine.connect() as connection:
        connection.exec_driver_sql("ANALYZE")
        connection.commit()
    return task_id, round_id


def _enrol(database: Database, now: datetime) -> None:
    reports = Cell().draw_reports(CLIENTS, np.random.default_rng(0))
    now_us = to_microseconds(now)
    numbers = zip(
        reports.throughput_bps.tolist(),
        reports.compute_samples_per_s.tolist(),
        reports.data_samples.tolist(),
        strict=True,
    )
    with database.unit_of_work() as uow:
        serials = uow.clients.add({f"client-{place}": {} for place in range(CLIENTS)}, now)
        uow.reports.add(
            [
                (serial, None, *figures, 10, now_us, now_us, None, None)
                for serial, figures in zip(serials.values(), numbers, strict=True)
            ]
        )
        uow.commit()


def _play_task(database: Database, place: int, now: datetime) -> tuple[str, str]:
    request = TaskRequest(
        name=f"task {place}",
        round_deadline_s=_ROUND_S,
        model_size_bytes=_MODEL.size_bytes,
        request_fraction=_ASKED,
        dataset="cifar-10",
        clock=Clock.SIMULATED,
        seed=place,
    )
    with database.unit_of_work() as uow:
        task = start_task(uow, request.terms(), now)
        set_initial_model(uow, task.task_id, _MODEL, now)
        uow.commit()
    for _ in range(ROUNDS_PER_TASK):
        with database.unit_of_work() as uow:
            round_ = open_round(uow, task.task_id, now)
            uow.commit()
        with database.transaction(writing=True) as connection:
            _end_round(connection, round_, now)
            connection.commit()
    return task.task_id, round_.round_id


def _end_round(connection: Connection, round_: Round, now: datetime) -> None:
    """What uploads, a worker's average and its evaluation leave behind."""
    later = now + timedelta(seconds=_ROUND_S)
    of_task = {"task_serial": round_.task_serial, "version": round_.number}
    model = {"digest": _MODEL.digest, "size_bytes": _MODEL.size_bytes, "created_at": later}
    score = {
        "accuracy": 1 - 0.9**round_.number,
        "loss": 2 / round_.number,
        "samples": 10_000,
        "evaluated_at": later,
    }
    received = {"outcome": SlotOutcome.RECEIVED, "uploaded_at": later, "elapsed_s": 100.0}
    ended = {
        "state": RoundState.AGGREGATED,
        "ended_at": later,
        "duration_s": 170.0,
        "task_elapsed_s": round_.number * _ROUND_S,
        "received": rounds.c.selected,
    }
    progress = {"model_version": round_.number, "elapsed_s": round_.number * _ROUND_S}
    connection.execute(update(slots).where(slots.c.round_serial == round_.serial).values(**received))
    connection.execute(insert(model_versions), of_task | model)
    connection.execute(insert(evaluations), of_task | score)
    connection.execute(update(rounds).where(rounds.c.serial == round_.serial).values(**ended))
    connection.execute(update(tasks).where(tasks.c.serial == round_.task_serial).values(**progress))
