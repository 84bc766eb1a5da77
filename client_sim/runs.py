"""Shared parts of simulated and wall-clock runs: create the task, wait for its events, cancel it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import ClassVar

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
