"""``/trainings``: hosted local training for simulated clients."""

from typing import Annotated

from fastapi import APIRouter, Path, Response

from operator_api.dependencies import IdempotentRequestDep, ServiceDep
from operator_api.model_files import MODEL_FILE, IfNoneMatch, send_model
from operator_api.openapi import (
    GUARDED,
    JSON_BODY,
    RANGE_NOT_SATISFIABLE,
    links,
    problems,
    together,
)
from operator_api.security import Access, AuthenticatedRoute, access
from services.contract.assignments import TrainingRequest, TrainingResponse
from services.contract.common import TrainingId
from services.errors import (
    IdempotencyKeyReusedError,
    ModelFileMissingError,
    NoDataSetError,
    NotSelectedError,
    RoundNotCollectingError,
    RoundNotFoundError,
    TrainingNotDoneError,
    TrainingNotFoundError,
)
from services.protocol.jobs import request_training

router = APIRouter(tags=["trainings"], route_class=AuthenticatedRoute)

TrainingPath = Annotated[TrainingId, Path(description="The id of a training.")]

_THIS_TRAINING = {"training_id": "$response.body#/training_id"}


@router.post(
    "/trainings",
    summary="Train in a simulated client's place",
    status_code=202,
    response_model=TrainingResponse,
    openapi_extra=access(Access.MANAGE),
    responses=together(
        problems(
            *GUARDED,
            *JSON_BODY,
            NotSelectedError,
            RoundNotFoundError,
            RoundNotCollectingError,
            NoDataSetError,
            IdempotencyKeyReusedError,
        ),
        links(
            202,
            ("GET /trainings/{training_id}", _THIS_TRAINING),
            ("GET /trainings/{training_id}/update", _THIS_TRAINING),
        ),
    ),
)
def create_training(body: TrainingRequest, idempotent: IdempotentRequestDep) -> Response:
    """A worker trains; fetch the update and upload it when the device's time has come."""
    return idempotent.answer(
        202,
        lambda uow, now: TrainingResponse.model_validate(
            request_training(uow, body.round_id, body.client_id, body.partition, now)
        ),
    )


@router.get(
    "/trainings/{training_id}",
    summary="Show a training",
    openapi_extra=access(Access.READ),
    responses=problems(*GUARDED, TrainingNotFoundError),
)
def get_training(training_id: TrainingPath, service: ServiceDep) -> TrainingResponse:
    """How far a training is."""
    with service.database.reading() as store:
        return TrainingResponse.model_validate(store.trainings.get(training_id))


@router.get(
    "/trainings/{training_id}/update",
    summary="Download a trained update",
    response_class=Response,
    openapi_extra=access(Access.READ),
    responses=MODEL_FILE
    | problems(*GUARDED, TrainingNotFoundError, TrainingNotDoneError, RANGE_NOT_SATISFIABLE),
)
def download_update(
    training_id: TrainingPath, service: ServiceDep, if_none_match: IfNoneMatch = None
) -> Response:
    """The update that a worker trained, as safetensors; it is deleted some minutes after the round's end."""
    with service.database.reading() as store:
        training = store.trainings.get(training_id)
    if training.digest is None:
        raise TrainingNotDoneError(f"The training is {training.state}.")
    try:
        path = service.models.path_of(training.digest)
    except ModelFileMissingError as error:
        raise TrainingNotDoneError("The round is over, and the update has been deleted.") from error
    return send_model(path, training.digest, if_none_match)
