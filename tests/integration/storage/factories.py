"""What tests of the storage start from: clients with reports, tasks, and rounds under way."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from services.access import ApiKey, NewKey, Scope, make_key
from services.domain.cells import BlockRange
from services.domain.jobs import WorkerIdentity
from services.domain.rounds import Round
from services.domain.tasks import (
    Clock,
    DeadlineMode,
    DeviceEvaluation,
    Dispatch,
    Evaluation,
    PartitionScheme,
    Score,
    SlotEnforcement,
    TargetMetric,
    Task,
    TaskTerms,
)
from services.protocol.initialization import set_initial_model, start_task
from services.protocol.jobs import request_training
from services.protocol.resource_request import open_round
from services.protocol.upload import ReceivedUpdate, UploadTiming, accept_updates
from services.storage.coordination import SavedAnswer
from services.storage.database import UnitOfWork
from services.storage.model_store import Blob
from services.storage.reports import ReportRow
from services.storage.sql import to_microseconds

NOW = datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
SECOND = timedelta(seconds=1)
SETTLE = timedelta(seconds=30)
MODEL = Blob("a" * 64, 125_000)
UPDATE = Blob("b" * 64, 125_000)


def terms(**changes: object) -> TaskTerms:
    """Of a simulated task that asks everyone."""
    values: dict[str, Any] = {
        "name": "digits",
        "model": "cnn",
        "dataset": "mnist",
        "partition_scheme": PartitionScheme.IID,
        "local_epochs": 1,
        "batch_size": 50,
        "learning_rate": 0.25,
        "learning_rate_decay": 0.99,
        "aggregation": "weighted",
        "policy": "fedcs",
        "round_deadline_s": 180.0,
        "final_deadline_s": None,
        "request_fraction": 1.0,
        "target_accuracy": None,
        "clock": Clock.SIMULATED,
        "report_max_age_s": 3600.0,
        "report_window_s": 0.0,
        "model_size_bytes": None,
        "selection_s": 0.0,
        "aggregation_s": 0.0,
        "resource_blocks": 10,
        "auto_advance": False,
        "seed": 7,
        "labels": {},
        "min_clients": 1,
        "min_updates": 1,
        "slot_enforcement": SlotEnforcement.DEADLINE,
        "slot_grace_s": 0.0,
        "idle_timeout_s": 600.0,
        "max_update_norm": None,
        "policy_parameters": {},
        "max_rounds": None,
        "learning_rate_decay_s": None,
        "target_metric": TargetMetric.SERVER,
        "cells": None,
        "min_resource_blocks": None,
        "priority": 0,
        "evaluate_initial_model": False,
        "allow_busy_clients": False,
        "deadline_mode": DeadlineMode.FIXED,
        "min_round_deadline_s": 10.0,
        "deadline_slack": 0.1,
        "dispatch": Dispatch.SCHEDULED,
        "planning_factor": 1.0,
        "correct_estimates": False,
        "cooldown": False,
        "max_share": None,
        "cap_reports": False,
    }
    assert not changes.keys() - values.keys()
    return TaskTerms(**(values | changes))


def clients(
    uow: UnitOfWork, *client_ids: str, labels: Mapping[str, str] | None = None, now: datetime = NOW
) -> dict[str, int]:
    """Enrol clients; their serials."""
    return uow.clients.add({client_id: labels or {} for client_id in client_ids}, now)


def report(
    client_serial: int,
    *,
    task_serial: int | None = None,
    throughput_bps: float = 1e6,
    data_samples: int = 100,
    report_resource_blocks: int = 10,
    observed_at: datetime = NOW,
    received_at: datetime = NOW,
    radio: Mapping[str, int] | None = None,
) -> ReportRow:
    """A row: unless changed, a second to update the model, and one to upload it."""
    return (
        client_serial,
        task_serial,
        throughput_bps,
        100.0,
        data_samples,
        report_resource_blocks,
        to_microseconds(observed_at),
        to_microseconds(received_at),
        None if radio is None else json.dumps(radio),
        None,
    )


def reporting_clients(uow: UnitOfWork, *client_ids: str) -> dict[str, int]:
    """Enrol clients, each with a report; their serials."""
    serials = clients(uow, *client_ids)
    uow.reports.add([report(serial) for serial in serials.values()])
    return serials


def ready_task(uow: UnitOfWork, **changes: object) -> Task:
    """A task with its initial model."""
    task = start_task(uow, terms(**changes), NOW)
    return set_initial_model(uow, task.task_id, MODEL, NOW)


def scheduled_round(uow: UnitOfWork, *client_ids: str, **changes: object) -> Round:
    """A new task's first round, with a slot for each of these new clients."""
    reporting_clients(uow, *client_ids)
    return open_round(uow, ready_task(uow, **changes).task_id, NOW)


