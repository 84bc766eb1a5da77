"""What selected clients do: fetch the model, upload the update."""

from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Header, Request, Response
from fastapi import Path as InPath
from fastapi.concurrency import run_in_threadpool
from pydantic.json_schema import SkipJsonSchema
from starlette.background import BackgroundTask

from operator_api.dependencies import PrincipalDep, ServiceDep
from operator_api.model_files import (
    MODEL_BODY,
    MODEL_FILE,
    ContentDigest,
    IfNoneMatch,
    receive_model,
    send_model,
)
from operator_api.openapi import (
    GUARDED,
    INVALID_REQUEST,
    MODEL_IN_BODY,
    RANGE_NOT_SATISFIABLE,
    Responses,
    problems,
)
from operator_api.security import Access, GuardedRoute, ModelRoute, access, require_client
from operator_api.service import Service
from services.contract.fields import ClientId, Duration, RoundId
from services.contract.rounds import UpdateResponse
from services.domain.nanoseconds import to_seconds
from services.errors import (
    BadTensorsError,
    DeadlinePassedError,
    DigestMismatchError,
    ElapsedTimeError,
    ModelFileMissingError,
    ModelStoreAwayError,
    NotSelectedError,
    RoundNotCollectingError,
    RoundNotFoundError,
    SlotClosedError,
    SlotNotOpenError,
    TooLargeError,
    UpdateExistsError,
)
from services.protocol.distribution import begin_collection, hand_out_model, note_model_fetched
from services.protocol.upload import (
    Arrival,
    Expected,
    Received,
    admit_upload,
    record_late,
    record_rejection,
)
from services.storage.model_store import IncomingBlob
from services.tensors import Layout, check_finite, check_same_layout, largest_file, read_layout

downloads = APIRouter(tags=["rounds"], route_class=GuardedRoute)
uploads = APIRouter(tags=["rounds"], route_class=ModelRoute)

RoundPath = Annotated[RoundId, InPath()]
SimulatedTime = Annotated[Duration | SkipJsonSchema[None], Header()]


