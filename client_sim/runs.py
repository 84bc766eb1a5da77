"""Shared parts of runs: create the task, wait for its events, cancel it, and show the progress."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from threading import Event, Thread
from typing import ClassVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from client_sim.fleet import Fleet
from client_sim.scenario import Scenario, ScenarioError
from client_sim.synthetic_updates import synthetic_model
from fedcs_client import endpoints
from fedcs_client.api import AsyncApi
from services.contract.common import EventResponse
from services.contract.tasks import TaskRequest
from services.errors import FedCSError

_CANCEL_TIMEOUT_S = 3.0


class RunError(FedCSError):
    """The task of the run failed or was cancelled."""

    cause: ClassVar[str] = "RUN_ENDED"


@asynccontextmanager
async def task_group() -> AsyncIterator[asyncio.TaskGroup]:
    """A task group that raises the first error itself, not an exception group."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except ExceptionGroup as failed:
        first = failed.exceptions[0]
        raise first from first.__cause__


def fleet_task(fleet: Fleet, task: TaskRequest, *, training: bool) -> TaskRequest:
    """The task, limited to the devices of the fleet; without training it has no data set."""
    if training and task.dataset is None:
        raise ScenarioError("task.dataset: required for training; or use --no-training")
    untrained = {} if training else {"dataset": None, "target_accuracy": None}
    return TaskRequest.model_validate(task.model_dump() | {"labels": dict(fleet.labels)} | untrained)


async def start_task(api: AsyncApi, scenario: Scenario, task: TaskRequest, *, training: bool) -> str:
    """Create the task and return its id; without training, upload a synthetic initial model."""
    task_id = (await api.send(endpoints.create_task(task))).task_id
    if not training:
        model = synthetic_model(scenario.synthetic_update.model_bytes, scenario.seed)
        await api.send(endpoints.put_initial_model(task_id, model))
    return task_id


@asynccontextmanager
async def cancel_on_failure(api: AsyncApi, task_id: str) -> AsyncIterator[None]:
    """Cancel the task if the run fails or is interrupted."""
    try:
        yield
    except BaseException:
        with suppress(FedCSError, TimeoutError):
            await asyncio.wait_for(api.send(endpoints.cancel_task(task_id)), _CANCEL_TIMEOUT_S)
        raise


async def wait_until_ready(api: AsyncApi, task_id: str, events: AsyncIterator[EventResponse]) -> None:
    """Wait until the task has its initial model."""
    if (await api.send(endpoints.get_task(task_id))).state == "initializing":
        await wait_for_event(api, task_id, events, "task.ready")


async def wait_for_event(
    api: AsyncApi,
    task_id: str,
    events: AsyncIterator[EventResponse],
    *kinds: str,
    round_id: str | None = None,
) -> EventResponse:
    """Wait for the next event of these kinds; raise `RunError` if the task fails or is cancelled."""
    async for event in events:
        if event.kind in kinds and round_id in (None, event.round_id):
            return event
        if event.kind in ("task.failed", "task.cancelled"):
            break
    task = await api.send(endpoints.get_task(task_id))
    raise RunError(f"the task {task_id} was {task.state.value}: {task.detail}")


_LINE_EVERY_S = 10.0
_SPEED_OVER_S = 3600.0
"""The time left follows from the progress in this time: a round can take minutes."""


@contextmanager
def show_progress(console: Console, every_s: float = _LINE_EVERY_S) -> Iterator[Progress]:
    """Show the tasks that are added, each with a field ``note``: bars on a terminal, elsewhere lines."""
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        speed_estimate_period=_SPEED_OVER_S,
        disable=not console.is_terminal,
    )
    ended = Event()

    def print_lines() -> None:
        while not ended.wait(every_s):
            for task in progress.tasks:
                if not task.finished:
                    console.print(_line(task), soft_wrap=True, highlight=False)

    thread = Thread(target=print_lines, name="progress lines", daemon=True)
    with progress:
        if not console.is_terminal:
            thread.start()
        try:
            yield progress
        finally:
            ended.set()
            if thread.ident is not None:
                thread.join()


def _line(task: Task) -> str:
    done = f"{task.completed:g}" if task.total is None else f"{task.completed:g}/{task.total:g}"
    left = task.time_remaining
    parts = [
        f"{task.description}: {done}",
        task.fields["note"],
        "" if left is None else f"{_time(left)} left",
    ]
    return ", ".join(part for part in parts if part)


def _time(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
