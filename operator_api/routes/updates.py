"""``/rounds/{round_id}/model`` and ``/rounds/{round_id}/updates``: selected clients download and upload."""

from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request, Response
from fastapi import Path as InPath
from fastapi.concurrency import run_in_threadpool
from pydantic.json_schema import SkipJsonSchema
from sqlalchemy.exc import SQLAlchemyError
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
    MODEL_IN_BODY,
    RANGE_NOT_SATISFIABLE,
    Responses,
    problems,
)
from operator_api.request_context import is_head
from operator_api.round_view import channel_response
from operator_api.security import Access, AuthenticatedRoute, ModelRoute, access, created_at, require_client
from operator_api.service import Service
from services.contract.assignments import UpdateResponse
from services.contract.common import ClientId, Duration, RoundId
from services.domain.nanoseconds import to_seconds
from services.domain.rounds import SlotOutcome
from services.domain.tasks import Clock, Dispatch
from services.errors import (
    BadTensorsError,
    ChannelNotGrantedError,
    DataSamplesError,
    DeadlinePassedError,
    DigestMismatchError,
    ElapsedTimeError,
    EncodingMismatchError,
    ModelFileMissingError,
    ModelStoreUnavailableError,
    NotSelectedError,
    RoundNotCollectingError,
    RoundNotFoundError,
    SlotClosedError,
    SlotNotOpenError,
    StorageFullError,
    TimeNotMonotonicError,
    TooLargeError,
    UpdateExistsError,
)
from services.protocol.distribution import begin_collection, get_round_model, record_model_fetched
from services.protocol.ready import channel_news
from services.protocol.upload import (
    ReceivedUpdate,
    UploadContext,
    UploadTiming,
    admit_upload,
    check_arrival,
    check_encoding,
    check_samples,
    record_late,
    record_rejection,
    start_upload,
    withdraw_arrival,
)
from services.storage.model_store import IncomingBlob
from services.tensors.encoded_files import check_encoded
from services.tensors.encodings import make_encoding
from services.tensors.layout import Layout, largest_file, read_layout

downloads = APIRouter(tags=["devices"], route_class=AuthenticatedRoute)
uploads = APIRouter(tags=["devices"], route_class=ModelRoute)

RoundPath = Annotated[RoundId, InPath(description="The id of a round.")]
SimulatedTime = Annotated[
    Duration | SkipJsonSchema[None], Header(description="For tasks with a simulated clock only.")
]
UpdateTime = Annotated[Duration | SkipJsonSchema[None], Header(description="How long the update took.")]


@downloads.get(
    "/rounds/{round_id}/model",
    summary="Download the model to train",
    response_class=Response,
    openapi_extra=access(Access.READ, Access.CLIENT),
    responses=MODEL_FILE
    | problems(
        *GUARDED,
        NotSelectedError,
        RoundNotFoundError,
        RANGE_NOT_SATISFIABLE,
        ModelFileMissingError,
    ),
)
def download_round_model(
    round_id: RoundPath,
    request: Request,
    service: ServiceDep,
    principal: PrincipalDep,
    if_none_match: IfNoneMatch = None,
) -> Response:
    """The model of this round in the round's `model_encoding`, as safetensors; with `ETag` and `Range`.

    With the first selected client that fetches it, the round begins to collect.
    """
    client_id = principal.client_id
    with service.database.reading() as store:
        model, begins = get_round_model(store, round_id, client_id)
    file = model.download
    path = service.models.path_of(file.digest)
    if is_head(request.scope):
        return send_model(path, file.digest, if_none_match)
    if begins:
        with service.database.unit_of_work() as uow:
            begin_collection(uow, round_id, service.database.now())
            uow.commit()
    fetched = None if client_id is None else BackgroundTask(_note_fetched, service, round_id, client_id)
    return send_model(path, file.digest, if_none_match, fetched)


