"""The operations of the API that devices and simulators use: each function builds the call of one.

``api.send(endpoints.open_round(task_id))`` sends a call and returns its parsed answer.
"""

import base64
import hashlib
from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from http import HTTPStatus
from typing import Generic, Literal, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, TypeAdapter

from services.contract.assignments import (
    AssignmentsResponse,
    DeclineRequest,
    ReadyRequest,
    ReadyResponse,
    ReportAssignment,
    TrainAssignment,
    TrainingRequest,
    TrainingResponse,
    UpdateResponse,
)
from services.contract.cells import CellChangeRequest, CellRequest, CellResponse
from services.contract.clients import EnrolmentBatchRequest, EnrolmentBatchResponse, EnrolmentRequest
from services.contract.reports import ReportBatchRequest, ReportBatchResponse, ReportRequest, ReportResponse
from services.contract.rounds import RoundRequest, RoundResponse, RoundSummary, ScheduleResponse
from services.contract.tasks import (
    DeviceEvaluationRequest,
    DeviceEvaluationResponse,
    ModelVersionResponse,
    TaskMetrics,
    TaskRequest,
    TaskResponse,
)

Answer = TypeVar("Answer")
Chunks = Iterable[bytes] | AsyncIterable[bytes]
_ROUNDS = TypeAdapter(list[RoundSummary])
_TASKS = TypeAdapter(list[TaskResponse])


@dataclass(frozen=True)
class Body:
    """The model in a request body. Its digest is computed once, even if many clients send it.

    ``chunks`` splits the content, for example to send it slowly; it is called for every attempt. For the
    asynchronous client it returns an asynchronous iterable.
    """

    content: bytes
    chunks: Callable[[bytes], Chunks] | None = None

    @cached_property
    def content_digest(self) -> str:
        """The value of the header ``Content-Digest`` (RFC 9530)."""
        return f"sha-256=:{base64.b64encode(hashlib.sha256(self.content).digest()).decode()}:"


@dataclass(frozen=True)
class Call(Generic[Answer]):
    """One request, and how to parse its answer."""

    method: str
    path: str
    read: Callable[[bytes], Answer]
    json: BaseModel | None = None
    body: Body | None = None
    params: Mapping[str, str | float] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    is_once: bool = False
    """Whether it must not be executed twice: it is sent with an ``Idempotency-Key``."""
    wait_s: float = 0.0
    """How long the service may delay the answer of a long poll."""

    def read_response(self, response: httpx.Response) -> Answer:
        """Parse a response with a status 2xx or 304."""
        return self.read(response.content)


def enrol_clients(clients: Sequence[EnrolmentRequest]) -> Call[EnrolmentBatchResponse]:
    """Enrol clients: all of them or none."""
    asked = EnrolmentBatchRequest(clients=list(clients))
    read = EnrolmentBatchResponse.model_validate_json
    return Call("POST", "/clients/batch", read, json=asked, is_once=True)


def add_cell(cell: CellRequest) -> Call[CellResponse]:
    """Add a cell."""
    return Call("POST", "/cells", CellResponse.model_validate_json, json=cell, is_once=True)


def change_cell(cell_id: str, change: CellChangeRequest) -> Call[CellResponse]:
    """Change a cell for rounds that open from now on."""
    return Call("PATCH", f"/cells/{_quoted(cell_id)}", CellResponse.model_validate_json, json=change)


def remove_client(client_id: str) -> Call[None]:
    """Remove a client."""
    return Call("DELETE", f"/clients/{_quoted(client_id)}", _nothing)


def post_report(report: ReportRequest) -> Call[ReportResponse]:
    """Report a client's resources.

    A repeated report does no harm, so there is no ``Idempotency-Key``: the service commits many reports
    without a key in one transaction.
    """
    return Call("POST", "/reports", ReportResponse.model_validate_json, json=report)


def post_reports(reports: Sequence[ReportRequest]) -> Call[ReportBatchResponse]:
    """Report the resources of many clients."""
    sent = ReportBatchRequest(reports=list(reports))
    return Call("POST", "/reports/batch", ReportBatchResponse.model_validate_json, json=sent, is_once=True)


def create_task(task: TaskRequest) -> Call[TaskResponse]:
    """Create a training task."""
    return Call("POST", "/tasks", TaskResponse.model_validate_json, json=task, is_once=True)


