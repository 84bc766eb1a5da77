"""``GET /healthz``, ``/readyz``, ``/metrics``: is the process alive, can it work, how is it doing."""

import shutil
from typing import Literal

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, ConfigDict
from sqlalchemy.exc import SQLAlchemyError

from operator_api.dependencies import ServiceDep
from operator_api.openapi import GUARDED, NOT_READY, Responses, problems
from operator_api.security import Access, GuardedRoute, access, authorise
from operator_api.service import Service
from services.errors import ModelStoreAwayError
from services.storage.database import describe_failure
from services.storage.migration import is_up_to_date

router = APIRouter(tags=["health"], route_class=GuardedRoute)


class Alive(BaseModel):
    """The process answers."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"status": "alive"}]})

    status: Literal["alive"] = "alive"


class Ready(BaseModel):
    """The process can do its work. `degraded`: it can, but workers are not woken up."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "status": "ready",
                    "checks": {
                        "database": "ok",
                        "migrations": "ok",
                        "disk": "ok",
                        "model_store": "ok",
                        "broker": "ok",
                    },
                }
            ]
        }
    )

    status: Literal["ready", "degraded"]
    checks: dict[str, str]


@router.get("/healthz", summary="Liveness", openapi_extra=access(Access.OPEN))
async def is_alive() -> Alive:
    """Answer as long as the process can."""
    return Alive()


@router.get("/readyz", summary="Readiness", openapi_extra=access(Access.OPEN), responses=problems(NOT_READY))
def is_ready(service: ServiceDep) -> Ready:
    """Check what the service depends on. Without a broker it still takes and keeps everything: `degraded`."""
    broker = service.publisher.state()
    checks = {
        "database": _check_database(service),
        "migrations": "ok",
        "disk": _check_disk(service),
        "model_store": _check_model_store(service),
        "broker": broker,
    }
    return Ready(status="ready" if broker == "ok" else "degraded", checks=checks)


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
        authorise(await service.guard.identify(request), frozenset({Access.READ}))
    return Response(
        await run_in_threadpool(service.monitoring.text),
        media_type="text/plain; version=0.0.4; charset=utf-8",
    )


def _check_database(service: Service) -> str:
    try:
        up_to_date = is_up_to_date(service.database)
    except SQLAlchemyError as error:
        raise HTTPException(503, f"database: {describe_failure(error)}") from error
    if not service.database.is_in_place():
        raise HTTPException(503, "database: its file was deleted or replaced")
    if not up_to_date:
        raise HTTPException(503, "migrations: the database has the shape of another version")
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
    except ModelStoreAwayError as error:
        raise HTTPException(503, f"model_store: {error}") from error
    return "ok"
