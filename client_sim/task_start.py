"""The beginning of a run: a task for a fleet, with a model to train."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import ClassVar

from client_sim import calls
from client_sim.api_client import AsyncApi
from client_sim.fleet import Fleet
from client_sim.scenario import Scenario, ScenarioError
from client_sim.stand_in import stand_in_model
from services.contract.events import EventResponse
from services.contract.tasks import TaskRequest
from services.errors import FedCSError

_GOODBYE_S = 3.0


class RunError(FedCSError):
    """The service has ended the task of a run."""

    cause: ClassVar[str] = "RUN_ENDED"


def task_of(fleet: Fleet, task: TaskRequest, *, training: bool) -> TaskRequest:
    """The task for these devices alone. Without training there is no data set, and nothing to measure."""
    if training and task.dataset is None:
        raise ScenarioError("task.dataset: needed for training; or run it with --no-training")
    untrained = {} if training else {"dataset": None, "target_accuracy": None}
    return TaskRequest.model_validate(task.model_dump() | {"labels": dict(fleet.labels)} | untrained)


async def begin_task(api: AsyncApi, scenario: Scenario, task: TaskRequest, *, training: bool) -> str:
    """Create the task; a run without training brings a stand-in model along. Its id."""
    task_id = (await api.send(calls.create_task(task))).task_id
    if not training:
        model = stand_in_model(scenario.stand_in.model_bytes, scenario.seed)
        await api.send(calls.put_initial_model(task_id, model))
    return task_id


@asynccontextmanager
async def cancelled_on_failure(api: AsyncApi, task_id: str) -> AsyncIterator[None]:
    """Do not leave a task behind that nobody goes on with, if the run fails or is interrupted."""
    try:
        yield
    except BaseException:
        with suppress(FedCSError, TimeoutError):
            await asyncio.wait_for(api.send(calls.cancel_task(task_id)), _GOODBYE_S)
        raise


async def await_ready(api: AsyncApi, task_id: str, events: AsyncIterator[EventResponse]) -> None:
    """Wait until the task has its model; the events are those of the task."""
    if (await api.send(calls.get_task(task_id))).state == "initializing":
        await next_of(api, task_id, events, "task.ready")


async def next_of(
    api: AsyncApi,
    task_id: str,
    events: AsyncIterator[EventResponse],
    *kinds: str,
    round_id: str | None = None,
) -> EventResponse:
    """The next event of these kinds; none will come after the task has failed or was cancelled."""
    async for event in events:
        if event.kind in kinds and round_id in (None, event.round_id):
            return event
        if event.kind in ("task.failed", "task.cancelled"):
            break
    task = await api.send(calls.get_task(task_id))
    raise RunError(f"the task {task_id} was {task.state.value}: {task.outcome or 'by the operator'}")