def get_task(task_id: str) -> Call[TaskResponse]:
    """The current state of a task."""
    return Call("GET", f"/tasks/{_quoted(task_id)}", TaskResponse.model_validate_json)


def list_tasks(most: int) -> Call[list[TaskResponse]]:
    """The tasks, newest first."""
    return Call("GET", "/tasks", _TASKS.validate_json, params={"per_page": most})


def cancel_task(task_id: str) -> Call[TaskResponse]:
    """Cancel a task and its open round; idempotent."""
    return Call("POST", f"/tasks/{_quoted(task_id)}/cancel", TaskResponse.model_validate_json)


def finish_task(task_id: str) -> Call[TaskResponse]:
    """Finish a task after its open round; idempotent."""
    return Call("POST", f"/tasks/{_quoted(task_id)}/finish", TaskResponse.model_validate_json)


def delete_task(task_id: str) -> Call[None]:
    """Delete a task that has ended, with its models."""
    return Call("DELETE", f"/tasks/{_quoted(task_id)}", _nothing)


def task_metrics(task_id: str) -> Call[TaskMetrics]:
    """The metrics of a task, round by round."""
    return Call("GET", f"/tasks/{_quoted(task_id)}/metrics", TaskMetrics.model_validate_json)


def put_initial_model(task_id: str, content: bytes | Body) -> Call[ModelVersionResponse]:
    """Upload the initial model of a task, as safetensors."""
    body = _body(content)
    return Call(
        "PUT",
        f"/tasks/{_quoted(task_id)}/models/0",
        ModelVersionResponse.model_validate_json,
        body=body,
        headers={"Content-Digest": body.content_digest},
    )


def get_model(task_id: str, version: int | Literal["latest"] = "latest") -> Call[bytes]:
    """A version of a task's model, as safetensors."""
    return Call("GET", f"/tasks/{_quoted(task_id)}/models/{version}", bytes)


def open_round(task_id: str) -> Call[RoundResponse]:
    """Open a task's next round."""
    asked = RoundRequest(task_id=task_id)
    return Call("POST", "/rounds", RoundResponse.model_validate_json, json=asked, is_once=True)


def get_round(round_id: str) -> Call[RoundResponse]:
    """The current state of a round, with its schedule."""
    return Call("GET", f"/rounds/{_quoted(round_id)}", RoundResponse.model_validate_json)


def newest_rounds(task_id: str, most: int) -> Call[list[RoundSummary]]:
    """The rounds of a task, newest first."""
    return Call("GET", "/rounds", _ROUNDS.validate_json, params={"task_id": task_id, "per_page": most})


def get_schedule(round_id: str) -> Call[ScheduleResponse]:
    """The upload slots of a round; a client sees only its own."""
    return Call("GET", f"/rounds/{_quoted(round_id)}/schedule", ScheduleResponse.model_validate_json)


def close_round(round_id: str) -> Call[RoundResponse]:
    """End the collection of updates now; idempotent."""
    return Call("POST", f"/rounds/{_quoted(round_id)}/close", RoundResponse.model_validate_json)


@dataclass(frozen=True)
class Assignments:
    """What a client has to do, and the entity tag of this state."""

    assignments: list[ReportAssignment | TrainAssignment]
    etag: str


@dataclass(frozen=True)
class _AssignmentsCall(Call[Assignments]):
    known: Assignments | None = None

    def read_response(self, response: httpx.Response) -> Assignments:
        """Parses assignments together with their entity tag."""
        if response.status_code == HTTPStatus.NOT_MODIFIED and self.known is not None:
            return self.known
        return replace(self.read(response.content), etag=response.headers.get("ETag", ""))


def assignments(wait_s: float = 0.0, known: Assignments | None = None) -> Call[Assignments]:
    """What the client has to do now.

    With the ``known`` assignments of the previous call, the service waits for a change for up to ``wait_s``
    (at most 60 s); without a change, the answer is the ``known`` object. Without ``known`` it does not wait.
    """
    return _AssignmentsCall(
        "GET",
        "/assignments",
        lambda content: Assignments(AssignmentsResponse.model_validate_json(content).assignments, ""),
        params={"wait_s": wait_s} if wait_s else {},
        headers={} if known is None else {"If-None-Match": known.etag},
        wait_s=wait_s,
        known=known,
    )


