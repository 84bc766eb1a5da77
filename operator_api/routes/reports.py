"""``/reports``: clients tell of their resources."""

from collections.abc import Mapping, Sequence
from datetime import datetime

from fastapi import APIRouter, Response
from fastapi.concurrency import run_in_threadpool

from operator_api.dependencies import IdempotentRequestDep, PrincipalDep, ServiceDep
from operator_api.openapi import GUARDED, JSON_BODY, problems
from operator_api.problems import invalid_field
from operator_api.resource_reports import add_reports, find_radios, kept_report, needs_radio
from operator_api.security import Access, AuthenticatedRoute, access, created_at, require_client
from operator_api.service import Service
from services.contract.reports import (
    ReportBatchRequest,
    ReportBatchResponse,
    ReportRequest,
    ReportResponse,
    ReportResult,
)
from services.domain.radio import RadioModel
from services.errors import (
    CellNotFoundError,
    ClientNotFoundError,
    IdempotencyKeyReusedError,
    TaskNotFoundError,
)
from services.storage.database import UnitOfWork

router = APIRouter(tags=["reports"], route_class=AuthenticatedRoute)


@router.post(
    "/reports",
    summary="Report a client's resources",
    status_code=201,
    response_model=ReportResponse,
    openapi_extra=access(Access.MANAGE, Access.CLIENT) | created_at("/clients/{client_id}/reports"),
    responses=problems(
        *GUARDED, *JSON_BODY, ClientNotFoundError, TaskNotFoundError, IdempotencyKeyReusedError
    ),
)
async def report_resources(
    body: ReportRequest, service: ServiceDep, principal: PrincipalDep, idempotent: IdempotentRequestDep
) -> Response:
    """Tell what a client's uplink, processor and data are. It is on the disk when this is answered."""
    require_client(principal, body.client_id)
    radios = await run_in_threadpool(_radios, service, [body]) if needs_radio(body) else {}
    report = service.report_limits.check(body, radios.get(0))
    try:
        if idempotent.key is not None:
            return await run_in_threadpool(
                idempotent.answer, 201, lambda uow, now: _add_one(uow, report, now)
            )
        received_at = await service.reports.write(report)
    except CellNotFoundError as error:
        raise invalid_field(("cell_id",), str(error), body.cell_id) from error
    return Response(kept_report(report, received_at).model_dump_json(), 201, media_type="application/json")


@router.post(
    "/reports/batch",
    summary="Report many clients' resources",
    status_code=201,
    response_model=ReportBatchResponse,
    openapi_extra=access(Access.MANAGE) | created_at("/clients"),
    responses=problems(*GUARDED, *JSON_BODY, IdempotencyKeyReusedError),
)
def report_many(body: ReportBatchRequest, service: ServiceDep, idempotent: IdempotentRequestDep) -> Response:
    """Up to 10,000 reports at once; each is kept unless its client, task or cell is unknown.

    If a figure of one is outside the limits of the service, none is kept.
    """
    reports = service.report_limits.check_batch(body.reports, _radios(service, body.reports))

    def add(uow: UnitOfWork, now: datetime) -> ReportBatchResponse:
        outcomes = add_reports(uow, reports, now)
        results: list[ReportResult] = [
            {"client_id": report.client_id, "cause": outcome.cause if outcome else None}
            for report, outcome in zip(reports, outcomes, strict=True)
        ]
        return ReportBatchResponse.model_construct(stored=outcomes.count(None), results=results)

    return idempotent.answer(201, add)


def _radios(service: Service, reports: Sequence[ReportRequest]) -> Mapping[int, RadioModel]:
    if not any(map(needs_radio, reports)):
        return {}
    with service.database.reading() as store:
        return find_radios(store, reports)


def _add_one(uow: UnitOfWork, report: ReportRequest, now: datetime) -> ReportResponse:
    (outcome,) = add_reports(uow, [report], now)
    if outcome is not None:
        raise outcome
    return kept_report(report, now)
