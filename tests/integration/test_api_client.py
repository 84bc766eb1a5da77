"""The typed client against a real service: every call, and what is refused."""

import asyncio
from collections.abc import Iterator
from typing import Any, Protocol, TypeVar

import httpx
import numpy as np
import pytest

from fedcs_client import endpoints
from fedcs_client.api import Api, ApiError, AsyncApi
from fedcs_client.endpoints import Body, Call
from services.contract.assignments import TrainAssignment
from services.contract.clients import EnrolmentRequest
from services.contract.reports import ReportRequest
from services.contract.tasks import TaskRequest
from services.domain.rounds import RoundState, SlotOutcome
from services.domain.tasks import Clock, TaskState
from services.errors import SettingsError
from tests.integration.cell import UNKNOWN_KEY, fresh_name, make_model, started_round
from tests.running_service import OPERATOR_KEY

Answer = TypeVar("Answer")


class Send(Protocol):
    def __call__(self, call: Call[Answer], key: str | None = None) -> Answer: ...


@pytest.fixture(params=["sync", "async"])
def send(request: pytest.FixtureRequest, service: httpx.Client) -> Iterator[Send]:
    """Both clients, as one function."""
    url = str(service.base_url)
    if request.param == "sync":
        with Api(url, OPERATOR_KEY) as api:
            yield api.send
        return
    with asyncio.Runner() as runner:
        async_api = AsyncApi(url, OPERATOR_KEY)

        def send(call: Call[Answer], key: str | None = None) -> Answer:
            return runner.run(async_api.send(call, key))

        yield send
        runner.run(async_api.close())


def report_of(client_id: str) -> ReportRequest:
    return ReportRequest(
        client_id=client_id, throughput_bps=1e6, compute_samples_per_s=50.0, data_samples=200
    )


def simulated_task(labels: dict[str, str], **terms: Any) -> TaskRequest:
    return TaskRequest(
        round_deadline_s=180.0, request_fraction=1.0, clock=Clock.SIMULATED, labels=labels, **terms
    )


def test_a_round_from_enrolment_to_aggregation(send: Send) -> None:
    labels = {"cell": fresh_name("cell")}
    names = [f"{fresh_name()} ü%", fresh_name()]
    enrolled = send(
        endpoints.enrol_clients([EnrolmentRequest(client_id=name, labels=labels) for name in names])
    )
    keys = {client.client_id: client.api_key for client in enrolled.clients}
    assert list(keys) == names
    assert send(endpoints.post_report(report_of(names[0])), keys[names[0]]).data_samples == 200
    assert send(endpoints.post_reports([report_of(name) for name in names])).stored == 2

    task_id = send(endpoints.create_task(simulated_task(labels))).task_id
    assert send(endpoints.get_task(task_id)).state is TaskState.INITIALIZING
    model = make_model()
    assert send(endpoints.put_initial_model(task_id, model)).size_bytes == len(model)
    opened = send(endpoints.open_round(task_id))
    assert opened.selected == 2
    assert send(endpoints.get_schedule(opened.round_id)) == opened.schedule

    update = Body(make_model(1))
    for name in names:
        known = send(endpoints.assignments(wait_s=5.0), keys[name])
        (assignment,) = known.assignments
        assert isinstance(assignment, TrainAssignment)
        assert send(endpoints.assignments(0.1, known), keys[name]) is known
        assert send(endpoints.round_model(assignment.round_id), keys[name]) == model
    call = endpoints.upload_update(
        opened.round_id, names[0], update, 200, elapsed_s=30.25, update_s=20.0, upload_s=8.5
    )
    assert send(call, keys[names[0]]).size_bytes == len(update.content)

    assert send(endpoints.close_round(opened.round_id)).state is RoundState.AGGREGATING
    found = send(endpoints.get_round(opened.round_id))
    assert found.schedule is not None
    slot = next(item for item in found.schedule.slots if item.client_id == names[0])
    assert slot.outcome is SlotOutcome.RECEIVED
    assert (slot.elapsed_s, slot.actual_update_s, slot.actual_upload_s) == (30.25, 20.0, 8.5)
    assert send(endpoints.task_metrics(task_id)).rounds[0].received == 1
    assert send(endpoints.get_model(task_id, 0)) == model
    assert send(endpoints.cancel_task(task_id)).state is TaskState.CANCELLED
    assert send(endpoints.remove_client(names[0])) is None


def test_a_large_model_goes_there_and_back(send: Send) -> None:
    task_id = send(endpoints.create_task(simulated_task({"cell": fresh_name()}))).task_id
    model = make_model(large=np.arange(3_000_000, dtype=np.float32))
    send(endpoints.put_initial_model(task_id, model))
    assert send(endpoints.get_model(task_id, 0)) == model


