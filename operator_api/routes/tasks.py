"""``/tasks``: what is trained, and how it goes."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path as FilePath
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query, Request, Response
from pydantic.json_schema import SkipJsonSchema

from operator_api.dependencies import (
    PAGED,
    IdempotentRequestDep,
    PagingDep,
    PrincipalDep,
    ServiceDep,
    answer_page,
)
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
    JSON_BODY,
    MODEL_IN_BODY,
    RANGE_NOT_SATISFIABLE,
    links,
    problems,
    together,
)
from operator_api.routes.cells import require_task_cells
from operator_api.security import Access, AuthenticatedRoute, ModelRoute, access, created_at
from operator_api.service import Service
from services.contract.common import TaskId
from services.contract.tasks import (
    DeviceEvaluationRequest,
    DeviceEvaluationResponse,
    ModelVersionResponse,
    RoundMetrics,
    TaskChangeRequest,
    TaskMetrics,
    TaskRequest,
    TaskResponse,
)
from services.domain.rounds import Round, RoundState
from services.domain.tasks import DeviceEvaluation, DeviceScore, Evaluation, Task, TaskState
from services.errors import (
    BadTensorsError,
    DigestMismatchError,
    EvaluationExistsError,
    IdempotencyKeyReusedError,
    ModelExistsError,
    ModelFileMissingError,
    ModelNotFoundError,
    ModelNotReadyError,
    ModelStoreUnavailableError,
    NoDataSetError,
    NotSelectedError,
    TaskNotFoundError,
    TaskNotOverError,
    TaskOverError,
)
from services.protocol import task_management
from services.protocol.evaluation import add_device_evaluation
from services.protocol.initialization import set_initial_model, start_task
from services.storage.database import UnitOfWork
from services.storage.model_store import IncomingBlob
from services.storage.models import ModelVersion, prepare_transfer
from services.tensors.layout import check_finite, read_layout

router = APIRouter(route_class=AuthenticatedRoute)
uploads = APIRouter(tags=["tasks"], route_class=ModelRoute)

TaskPath = Annotated[TaskId, Path(description="The id of a task.")]

_THIS_TASK = {"task_id": "$response.body#/task_id"}


@router.post(
    "/tasks",
    tags=["tasks"],
    summary="Create a task",
    status_code=201,
    response_model=TaskResponse,
    openapi_extra=access(Access.MANAGE) | created_at("/tasks/{task_id}"),
    responses=together(
        problems(*GUARDED, *JSON_BODY, IdempotencyKeyReusedError),
        links(
            201,
            ("GET /tasks/{task_id}", _THIS_TASK),
            ("GET /tasks/{task_id}/metrics", _THIS_TASK),
            ("PATCH /tasks/{task_id}", _THIS_TASK),
            ("POST /tasks/{task_id}/finish", _THIS_TASK),
            ("POST /tasks/{task_id}/cancel", _THIS_TASK),
            ("DELETE /tasks/{task_id}", _THIS_TASK),
            ("GET /tasks/{task_id}/models", _THIS_TASK),
        ),
    ),
)
def create_task(body: TaskRequest, idempotent: IdempotentRequestDep) -> Response:
    """Begin a training task. A worker makes its initial model, unless you set it."""

    def create(uow: UnitOfWork, now: datetime) -> TaskResponse:
        require_task_cells(uow, body)
        return task_response(start_task(uow, body.terms(), now))

    return idempotent.answer(201, create)


@router.get(
    "/tasks",
    tags=["tasks"],
    summary="List tasks",
    openapi_extra=access(Access.READ),
    responses=PAGED | problems(*GUARDED),
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
    tags=["tasks"],
    summary="Show a task",
    openapi_extra=access(Access.READ),
    responses=problems(*GUARDED, TaskNotFoundError),
)
def get_task(task_id: TaskPath, service: ServiceDep) -> TaskResponse:
    """One task: its terms and how far it is."""
    with service.database.reading() as store:
        return task_response(store.tasks.get(task_id))


@router.post(
    "/tasks/{task_id}/cancel",
    tags=["tasks"],
    summary="Cancel a task",
    openapi_extra=access(Access.MANAGE),
    responses=problems(*GUARDED, TaskNotFoundError, TaskOverError),
)
def cancel_task(task_id: TaskPath, service: ServiceDep) -> TaskResponse:
    """End a task and its open round. To cancel a cancelled task changes nothing."""
    with service.database.unit_of_work() as uow:
        task = task_management.cancel_task(uow, task_id, service.database.now())
        uow.commit()
    return task_response(task)


@router.patch(
    "/tasks/{task_id}",
    tags=["tasks"],
    summary="Change a task",
    openapi_extra=access(Access.MANAGE),
    responses=problems(*GUARDED, *JSON_BODY, TaskNotFoundError, TaskOverError, NoDataSetError),
)
def change_task(task_id: TaskPath, body: TaskChangeRequest, service: ServiceDep) -> TaskResponse:
    """Change the name, `final_deadline_s`, `max_rounds` or `target_accuracy`; what is not named stays.

    A task that has reached the new terms already ends when its open round is over.
    """
    with service.database.unit_of_work() as uow:
        task = task_management.change_task(uow, task_id, service.database.now(), **body.changes())
        uow.commit()
    return task_response(task)


@router.post(
    "/tasks/{task_id}/finish",
    tags=["tasks"],
    summary="Finish a task",
    openapi_extra=access(Access.MANAGE),
    responses=problems(*GUARDED, TaskNotFoundError, TaskOverError, ModelNotReadyError),
)
def finish_task(task_id: TaskPath, service: ServiceDep) -> TaskResponse:
    """End a task as `finished`. An open round is closed first, and its model becomes the task's.

    Until that round is over the task is `running`, with the outcome `FINISHED_BY_OPERATOR`. To finish a
    finished task changes nothing.
    """
    with service.database.unit_of_work() as uow:
        task = task_management.finish_by_operator(uow, task_id, service.database.now())
        uow.commit()
    return task_response(task)


@router.delete(
    "/tasks/{task_id}",
    tags=["tasks"],
    summary="Delete a task",
    status_code=204,
    openapi_extra=access(Access.MANAGE),
    responses=problems(*GUARDED, TaskNotFoundError, TaskNotOverError),
)
def delete_task(task_id: TaskPath, service: ServiceDep) -> None:
    """Delete a task that has ended, with its rounds, metrics and models."""
    with service.database.unit_of_work() as uow:
        task_management.delete_task(uow, task_id, service.database.now())
        uow.commit()


@router.get(
    "/tasks/{task_id}/metrics",
    tags=["tasks"],
    summary="Show how a task goes",
    openapi_extra=access(Access.READ),
    responses=problems(*GUARDED, TaskNotFoundError),
)
def get_task_metrics(task_id: TaskPath, service: ServiceDep) -> TaskMetrics:
    """Accuracy, loss and clients of every round, over elapsed time."""
    with service.database.reading() as store:
        task = store.tasks.get(task_id)
        evaluations = store.models.evaluations(task.serial)
        by_devices = store.models.device_evaluations(task.serial)
        errors = store.models.evaluation_errors(task.serial)
        rounds = store.rounds.of_task(task.serial)
        noise_scales = store.models.noise_scales(task.serial)
    metrics = [_round_metrics(round_, evaluations, by_devices, errors, noise_scales) for round_ in rounds]
    initial = evaluations.get(0)
    return TaskMetrics(
        task_id=task_id, initial_accuracy=None if initial is None else initial.accuracy, rounds=metrics
    )


@router.get(
    "/tasks/{task_id}/models",
    tags=["tasks"],
    summary="List the versions of a task's model",
    openapi_extra=access(Access.READ),
    responses=PAGED | problems(*GUARDED, TaskNotFoundError),
)
def list_models(
    task_id: TaskPath, request: Request, response: Response, service: ServiceDep, paging: PagingDep
) -> Sequence[ModelVersionResponse]:
    """The versions, newest first, each with its size, digest and accuracy."""
    with service.database.reading() as store:
        task = store.tasks.get(task_id)
        found = store.models.page(task.serial, paging)
        evaluations = store.models.evaluations(task.serial)
        by_devices = store.models.device_evaluations(task.serial)

    def show(model: ModelVersion) -> ModelVersionResponse:
        return _model_response(model, evaluations.get(model.version), by_devices.get(model.version))

    return answer_page(request, response, paging, found, show)


@router.get(
    "/tasks/{task_id}/models/{version}",
    tags=["tasks"],
    summary="Download a global model",
    response_class=Response,
    openapi_extra=access(Access.READ),
    responses=MODEL_FILE
    | problems(
        *GUARDED,
        TaskNotFoundError,
        ModelNotFoundError,
        RANGE_NOT_SATISFIABLE,
        ModelFileMissingError,
    ),
)
def download_model(
    task_id: TaskPath,
    version: Annotated[
        str,
        Path(
            pattern=r"^(latest|0|[1-9][0-9]{0,8})$",
            description="A number, or `latest`.",
            examples=["latest"],
        ),
    ],
    service: ServiceDep,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """A version of the task's model, as safetensors; with `ETag` and `Range`."""
    return send_version(service, task_id, None if version == "latest" else int(version), if_none_match)


