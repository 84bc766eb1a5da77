"""Faults that pass: work that fails because of them is not given up before they have passed."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.hosted_cell import PATIENCE_S
from tests.faults.chaos.disk import Disk, small_disk
from tests.faults.faulty_stack import TERMS
from tests.integration.cell import create_task
from tests.integration.rounds_setup import events_until, eventually, get_task
from tests.running_stack import Stack, running_stack

_PASSES_AFTER_S = 3.0
"""Three attempts one after another would be over by then."""


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with small_disk(tmp_path / "disk", 16) as found:
        if not found.is_small:
            pytest.skip("a file system of its own cannot be mounted here")
        yield found


@pytest.fixture
def stack(tmp_path: Path, disk: Disk) -> Iterator[Stack]:
    store = str(disk.directory / "store")
    with running_stack(
        tmp_path, "--processes", "1", model_store=store, allowed_imports="tests.faults"
    ) as running:
        yield running


def test_a_disk_that_is_full_for_seconds_costs_no_attempt(stack: Stack, disk: Disk) -> None:
    disk.fill()
    try:
        task_id = create_task(stack.service, **TERMS)["task_id"]
        log = stack.directory / "worker.log"
        eventually(lambda: '"event": "the job waits for the model store"' in log.read_text(), PATIENCE_S)
        time.sleep(_PASSES_AFTER_S)
    finally:
        disk.empty()
    eventually(lambda: get_task(stack.service, task_id)["state"] != "initializing", PATIENCE_S)
    assert get_task(stack.service, task_id)["state"] == "ready"
    events = events_until(stack.service, "task.ready", task_id=task_id)
    assert [event["data"]["attempt"] for event in events if event["kind"] == "job.started"] == [1]