def test_hosted_training(send: Send, service: httpx.Client) -> None:
    opened, keys = started_round(service, dataset="generated")
    (client_id,) = keys
    training = send(endpoints.request_training(opened["round_id"], client_id, 3))
    assert send(endpoints.get_training(training.training_id)) == training
    with pytest.raises(ApiError, match="409 Conflict: The training is waiting") as refused:
        send(endpoints.training_update(training.training_id))
    assert refused.value.problem.cause == "TRAINING_NOT_DONE"


def test_the_state_of_the_service(send: Send) -> None:
    assert send(endpoints.readiness()).checks["database"] == "ok"
    assert "fedcs_rounds" in send(endpoints.server_metrics())


def test_refusals_are_told_in_one_line(send: Send) -> None:
    task_id = send(endpoints.create_task(simulated_task({"cell": fresh_name()}))).task_id
    refused: list[tuple[Call[Any], str | None, int, str]] = [
        (
            endpoints.get_task(task_id),
            UNKNOWN_KEY,
            401,
            f"GET /tasks/{task_id}: 401 Unauthorized: "
            "Send the header Authorization: Bearer KEY with a valid key.",
        ),
        (
            endpoints.get_task("task-none"),
            None,
            404,
            "GET /tasks/task-none: 404 Not Found: There is no task 'task-none'.",
        ),
        (
            endpoints.open_round(task_id),
            None,
            409,
            "POST /rounds: 409 Conflict: The task has no initial model yet. "
            "Wait for a worker to create it, or upload one.",
        ),
        (
            endpoints.get_task("no name"),
            None,
            422,
            "GET /tasks/no%20name: 422 Unprocessable Entity: "
            "task_id: String should match pattern '^[A-Za-z0-9_.-]+$'",
        ),
    ]
    for call, key, status, text in refused:
        with pytest.raises(ApiError) as error:
            send(call, key)
        assert (error.value.status, str(error.value)) == (status, text)


def test_all_that_is_wrong_with_a_request_is_told(send: Send) -> None:
    wrong = TaskRequest.model_construct(round_deadline_s=-1.0, local_epochs=0)
    with pytest.raises(ApiError) as error:
        send(endpoints.create_task(wrong))
    assert [param.param for param in error.value.problem.invalid_params] == [
        "/local_epochs",
        "/round_deadline_s",
    ]
    assert str(error.value) == (
        "POST /tasks: 422 Unprocessable Entity: /local_epochs: Input should be greater than or equal to 1; "
        "/round_deadline_s: Input should be greater than 0"
    )


def test_an_update_that_is_not_the_model_is_refused(send: Send, service: httpx.Client) -> None:
    opened, keys = started_round(service)
    ((client_id, key),) = keys.items()
    call = endpoints.upload_update(opened["round_id"], client_id, b"no tensors", 200, elapsed_s=1.0)
    with pytest.raises(ApiError) as error:
        send(call, key)
    assert (error.value.status, error.value.problem.cause) == (422, "BAD_TENSORS")


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://127.0.0.1", "http://", "http://[::1", "http://x:y"])
@pytest.mark.parametrize("kind", [Api, AsyncApi])
def test_invalid_urls_are_refused(url: str, kind: type[Api] | type[AsyncApi]) -> None:
    with pytest.raises(SettingsError, match=r"is not.* URL"):
        kind(url, OPERATOR_KEY)


@pytest.mark.parametrize("key", ["schlüssel", "two\nlines"])
def test_invalid_keys_are_refused(key: str, send: Send) -> None:
    with pytest.raises(SettingsError, match="characters that are not allowed"):
        send(endpoints.get_task("task-none"), key)


def test_a_crowd_of_devices_waits_at_once(service: httpx.Client) -> None:
    labels, devices = {"cell": fresh_name("cell")}, 150

    async def crowd() -> None:
        async with AsyncApi(str(service.base_url), OPERATOR_KEY) as api:
            wanted = [EnrolmentRequest(labels=labels) for _ in range(devices)]
            enrolled = (await api.send(endpoints.enrol_clients(wanted))).clients
            await api.send(endpoints.post_reports([report_of(client.client_id) for client in enrolled]))
            task = await api.send(endpoints.create_task(simulated_task(labels, model_size_bytes=1000)))
            await api.send(endpoints.put_initial_model(task.task_id, make_model()))
            known = await api.send(endpoints.assignments(), enrolled[0].api_key)
            waiting = [
                asyncio.create_task(api.send(endpoints.assignments(30.0, known), client.api_key))
                for client in enrolled
            ]
            await asyncio.sleep(0.5)
            opened = await api.send(endpoints.open_round(task.task_id))
            assert opened.selected == devices
            told = {(await waiting_).assignments[0].round_id for waiting_ in waiting}
            assert told == {opened.round_id}

    asyncio.run(crowd())