def received_update(uow: UnitOfWork, round_: Round, client_id: str, blob: Blob = UPDATE) -> None:
    """An update that was accepted 10 s into a simulated round."""
    arrival = UploadTiming(NOW, elapsed_s=10.0, update_s=2.0, upload_s=3.0)
    assert accept_updates(
        uow, round_.round_id, [ReceivedUpdate(client_id, blob, 100, arrival, NOW)], NOW
    ) == [True]


def operator_key(uow: UnitOfWork, scope: Scope = Scope.MANAGE, created_at: datetime = NOW) -> NewKey:
    """A key of an operator."""
    key = make_key()
    uow.keys.add([ApiKey(key.key_id, key.digest, scope, "operator", created_at)], {})
    return key


def client_key(uow: UnitOfWork, client_id: str, client_serial: int, replaces: NewKey | None = None) -> NewKey:
    """A key of a client; it may be the successor of another one."""
    key = make_key()
    replaced = None if replaces is None else replaces.key_id
    kept = ApiKey(key.key_id, key.digest, Scope.CLIENT, client_id, NOW, client_id, replaces=replaced)
    uow.keys.add([kept], {client_id: client_serial})
    return key


@dataclass(frozen=True)
class BusyRound:
    """A round under way in which something of everything exists."""

    round_: Round
    operator_key: NewKey
    client_key: NewKey


def worker(host: str, *queues: str) -> WorkerIdentity:
    """One that takes all jobs, unless queues are named."""
    return WorkerIdentity(f"worker-{host}", host, 4711, queues or ("aggregate", "train"))


def busy_round(uow: UnitOfWork) -> BusyRound:
    """One round: ``done`` has uploaded, ``trained`` has a hosted training, ``idle`` has only its slot."""
    serials = clients(uow, "done", "trained", "idle", labels={"city": "Aalborg"})
    uow.reports.add([report(serial) for serial in serials.values()])
    task = ready_task(uow)
    uow.reports.add([report(serials["idle"], task_serial=task.serial)])
    round_ = open_round(uow, task.task_id, NOW)
    received_update(uow, round_, "done")
    request_training(uow, round_.round_id, "trained", 3, NOW)
    uow.workers.report(worker("host-1"), [], NOW, NOW + SECOND)
    (job, *_) = uow.jobs.to_publish(NOW, SECOND, 1)
    uow.refusals.add(job.job_id, "worker-host-1", "no data set", NOW, NOW + SECOND)
    uow.models.add_score(task, 0, 2, Score(250, 125, 312.5))
    uow.models.add_evaluation(task, Evaluation(0, 0.5, 1.25, 1000, NOW))
    uow.models.add_device_evaluation(task, 0, "done", DeviceEvaluation(0.5, 1.25, 100), NOW)
    uow.idempotency.add("some-key", "once", SavedAnswer(b"\x01" * 32, 201, b"answer"), NOW)
    uow.leases.acquire("reconciler", "one", NOW, SECOND)
    uow.allocations.hold(round_.serial, {"default": BlockRange(0, 1)}, NOW)
    uow.waiting_tasks.put(task.serial, ["default"], now=NOW, expires_at=NOW + SECOND)
    return BusyRound(
        uow.rounds.get(round_.round_id), operator_key(uow), client_key(uow, "idle", serials["idle"])
    )
