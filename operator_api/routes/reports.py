"""``/reports``: clients tell of their resources."""

from datetime import UTC, datetime

from fastapi import APIRouter, Response
from fastapi.concurrency import run_in_threadpool

from operator_api.dependencies import OnceDep, PrincipalDep, ServiceDep
from operator_api.openapi import GUARDED, JSON_BODY, problems
from operator_api.report_writer import add_reports
from operator_api.security import Access, GuardedRoute, access, require_client
from services.contract.reports import (
    ReportBatchRequest,
    ReportBatchResponse,
    ReportRequest,
    ReportResponse,
    ReportResult,
)
from services.domain.radio import RadioModel, throughput_from_rsrp, throughput_from_sinr
from services.errors import ClientNotFoundError, IdempotencyKeyReusedError, TaskNotFoundError
from services.storage.database import UnitOfWork

router = APIRouter(tags=["reports"], route_class=GuardedRoute)


@router.post(
    "/reports",
    summary="Report a client's resources",
    status_code=201,
    response_model=ReportResponse,
    openapi_extra=access(Access.MANAGE, Access.CLIENT),
    responses=problems(
        *GUARDED, *JSON_BODY, ClientNotFoundError, TaskNotFoundError, IdempotencyKeyReusedError
    ),
)
async def report_resources(
    body: ReportRequest, service: ServiceDep, principal: PrincipalDep, once: OnceDep
) -> Response:
    """Tell what a client's uplink, processor and data are. It is on the disk when this is answered."""
    require_client(principal, body.client_id)
    if once.key is not None:
        return await run_in_threadpool(once.answer, 201, lambda uow, now: _add_one(uow, body, now))
    report = _kept(body, datetime.now(UTC))
    await service.reports.store(report)
    return Response(report.model_dump_json(), 201, media_type="application/json")


@router.post(
    "/reports/batch",
    summary="Report many clients' resources",
    status_code=201,
    response_model=ReportBatchResponse,
    openapi_extra=access(Access.MANAGE),
    responses=problems(*GUARDED, *JSON_BODY, IdempotencyKeyReusedError),
)
def report_many(body: ReportBatchRequest, once: OnceDep) -> Response:
    """Up to 10,000 reports at once; each is kept unless its client or task is unknown."""

    def add(uow: UnitOfWork, now: datetime) -> ReportBatchResponse:
        outcomes = add_reports(uow, [_kept(report, now) for report in body.reports])
        results = [
            ReportResult.model_construct(client_id=report.client_id, cause=outcome.cause if outcome else None)
            for report, outcome in zip(body.reports, outcomes, strict=True)
        ]
        return ReportBatchResponse.model_construct(stored=outcomes.count(None), results=results)

    return once.answer(201, add)


def _add_one(uow: UnitOfWork, body: ReportRequest, now: datetime) -> ReportResponse:
    report = _kept(body, now)
    (outcome,) = add_reports(uow, [report])
    if outcome is not None:
        raise outcome
    return report


def _kept(body: ReportRequest, now: datetime) -> ReportResponse:
    """The report as it will be kept: its throughput worked out, and nothing observed in the future."""
    return ReportResponse.model_construct(
        client_id=body.client_id,
        task_id=body.task_id,
        throughput_bps=_throughput_bps(body),
        compute_samples_per_s=body.compute_samples_per_s,
        data_samples=body.data_samples,
        report_resource_blocks=body.report_resource_blocks,
        observed_at=now if body.observed_at is None else min(body.observed_at.astimezone(UTC), now),
        received_at=now,
        radio=body.radio(),
    )


def _throughput_bps(body: ReportRequest) -> float:
    if body.throughput_bps is not None:
        return body.throughput_bps
    if body.ul_nongbr_throughput_ue is not None:
        return body.ul_nongbr_throughput_ue * 1000.0
    radio = RadioModel(resource_blocks=body.report_resource_blocks)
    if body.sinr is not None:
        return throughput_from_sinr(radio, body.sinr)
    assert body.rsrp is not None, "checked by the contract"
    return throughput_from_rsrp(radio, body.rsrp)