@uploads.put(
    "/rounds/{round_id}/updates/{client_id}",
    summary="Upload an update",
    status_code=201,
    response_model=UpdateResponse,
    openapi_extra=access(Access.CLIENT) | MODEL_BODY | created_at("/rounds/{round_id}/updates/{client_id}"),
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
        ChannelNotGrantedError,
        TimeNotMonotonicError,
        ModelStoreUnavailableError,
        BadTensorsError,
        DigestMismatchError,
        ElapsedTimeError,
        DataSamplesError,
        EncodingMismatchError,
        ModelFileMissingError,
    ),
)
async def upload_update(
    round_id: RoundPath,
    client_id: Annotated[ClientId, InPath(description="The id of the client that uploads.")],
    request: Request,
    response: Response,
    service: ServiceDep,
    principal: PrincipalDep,
    content_digest: ContentDigest,
    fedcs_data_samples: Annotated[
        int,
        Header(
            ge=1, le=10**12, description="Samples it was trained on, at most as many as the client reported."
        ),
    ],
    fedcs_encoding: Annotated[
        str, Header(description="The encoding of the update: that of the round, else 422.")
    ] = "float32",
    fedcs_elapsed_s: SimulatedTime = None,
    fedcs_update_s: UpdateTime = None,
    fedcs_upload_s: SimulatedTime = None,
) -> UpdateResponse:
    """The trained model, as safetensors with the tensors of the model handed out, or in the round's encoding.

    The same bytes again are answered 200; other bytes, or an update that is too late, 409. What counts is
    when the service has read the last byte. `Fedcs-Update-S` says how long the update took, without the wait
    for the slot. On tasks with a simulated clock `Fedcs-Elapsed-S` is required, the round time at the end of
    the upload, and `Fedcs-Upload-S` says how long the upload took.
    """
    require_client(principal, client_id)
    arrival = UploadTiming(service.database.now(), fedcs_elapsed_s, fedcs_update_s, fedcs_upload_s)
    upload = _Upload(service, round_id, client_id, arrival, fedcs_data_samples, fedcs_encoding)
    try:
        answer, is_new = await receive_model(
            request,
            service.models,
            admit=upload.admit,
            arrived=upload.arrived,
            content_digest=content_digest,
            finish=upload.finish,
        )
    except (TooLargeError, DigestMismatchError, DataSamplesError, EncodingMismatchError) as error:
        await run_in_threadpool(upload.reject, str(error))
        raise
    except Exception:
        await run_in_threadpool(upload.give_up)
        raise
    response.status_code = 201 if is_new else 200
    return answer


