"""``GET /healthz``, ``/readyz``, ``/metrics``: is the process alive, can it work, how is it doing."""

import shutil
from typing import Literal

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel
from sqlalchemy.exc import SQLAlchemyError

from operator_api.dependencies import ServiceDep
from operator_api.openapi import GUARDED, INVALID_REQUEST, NOT_READY, Responses, problems
from operator_api.security import Access, AuthenticatedRoute, access, authorise
from operator_api.service import Service
from services.contract.common import response_config
from services.domain.jobs import describe_problems
from services.errors import ModelStoreUnavailableError
from services.storage.database import describe_failure
from services.storage.migration import is_up_to_date

_NO_WORKERS = "none is running"

router = APIRouter(tags=["health"], route_class=AuthenticatedRoute)


class Alive(BaseModel):
    """The process answers."""

    model_config = response_config({"status": "alive"})

    status: Literal["alive"] = "alive"


class Ready(BaseModel):
    """The process can work. `degraded`: it works, but without a broker, or a worker cannot run all jobs."""

    model_config = response_config(
        {
            "status": "ready",
            "checks": {
                "database": "ok",
                "migrations": "ok",
                "disk": "ok",
                "model_store": "ok",
                "broker": "ok",
                "workers": "ok",
            },
        }
    )

    status: Literal["ready", "degraded"]
    checks: dict[str, str]


@router.get(
    "/healthz", summary="Liveness", openapi_extra=access(Access.OPEN), responses=problems(INVALID_REQUEST)
)
async def is_alive() -> Alive:
    """Answer as long as the process can."""
    return Alive()


@router.get(
    "/readyz",
    summary="Readiness",
    openapi_extra=access(Access.OPEN),
    responses=problems(INVALID_REQUEST, NOT_READY),
)
def is_ready(service: ServiceDep) -> Ready:
    """Check what the service depends on.

    It is `degraded` without a broker, when it still accepts and stores everything, and while a worker cannot
    run all jobs. `workers` then names the host and its problem.
    """
    broker = service.publisher.state()
    checks = {
        "database": _check_database(service),
        "migrations": "ok",
        "disk": _check_disk(service),
        "model_store": _check_model_store(service),
        "broker": broker,
        "workers": _check_workers(service),
    }
    is_degraded = broker != "ok" or checks["workers"] not in ("ok", _NO_WORKERS)
    return Ready(status="degraded" if is_degraded else "ready", checks=checks)


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    response_class=Response,
    openapi_extra=access(Access.OPEN),
    responses=Responses(
        {
            200: {
                "description": "Metrics in the text format of Prometheus.",
                "content": {
                    "text/plain": {
                        "schema": {"type": "string"},
                        "example": 'fedcs_rounds{state="collecting"} 1.0',
                    }
                },
            }
        }
    )
    | problems(*GUARDED),
)
async def get_metrics(request: Request, service: ServiceDep) -> Response:
    """What an operator would want an alarm for. With `FEDCS_METRICS_OPEN=false` it takes an operator key."""
    if not service.settings.metrics_open:
        authorise(await service.authenticator.identify(request), frozenset({Access.READ}))
    return Response(
        await run_in_threadpool(service.monitoring.text),
        media_type="text/plain; version=0.0.4; charset=utf-8",
    )


def _check_database(service: Service) -> str:
    try:
        up_to_date = is_up_to_date(service.database)
    except SQLAlchemyError as error:
        raise HTTPException(503, f"database: {describe_failure(error)}") from error
    if not service.database.is_same_file():
        raise HTTPException(503, "database: its file was deleted or replaced")
    if not up_to_date:
        raise HTTPException(503, "migrations: the schema of the database does not match this version")
    return "ok"


def _check_disk(service: Service) -> str:
    settings = service.settings
    for directory in (settings.data_dir, service.models.directory):
        try:
            free_bytes = shutil.disk_usage(directory).free
        except OSError as error:
            raise HTTPException(503, f"disk: {directory}: {error.strerror}") from error
        if free_bytes < settings.min_free_disk_bytes:
            raise HTTPException(503, f"disk: {free_bytes} bytes free, {settings.min_free_disk_bytes} wanted")
    return "ok"


def _check_model_store(service: Service) -> str:
    try:
        service.models.check()
    except ModelStoreUnavailableError as error:
        raise HTTPException(503, f"model_store: {error}") from error
    return "ok"


def _check_workers(service: Service) -> str:
    """What is wrong with live workers, and on which hosts."""
    now = service.database.now()
    try:
        with service.database.reading() as store:
            live, refusals = store.workers.live(now), store.refusals.standing(now)
    except SQLAlchemyError as error:
        raise HTTPException(503, f"database: {describe_failure(error)}") from error
    return describe_problems(live, refusals) or ("ok" if live else _NO_WORKERS)