@downloads.get(
    "/rounds/{round_id}/model",
    summary="Download the model to train",
    response_class=Response,
    openapi_extra=access(Access.READ, Access.CLIENT),
    responses=MODEL_FILE
    | problems(
        *GUARDED,
        INVALID_REQUEST,
        NotSelectedError,
        RoundNotFoundError,
        RANGE_NOT_SATISFIABLE,
        ModelFileMissingError,
    ),
)
def download_round_model(
    round_id: RoundPath,
    service: ServiceDep,
    principal: PrincipalDep,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """The global model of this round, as safetensors; with `ETag` and `Range`.

    With the first selected client that fetches it, the round begins to collect.
    """
    client_id = principal.client_id
    with service.database.reading() as store:
        model, begins = hand_out_model(store, round_id, client_id)
    path = service.models.path_of(model.digest)
    if begins:
        with service.database.unit_of_work() as uow:
            begin_collection(uow, round_id, service.database.now())
            uow.commit()
    fetched = None if client_id is None else BackgroundTask(_note_fetched, service, round_id, client_id)
    return send_model(path, model.digest, if_none_match, fetched)


@uploads.put(
    "/rounds/{round_id}/updates/{client_id}",
    summary="Upload an update",
    status_code=201,
    response_model=UpdateResponse,
    openapi_extra=access(Access.CLIENT) | MODEL_BODY,
    responses=Responses({200: {"description": "The same update came before.", "model": UpdateResponse}})
    | problems(
        *GUARDED,
        *MODEL_IN_BODY,
        NotSelectedError,
        RoundNotFoundError,
        DeadlinePassedError,
        SlotNotOpenError,
        SlotClosedError,
        RoundNotCollectingError,
        UpdateExistsError,
        ModelStoreAwayError,
        BadTensorsError,
        DigestMismatchError,
        ElapsedTimeError,
        ModelFileMissingError,
    ),
)
async def upload_update(
    round_id: RoundPath,
    client_id: Annotated[ClientId, InPath()],
    request: Request,
    response: Response,
    service: ServiceDep,
    principal: PrincipalDep,
    content_digest: ContentDigest,
    fedcs_data_samples: Annotated[int, Header(ge=1, le=10**12, description="Samples it was trained on.")],
    fedcs_elapsed_s: SimulatedTime = None,
    fedcs_update_s: SimulatedTime = None,
    fedcs_upload_s: SimulatedTime = None,
) -> UpdateResponse:
    """The trained model, as safetensors with the tensors of the model handed out.

    The same bytes again are answered 200; other bytes, or an update that is too late, 409. On tasks with a
    simulated clock `Fedcs-Elapsed-S` tells the round time at the end of the upload, and, if known,
    `Fedcs-Update-S` and `Fedcs-Upload-S` how long the update and the upload took.
    """
    require_client(principal, client_id)
    arrival = Arrival(service.database.now(), fedcs_elapsed_s, fedcs_update_s, fedcs_upload_s)
    upload = _Upload(service, round_id, client_id, arrival, fedcs_data_samples)
    try:
        answer, is_new = await receive_model(
            request,
            service.models,
            admit=upload.admit,
            content_digest=content_digest,
            finish=upload.finish,
        )
    except (TooLargeError, DigestMismatchError) as error:
        await run_in_threadpool(upload.reject, str(error))
        raise
    response.status_code = 201 if is_new else 200
    return answer


class _Upload:
    """One upload, from its first byte to the commit."""

    def __init__(
        self, service: Service, round_id: str, client_id: str, arrival: Arrival, data_samples: int
    ) -> None:
        self._service = service
        self._round_id = round_id
        self._client_id = client_id
        self._arrival = arrival
        self._data_samples = data_samples

    def admit(self) -> int:
        """Refuse it now if nothing good can come of it; else how many bytes it may have."""
        try:
            with self._service.database.reading() as store:
                self._expected = admit_upload(store, self._round_id, self._client_id, self._arrival)
        except (DeadlinePassedError, SlotClosedError):
            self._late()
            raise
        digest = self._expected.model.digest
        self._layout = _layout_of(digest, self._service.models.path_of(digest))
        return min(largest_file(self._layout), self._service.settings.max_model_bytes)

    def finish(self, incoming: IncomingBlob) -> tuple[UpdateResponse, bool]:
        """Check what came, keep it, and record it; whether it is new."""
        try:
            check_same_layout(read_layout(incoming.path), self._layout)
            check_finite(incoming.path)
        except BadTensorsError as error:
            self.reject(str(error))
            raise
        now = self._service.database.now()  # it is all here; how long the store takes is not the client's
        blob = incoming.keep()
        try:
            received = Received(self._client_id, blob, self._data_samples, self._arrival, now)
            is_new = self._service.updates.accept(self._round_id, received)
        except (DeadlinePassedError, SlotClosedError):
            self._late()
            raise
        if is_new:
            self._service.monitoring.update_received(blob.size_bytes, self._lateness_s(self._expected, now))
        else:
            self._service.monitoring.update_not_received("repeated")
        answer = UpdateResponse(
            round_id=self._round_id,
            client_id=self._client_id,
            digest=blob.digest,
            size_bytes=blob.size_bytes,
            data_samples=self._data_samples,
        )
        return answer, is_new

    def reject(self, reason: str) -> None:
        """Remember that what came was not acceptable."""
        self._service.monitoring.update_not_received("rejected")
        with self._service.database.unit_of_work() as uow:
            record_rejection(uow, self._round_id, self._client_id, reason, self._service.database.now())
            uow.commit()

    def _late(self) -> None:
        self._service.monitoring.update_not_received("late")
        with self._service.database.unit_of_work() as uow:
            record_late(uow, self._round_id, self._client_id, self._arrival, self._service.database.now())
            uow.commit()

    def _lateness_s(self, expected: Expected, now: datetime) -> float:
        assert expected.round_.started_at is not None, "admitted"
        elapsed_s = self._arrival.elapsed_s
        if elapsed_s is None:
            elapsed_s = (now - expected.round_.started_at).total_seconds()
        return elapsed_s - to_seconds(expected.slot.window_end_ns)


@lru_cache(maxsize=64)
def _layout_of(digest: str, path: Path) -> Layout:  # noqa: ARG001 - what is under a digest never changes
    """The tensors of a model, read once for all who upload updates to it."""
    return read_layout(path)


def _note_fetched(service: Service, round_id: str, client_id: str) -> None:
    with service.database.unit_of_work() as uow:
        note_model_fetched(uow, round_id, client_id, service.database.now())
        uow.commit()