class _Upload:
    """One upload, from its first byte to the commit."""

    def __init__(
        self,
        service: Service,
        round_id: str,
        client_id: str,
        arrival: UploadTiming,
        data_samples: int,
        encoding: str,
    ) -> None:
        self._service = service
        self._round_id = round_id
        self._client_id = client_id
        self._arrival = arrival
        self._data_samples = data_samples
        self._sent_encoding = encoding
        self._arrived_at: datetime | None = None
        self._is_arrival_recorded = False
        """Whether the slot records the arrival and has no outcome yet."""

    def admit(self) -> int:
        """Check the upload before its body is read; return the maximum size in bytes."""
        try:
            with self._service.database.reading() as store:
                self._expected = admit_upload(store, self._round_id, self._client_id, self._arrival)
        except (DeadlinePassedError, SlotClosedError):
            self._late(self._arrival.began_at)
            raise
        check_samples(self._expected, self._data_samples)
        check_encoding(self._expected, self._sent_encoding)
        terms = self._expected.round_.terms
        self._encoding = make_encoding(terms.update_encoding, terms.topk_fraction)
        if terms.dispatch is Dispatch.ON_READY and self._is_wall:
            self._start()
        digest = self._expected.model.digest
        self._layout = _layout_of(digest, self._service.models.path_of(digest))
        most_bytes = largest_file(self._encoding.encoded_layout(self._layout))
        return min(most_bytes, self._service.settings.max_model_bytes)

    async def arrived(self) -> None:
        """Take the time of arrival; record it at once if the round has a deadline or grants the channel."""
        expected = self._expected
        has_channel = expected.round_.terms.dispatch is Dispatch.ON_READY and self._is_wall
        is_awaited = has_channel or expected.round_.upload_deadline_at is not None
        if not is_awaited or expected.slot.outcome is not SlotOutcome.PENDING:
            self._arrived_at = self._service.database.now()
        else:
            self._is_arrival_recorded = True
            self._arrived_at = await self._service.arrivals.record(self._round_id, self._client_id)

    def finish(self, incoming: IncomingBlob) -> tuple[UpdateResponse, bool]:
        """Check, store and record the update; the flag says whether it is new."""
        arrived_at = self._arrived_at
        assert arrived_at is not None, "it has arrived"
        try:
            check_arrival(self._expected, self._arrival, arrived_at)
        except (DeadlinePassedError, SlotClosedError):
            self._late(arrived_at)
            raise
        try:
            check_encoded(incoming.path, self._encoding, self._layout)
        except BadTensorsError as error:
            self.reject(str(error))
            raise
        blob = incoming.save()
        received = ReceivedUpdate(self._client_id, blob, self._data_samples, self._arrival, arrived_at)
        is_new = self._service.updates.accept(self._round_id, received)
        self._is_arrival_recorded = False
        if is_new:
            lateness_s = self._lateness_s(self._expected, arrived_at)
            self._service.monitoring.update_received(
                blob.size_bytes, self._expected.model.size_bytes, lateness_s
            )
        else:
            self._service.monitoring.update_not_received("repeated")
        answer = UpdateResponse(
            round_id=self._round_id,
            client_id=self._client_id,
            digest=blob.digest,
            size_bytes=blob.size_bytes,
            data_samples=self._data_samples,
            **self._channel(),
        )
        return answer, is_new

    def _start(self) -> None:
        """Refuse the upload if the channel is not granted to its client."""
        with self._service.database.unit_of_work() as uow:
            start_upload(uow, self._round_id, self._client_id, self._service.database.now())
            uow.commit()

    @property
    def _is_wall(self) -> bool:
        return self._expected.task.terms.clock is Clock.WALL

    def _channel(self) -> dict[str, Any]:
        """What the upload has changed about the channel; the caller of a simulated clock is to know."""
        if self._expected.round_.terms.dispatch is Dispatch.SCHEDULED or self._is_wall:
            return {"grants": [], "replacements": []}
        with self._service.database.reading() as store:
            round_ = store.rounds.get(self._round_id)
            return channel_response(channel_news(store, self._expected.task, round_, self._client_id))

    def reject(self, reason: str) -> None:
        """Record a rejected upload."""
        self._service.monitoring.update_not_received("rejected")
        now = self._service.database.now()
        with self._service.database.unit_of_work() as uow:
            record_rejection(uow, self._round_id, self._client_id, reason, now, arrived_at=self._arrived_at)
            uow.commit()
        self._is_arrival_recorded = False

    def give_up(self) -> None:
        """Withdraw the recorded arrival; if that fails, the round stops waiting after ``settle_s``."""
        if self._is_arrival_recorded and self._arrived_at is not None:
            with suppress(SQLAlchemyError, StorageFullError), self._service.database.unit_of_work() as uow:
                withdraw_arrival(uow, self._round_id, self._client_id, self._arrived_at)
                uow.commit()

    def _late(self, at: datetime) -> None:
        self._service.monitoring.update_not_received("late")
        with self._service.database.unit_of_work() as uow:
            record_late(uow, self._round_id, self._client_id, self._arrival, at)
            uow.commit()
        self._is_arrival_recorded = False

    def _lateness_s(self, expected: UploadContext, arrived_at: datetime) -> float:
        assert expected.round_.started_at is not None, "admitted"
        elapsed_s = self._arrival.elapsed_s
        if elapsed_s is None:
            elapsed_s = (arrived_at - expected.round_.started_at).total_seconds()
        return elapsed_s - to_seconds(expected.slot.window_end_ns)


@lru_cache(maxsize=64)
def _layout_of(digest: str, path: Path) -> Layout:  # noqa: ARG001 - what is under a digest never changes
    """The layout of a model, cached for all uploads of a round."""
    return read_layout(path)


def _note_fetched(service: Service, round_id: str, client_id: str) -> None:
    with service.database.unit_of_work() as uow:
        record_model_fetched(uow, round_id, client_id, service.database.now())
        uow.commit()
