"""``/tasks``: what is trained, and how it goes."""

from collections.abc import Sequence
from pathlib import Path as FilePath
from typing import Annotated

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic.json_schema import SkipJsonSchema

from operator_api.dependencies import OnceDep, PagingDep, ServiceDep
from operator_api.elapsed_time import elapsed_at_end
from operator_api.model_files import (
    MODEL_BODY,
    MODEL_FILE,
    IfNoneMatch,
    OptionalContentDigest,
    receive_model,
    send_model,
)
from operator_api.openapi import (
    GUARDED,
    INVALID_REQUEST,
    JSON_BODY,
    MODEL_IN_BODY,
    RANGE_NOT_SATISFIABLE,
    links,
    problems,
    together,
)
from operator_api.paging import PAGED, answer_page
from operator_api.security import Access, GuardedRoute, ModelRoute, access
from operator_api.service import Service
from services.contract.fields import TaskId
from services.contract.tasks import (
    ModelVersionResponse,
    RoundMetrics,
    TaskMetrics,
    TaskRequest,
    TaskResponse,
)
from services.domain.evaluation import Evaluation
from services.domain.rounds import Round, RoundState
from services.domain.tasks import Task, TaskState
from services.errors import (
    BadTensorsError,
    DigestMismatchError,
    IdempotencyKeyReusedError,
    ModelExistsError,
    ModelFileMissingError,
    ModelNotFoundError,
    ModelStoreAwayError,
    TaskNotFoundError,
    TaskOverError,
)
from services.protocol.initialization import cancel_task, set_initial_model, start_task
from services.storage.model_store import IncomingBlob
from services.tensors import check_finite, read_layout

router = APIRouter(tags=["tasks"], route_class=GuardedRoute)
uploads = APIRouter(tags=["tasks"], route_class=ModelRoute)

TaskPath = Annotated[TaskId, Path()]

_THIS_TASK = {"task_id": "$response.body#/task_id"}


@router.post(
    "/tasks",
    summary="Create a task",
    status_code=201,
    response_model=TaskResponse,
    openapi_extra=access(Access.MANAGE),
    responses=together(
        problems(*GUARDED, *JSON_BODY, IdempotencyKeyReusedError),
        links(
            201,
            ("GET /tasks/{task_id}", _THIS_TASK),
            ("GET /tasks/{task_id}/metrics", _THIS_TASK),
            ("PUT /tasks/{task_id}/models/0", _THIS_TASK),
            ("POST /tasks/{task_id}/cancel", _THIS_TASK),
            ("POST /rounds", {"body.task_id": "$response.body#/task_id"}),
        ),
    ),
)
def create_task(body: TaskRequest, once: OnceDep) -> Response:
    """Begin a training task. A worker makes its initial model, unless you set it."""
    return once.answer(201, lambda uow, now: task_response(start_task(uow, body.terms(), now)))


@router.get(
    "/tasks",
    summary="List tasks",
    openapi_extra=access(Access.READ),
    responses=PAGED | problems(*GUARDED, INVALID_REQUEST),
)
def list_tasks(
    request: Request,
    response: Response,
    service: ServiceDep,
    paging: PagingDep,
    state: Annotated[TaskState | SkipJsonSchema[None], Query(description="Only those in this state.")] = None,
) -> Sequence[TaskResponse]:
    """The tasks, newest first."""
    with service.database.reading() as store:
        return answer_page(request, response, paging, store.tasks.page(paging, state), task_response)


@router.get(
    "/tasks/{task_id}",
    summary="Show a task",
    openapi_extra=access(Access.READ),
    responses=problems(*GUARDED, INVALID_REQUEST, TaskNotFoundError),
)
def get_task(task_id: TaskPath, service: ServiceDep) -> TaskResponse:
    """One task: its terms and how far it is."""
    with service.database.reading() as store:
        return task_response(store.tasks.get(task_id))


@router.post(
    "/tasks/{task_id}/cancel",
    summary="Cancel a task",
    openapi_extra=access(Access.MANAGE),
    responses=problems(*GUARDED, INVALID_REQUEST, TaskNotFoundError, TaskOverError),
)
def cancel(task_id: TaskPath, service: ServiceDep) -> TaskResponse:
    """End a task and its open round. To cancel a cancelled task changes nothing."""
    with service.database.unit_of_work() as uow:
        task = cancel_task(uow, task_id, service.database.now())
        uow.commit()
    return task_response(task)


@router.get(
    "/tasks/{task_id}/metrics",
    summary="Show how a task goes",
    openapi_extra=access(Access.READ),
    responses=problems(*GUARDED, INVALID_REQUEST, TaskNotFoundError),
)
def get_metrics(task_id: TaskPath, service: ServiceDep) -> TaskMetrics:
    """Accuracy, loss and clients of every round, over elapsed time."""
    with service.database.reading() as store:
        task = store.tasks.get(task_id)
        evaluations = store.models.evaluations(task.serial)
        rounds = store.rounds.of_task(task.serial)
    timed_rounds, durations_s = 0, 0.0
    metrics = []
    for round_ in rounds:
        if round_.duration_s is not None:
            timed_rounds, durations_s = timed_rounds + 1, durations_s + round_.duration_s
        elapsed_s = elapsed_at_end(task, round_.ended_at, timed_rounds, durations_s)
        metrics.append(_round_metrics(round_, elapsed_s, evaluations))
    return TaskMetrics(task_id=task_id, rounds=metrics)