@uploads.put(
    "/tasks/{task_id}/models/{version}",
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
            ModelStoreUnavailableError,
            BadTensorsError,
            DigestMismatchError,
        ),
        links(
            200,
            (
                "GET /tasks/{task_id}/models/{version}",
                {"task_id": "$request.path.task_id", "version": "$request.path.version"},
            ),
        ),
    ),
)
async def set_model(
    task_id: TaskPath,
    version: Annotated[Literal["0"], Path(description="Only 0, the initial model, can be set.")],  # noqa: ARG001
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


@router.post(
    "/tasks/{task_id}/models/{version}/evaluations",
    tags=["devices"],
    summary="Report an evaluation on a device's own data",
    status_code=201,
    response_model=DeviceEvaluationResponse,
    openapi_extra=access(Access.CLIENT) | created_at("/tasks/{task_id}/models"),
    responses=problems(
        *GUARDED,
        *JSON_BODY,
        TaskNotFoundError,
        ModelNotFoundError,
        NotSelectedError,
        EvaluationExistsError,
        IdempotencyKeyReusedError,
    ),
)
def evaluate_model(
    task_id: TaskPath,
    version: Annotated[
        str, Path(pattern=r"^(0|[1-9][0-9]{0,8})$", description="The version evaluated.", examples=["3"])
    ],
    body: DeviceEvaluationRequest,
    principal: PrincipalDep,
    idempotent: IdempotentRequestDep,
) -> Response:
    """For a client that was selected in the task, once per version. It is shown as `device_accuracy`.

    It ends a task only with `target_metric: device`, and with at least 10 devices.
    """
    client_id = principal.client_id
    assert client_id is not None, "a client's key"
    measured = DeviceEvaluation(body.accuracy, body.loss, body.samples)

    def add(uow: UnitOfWork, now: datetime) -> DeviceEvaluationResponse:
        score = add_device_evaluation(uow, task_id, int(version), measured, now, client_id=client_id)
        return DeviceEvaluationResponse(
            task_id=task_id, version=int(version), device_accuracy=score.accuracy, devices=score.devices
        )

    return idempotent.answer(201, add)


def task_response(task: Task) -> TaskResponse:
    """A task on the wire."""
    return TaskResponse.model_validate(vars(task.terms) | vars(task))


def send_version(service: Service, task_id: str, version: int | None, if_none_match: str | None) -> Response:
    """A version of a task's model as a file; the newest, if none is named."""
    with service.database.reading() as store:
        task = store.tasks.get(task_id)
        number = task.model_version if version is None else version
        if number is None:
            raise ModelNotFoundError("latest")
        model = store.models.get(task.serial, number)
    return send_model(service.models.path_of(model.digest), model.digest, if_none_match)


def _admit_initial_model(service: Service, task_id: str) -> int:
    """Check that the task takes a model; return the maximum size in bytes."""
    with service.database.reading() as store:
        if (task := store.tasks.get(task_id)).is_over:
            raise TaskOverError(f"The task is {task.state}.")
    return service.settings.max_model_bytes


def _keep_initial_model(service: Service, task_id: str, incoming: IncomingBlob) -> ModelVersionResponse:
    check_model(incoming.path)
    blob = incoming.save()
    with service.database.reading() as store:
        terms = store.tasks.get(task_id).terms
    transfer = prepare_transfer(service.models, terms, blob)
    with service.database.unit_of_work() as uow:
        task = set_initial_model(uow, task_id, blob, service.database.now(), transfer)
        version = uow.models.get(task.serial, 0)
        uow.commit()
    return _model_response(version)


def _model_response(
    model: ModelVersion, evaluation: Evaluation | None = None, by_devices: DeviceScore | None = None
) -> ModelVersionResponse:
    return ModelVersionResponse(
        version=model.version,
        digest=model.digest,
        size_bytes=model.size_bytes,
        created_at=model.created_at,
        accuracy=evaluation.accuracy if evaluation else None,
        device_accuracy=by_devices.accuracy if by_devices else None,
        loss=evaluation.loss if evaluation else None,
        evaluation_error=model.evaluation_error,
    )


def check_model(path: FilePath) -> None:
    """Refuse a malformed file, or values that are not finite."""
    read_layout(path)
    check_finite(path)


def _round_metrics(
    round_: Round,
    evaluations: Mapping[int, Evaluation],
    by_devices: Mapping[int, DeviceScore],
    evaluation_errors: Mapping[int, str],
    noise_scales: Mapping[int, float],
) -> RoundMetrics:
    made = round_.model_version + 1 if round_.state is RoundState.AGGREGATED else None
    evaluation = evaluations.get(made) if made is not None else None
    devices = by_devices.get(made) if made is not None else None
    return RoundMetrics(
        round_id=round_.round_id,
        number=round_.number,
        state=round_.state.value,
        asked=round_.asked,
        selected=round_.selected,
        received=round_.received,
        duration_s=round_.duration_s,
        elapsed_s=round_.task_elapsed_s,
        model_version=made,
        round_deadline_s=None if round_.started_at is None else round_.terms.deadline_s,
        measured_noise_scale=noise_scales.get(made) if made is not None else None,
        accuracy=evaluation.accuracy if evaluation else None,
        device_accuracy=devices.accuracy if devices else None,
        loss=evaluation.loss if evaluation else None,
        evaluation_error=evaluation_errors.get(made) if made is not None else None,
    )
