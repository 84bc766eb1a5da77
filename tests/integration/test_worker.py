"""``fedcs worker`` as processes of its own, beside a real service and a real Redis."""

import json
import os
import socket
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import httpx
import pytest

from services.domain.jobs import JobKind
from tests.e2e.hosted_cell import hosted_cell
from tests.fork_server import ModulePopen
from tests.integration.cell import create_task
from tests.integration.rounds_setup import events_until, eventually, get_task
from tests.integration.test_commands import fedcs
from tests.redis_server import redis_server
from tests.running_service import service_process
from tests.running_stack import Stack, running_stack, worker_process
from trainer_worker.publisher import make_app, message_name

PATIENCE_S = 300.0


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """No worker is part of it: each test starts its own."""
    with running_stack(tmp_path_factory.mktemp("stack")) as running:
        yield running


def _log(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _started(path: Path) -> Counter[str]:
    """How many jobs of each kind a worker has begun, by its log."""
    return Counter(line["kind"] for line in _log(path) if line["event"] == "job started")


def _new_task(service: httpx.Client) -> str:
    task_id: str = create_task(service, dataset="generated")["task_id"]
    return task_id


def _wait_for_model(service: httpx.Client, task_id: str) -> bytes:
    eventually(lambda: get_task(service, task_id)["state"] == "ready", PATIENCE_S)
    return service.get(f"/tasks/{task_id}/models/0").content


def test_a_worker_takes_from_its_queues_only(stack: Stack, tmp_path: Path) -> None:
    training, aggregation = tmp_path / "train.log", tmp_path / "aggregate.log"
    with (
        worker_process(aggregation, "--queues", "aggregate", "--processes", "1", **stack.settings),
        worker_process(training, "--queues", " train", "--processes", "1", **stack.settings),
    ):
        cell = hosted_cell(stack.service, [20, 30])
        cell.start_task()
        assert cell.finish_round(cell.begin_round())["state"] == "aggregated"
        cell.evaluated(1)
    assert _started(aggregation) == {"aggregate_round": 1}
    assert _started(training) == {"initialize_model": 1, "train_client": 2, "evaluate_model": 4}


def _errors(path: Path) -> list[dict[str, Any]]:
    return [line for line in _log(path) if line["level"] in ("error", "critical")]


def _send(stack: Stack, name: str, arguments: Sequence[object]) -> None:
    app = make_app(stack.settings["broker_url"])
    with app.connection_for_write() as connection:
        app.send_task(name, args=arguments, queue="train", connection=connection)


def test_messages_that_come_twice_or_late_or_astray_change_nothing(stack: Stack, tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    initialize = message_name(JobKind.INITIALIZE_MODEL)
    task_id = _new_task(stack.service)
    told = eventually(lambda: stack.broker.lrange("train", 0, -1))
    assert isinstance(told, list)
    stack.broker.lpush("train", *told)  # every message twice
    with worker_process(log, "--processes", "2", **stack.settings) as process:
        model = _wait_for_model(stack.service, task_id)
        (started,) = [
            event
            for event in events_until(stack.service, "task.ready", task_id=task_id)
            if event["kind"] == "job.started"
        ]
        job_id = started["data"]["job_id"]
        _send(stack, initialize, [job_id])
        _send(stack, message_name(JobKind.TRAIN_CLIENT), [job_id])
        _send(stack, initialize, ["job-0000000000000000"])
        _send(stack, initialize, [""])
        _wait_for_model(stack.service, _new_task(stack.service))  # told of after all these
        assert not _errors(log)
        _send(stack, initialize, [])
        _send(stack, "trainer_worker.make_coffee", [job_id])
        _wait_for_model(stack.service, _new_task(stack.service))
        eventually(lambda: len(_errors(log)) == 2)  # nobody sends these
        assert process.poll() is None
    assert Counter(line["job_id"] for line in _log(log) if line["event"] == "job started")[job_id] == 1
    assert stack.service.get(f"/tasks/{task_id}/models/0").content == model


def test_a_worker_waits_for_a_broker_that_is_away(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = {"broker_url": f"redis://127.0.0.1:{port}/0"}
    with (
        service_process(tmp_path, tmp_path / "api.log", **settings) as (service, _),
        worker_process(log, "--processes", "1", data_dir=str(tmp_path), **settings) as worker,
    ):
        task_id = _new_task(service)
        eventually(lambda: log.read_text().count("Cannot connect to redis") >= 2, PATIENCE_S)
        assert get_task(service, task_id)["state"] == "initializing"
        with redis_server(tmp_path, port):
            _wait_for_model(service, task_id)
        eventually(lambda: "Connection to broker lost" in log.read_text(), PATIENCE_S)
        with redis_server(tmp_path, port):
            _wait_for_model(service, _new_task(service))
        assert worker.poll() is None


def _children(process: Popen[str]) -> int:
    return len(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split())


def test_one_process_for_each_core_unless_said_otherwise(stack: Stack, tmp_path: Path) -> None:
    cores = len(os.sched_getaffinity(0))
    for options, expected in (([], cores), (["--processes", str(cores + 1)], cores + 1)):
        log = tmp_path / f"{expected}.log"
        environment = os.environ | {f"FEDCS_{name.upper()}": value for name, value in stack.settings.items()}
        command = [sys.executable, "-m", "operator_api", "worker", *options]
        with (
            log.open("w") as stderr,
            ModulePopen[str](command, env=environment, stdout=PIPE, stderr=stderr, text=True) as process,
        ):
            try:
                assert process.stdout is not None
                ready = process.stdout.readline()
                assert ready == f"Ready on cpu: {expected} process(es), queues aggregate,train\n"
                _wait_for_model(stack.service, _new_task(stack.service))
                assert _children(process) == expected
            finally:
                process.terminate()
        assert process.returncode == 0, log.read_text()
        assert not Path(f"/proc/{process.pid}").exists()


def test_the_command_tells_of_itself() -> None:
    shown = fedcs("worker", "--help")
    assert shown.returncode == 0
    for words in (
        "--queues",
        "--processes",
        "FEDCS_BROKER_URL is required",
        "FEDCS_DATASETS",
        "FEDCS_DEVICE",
    ):
        assert words in shown.stdout
    assert "worker" in fedcs("--help").stdout


@pytest.mark.parametrize("queues", ["coffee", "train,coffee", "train,,aggregate", ""])
def test_a_queue_that_does_not_exist_is_refused(queues: str, tmp_path: Path) -> None:
    broker = {"FEDCS_BROKER_URL": "redis://127.0.0.1:9/0", "FEDCS_DATA_DIR": str(tmp_path)}
    refused = fedcs("worker", "--queues", queues, **broker)
    assert refused.returncode == 2
    assert "unknown queue; use aggregate, train" in refused.stderr
    assert "Traceback" not in refused.stderr


@pytest.mark.parametrize(
    ("settings", "saying"),
    [
        ({}, "fedcs: FEDCS_BROKER_URL is not set; docs/operations.md describes it"),
        ({"BROKER_URL": ""}, "fedcs: FEDCS_BROKER_URL: "),
        (
            {"BROKER_URL": "redis://127.0.0.1:9/0", "DEVICE": "cuda"},
            "no CUDA device is available; set it to cpu",
        ),
        ({"BROKER_URL": "redis://127.0.0.1:9/0", "DEVICE": "tpu"}, "FEDCS_DEVICE: "),
        ({"BROKER_URL": "redis://127.0.0.1:9/0", "DATA_DIR": "/dev/null/x"}, "FEDCS_DATA_DIR: "),
    ],
)
def test_settings_that_cannot_work_are_told_in_one_line(
    settings: dict[str, str], saying: str, tmp_path: Path
) -> None:
    given = {"FEDCS_DATA_DIR": str(tmp_path)} | {f"FEDCS_{name}": value for name, value in settings.items()}
    refused = fedcs("worker", "--processes", "1", **given)
    assert refused.returncode == 1
    assert refused.stdout == ""
    (line,) = refused.stderr.splitlines()
    assert saying in line
    assert "default factory" not in line, "a variable whose default depends on another is not at fault"