# Apart from the other versions: by the rules of OpenAPI this path, which PUT has, hides theirs.
@router.get(
    "/tasks/{task_id}/models/0",
    summary="Download the initial model",
    response_class=Response,
    openapi_extra=access(Access.READ),
    responses=MODEL_FILE
    | problems(
        *GUARDED,
        INVALID_REQUEST,
        TaskNotFoundError,
        ModelNotFoundError,
        RANGE_NOT_SATISFIABLE,
        ModelFileMissingError,
    ),
)
def download_initial_model(
    task_id: TaskPath, service: ServiceDep, if_none_match: IfNoneMatch = None
) -> Response:
    """The model that the first round begins with, as safetensors; with `ETag` and `Range`."""
    return send_version(service, task_id, 0, if_none_match)


@router.get(
    "/tasks/{task_id}/models/{version}",
    summary="Download a global model",
    response_class=Response,
    openapi_extra=access(Access.READ),
    responses=MODEL_FILE
    | problems(
        *GUARDED,
        INVALID_REQUEST,
        TaskNotFoundError,
        ModelNotFoundError,
        RANGE_NOT_SATISFIABLE,
        ModelFileMissingError,
    ),
)
def download_model(
    task_id: TaskPath,
    version: Annotated[int, Path(ge=1, le=2**31 - 1)],
    service: ServiceDep,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """A version of the task's model, as safetensors; with `ETag` and `Range`."""
    return send_version(service, task_id, version, if_none_match)


@uploads.put(
    "/tasks/{task_id}/models/0",
    summary="Set the initial model",
    response_model=ModelVersionResponse,
    openapi_extra=access(Access.MANAGE) | MODEL_BODY,
    responses=together(
        problems(
            *GUARDED,
            *MODEL_IN_BODY,
            TaskNotFoundError,
            TaskOverError,
            ModelExistsError,
            ModelStoreAwayError,
            BadTensorsError,
            DigestMismatchError,
        ),
        links(
            200,
            ("GET /tasks/{task_id}/models/0", {"task_id": "$request.path.task_id"}),
            ("POST /rounds", {"body.task_id": "$request.path.task_id"}),
        ),
    ),
)
async def upload_initial_model(
    task_id: TaskPath,
    request: Request,
    service: ServiceDep,
    content_digest: OptionalContentDigest = None,
) -> ModelVersionResponse:
    """Give the task its initial model, as safetensors. Until the first round it can be changed."""
    return await receive_model(
        request,
        service.models,
        admit=lambda: _admit_initial_model(service, task_id),
        content_digest=content_digest,
        finish=lambda blob: _keep_initial_model(service, task_id, blob),
    )


def task_response(task: Task) -> TaskResponse:
    """A task on the wire."""
    return TaskResponse.model_validate(vars(task.terms) | vars(task))


def send_version(service: Service, task_id: str, version: int, if_none_match: str | None) -> Response:
    """A version of a task's model as a file."""
    with service.database.reading() as store:
        model = store.models.get(store.tasks.get(task_id).serial, version)
    return send_model(service.models.path_of(model.digest), model.digest, if_none_match)


def _admit_initial_model(service: Service, task_id: str) -> int:
    """Refuse it now if nothing good can come of it; else how many bytes it may have."""
    with service.database.reading() as store:
        if (task := store.tasks.get(task_id)).is_over:
            raise TaskOverError(f"The task is {task.state}.")
    return service.settings.max_model_bytes


def _keep_initial_model(service: Service, task_id: str, incoming: IncomingBlob) -> ModelVersionResponse:
    check_model(incoming.path)
    blob = incoming.keep()
    with service.database.unit_of_work() as uow:
        task = set_initial_model(uow, task_id, blob, service.database.now())
        version = uow.models.get(task.serial, 0)
        uow.commit()
    return ModelVersionResponse.model_validate(version)


def check_model(path: FilePath) -> None:
    """Refuse what is no sound file of tensors."""
    read_layout(path)
    check_finite(path)


def _round_metrics(
    round_: Round, elapsed_s: float | None, evaluations: dict[int, Evaluation]
) -> RoundMetrics:
    made = round_.model_version + 1 if round_.state is RoundState.AGGREGATED else None
    evaluation = evaluations.get(made) if made is not None else None
    return RoundMetrics(
        round_id=round_.round_id,
        number=round_.number,
        state=round_.state.value,
        asked=round_.asked,
        selected=round_.selected,
        received=round_.received,
        duration_s=round_.duration_s,
        elapsed_s=elapsed_s,
        model_version=made,
        accuracy=evaluation.accuracy if evaluation else None,
        loss=evaluation.loss if evaluation else None,
    )