def round_model(round_id: str) -> Call[bytes]:
    """The model that a round trains, as safetensors."""
    return Call("GET", f"/rounds/{_quoted(round_id)}/model", bytes)


def upload_update(
    round_id: str,
    client_id: str,
    content: bytes | Body,
    data_samples: int,
    *,
    encoding: str = "float32",
    elapsed_s: float | None = None,
    update_s: float | None = None,
    upload_s: float | None = None,
) -> Call[UpdateResponse]:
    """Upload a client's update, as safetensors in the ``encoding`` of the round.

    ``update_s`` is the duration of the local update; the other times are for tasks with a simulated clock.
    """
    body = _body(content)
    headers = {"Content-Digest": body.content_digest, "Fedcs-Data-Samples": str(data_samples)}
    if encoding != "float32":
        headers["Fedcs-Encoding"] = encoding
    times = {"Fedcs-Elapsed-S": elapsed_s, "Fedcs-Update-S": update_s, "Fedcs-Upload-S": upload_s}
    headers |= {name: repr(float(time_s)) for name, time_s in times.items() if time_s is not None}
    path = f"/rounds/{_quoted(round_id)}/updates/{_quoted(client_id)}"
    return Call("PUT", path, UpdateResponse.model_validate_json, body=body, headers=headers)


def decline_round(round_id: str, reason: str) -> Call[RoundResponse]:
    """Decline the round: the client's slot becomes free."""
    asked = DeclineRequest(reason=reason)
    path = f"/rounds/{_quoted(round_id)}/decline"
    return Call("POST", path, RoundResponse.model_validate_json, json=asked)


def mark_ready(
    round_id: str, *, throughput_bps: float | None = None, elapsed_s: float | None = None
) -> Call[ReadyResponse]:
    """Report that the client's update is ready, in a round with ``dispatch: on_ready``.

    ``throughput_bps`` is the uplink's current throughput; ``elapsed_s`` is for tasks with a simulated clock.
    """
    asked = ReadyRequest(throughput_bps=throughput_bps, elapsed_s=elapsed_s)
    return Call("POST", f"/rounds/{_quoted(round_id)}/ready", ReadyResponse.model_validate_json, json=asked)


def report_evaluation(
    task_id: str, version: int, *, accuracy: float, loss: float | None, samples: int
) -> Call[DeviceEvaluationResponse]:
    """Report how well a model version does on a device's own data, once per version."""
    measured = DeviceEvaluationRequest(accuracy=accuracy, loss=loss, samples=samples)
    path = f"/tasks/{_quoted(task_id)}/models/{version}/evaluations"
    return Call("POST", path, DeviceEvaluationResponse.model_validate_json, json=measured, is_once=True)


def request_training(round_id: str, client_id: str, partition: int) -> Call[TrainingResponse]:
    """Have a worker train for a simulated client, on this partition of the task's data set."""
    asked = TrainingRequest(round_id=round_id, client_id=client_id, partition=partition)
    return Call("POST", "/trainings", TrainingResponse.model_validate_json, json=asked, is_once=True)


def get_training(training_id: str) -> Call[TrainingResponse]:
    """The state of a hosted training."""
    return Call("GET", f"/trainings/{_quoted(training_id)}", TrainingResponse.model_validate_json)


def training_update(training_id: str) -> Call[bytes]:
    """The update that a worker trained, as safetensors."""
    return Call("GET", f"/trainings/{_quoted(training_id)}/update", bytes)


class Readiness(BaseModel):
    """Whether the service is ready; ``degraded``: it is, but the broker is unavailable."""

    status: str
    checks: dict[str, str]


def readiness() -> Call[Readiness]:
    """Whether the service is ready; retries wait until it is."""
    return Call("GET", "/readyz", Readiness.model_validate_json)


def server_metrics() -> Call[str]:
    """The metrics of the service, in the text format of Prometheus."""
    return Call("GET", "/metrics", bytes.decode)


def _body(content: bytes | Body) -> Body:
    return content if isinstance(content, Body) else Body(content)


def _quoted(name: str) -> str:
    return quote(name, safe="")


def _nothing(_content: bytes) -> None:
    """Parses an answer without content."""
