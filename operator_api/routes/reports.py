"""``/reports``: clients tell of their resources."""

from datetime import datetime

from fastapi import APIRouter, Response
from fastapi.concurrency import run_in_threadpool

from operator_api.dependencies import OnceDep, PrincipalDep, ServiceDep
from operator_api.openapi import GUARDED, JSON_BODY, problems
from operator_api.reporting import add_reports, kept_report
from operator_api.security import Access, GuardedRoute, access, require_client
from services.contract.reports import (
    ReportBatchRequest,
    ReportBatchResponse,
    ReportRequest,
    ReportResponse,
    ReportResult,
)
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
    received_at = await service.reports.store(body)
    return Response(kept_report(body, received_at).model_dump_json(), 201, media_type="application/json")


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
        outcomes = add_reports(uow, body.reports, now)
        results: list[ReportResult] = [
            {"client_id": report.client_id, "cause": outcome.cause if outcome else None}
            for report, outcome in zip(body.reports, outcomes, strict=True)
        ]
        return ReportBatchResponse.model_construct(stored=outcomes.count(None), results=results)

    return once.answer(201, add)


def _add_one(uow: UnitOfWork, body: ReportRequest, now: datetime) -> ReportResponse:
    (outcome,) = add_reports(uow, [body], now)
    if outcome is not None:
        raise outcome
    return kept_report(body, now)
