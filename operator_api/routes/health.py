"""``GET /healthz`` and ``GET /readyz``: is the process alive, and can it do its work."""

import shutil
from typing import Literal

from fastapi import APIRouter, HTTPException
from pydantic import BaseModel

from operator_api.dependencies import SettingsDep
from operator_api.openapi import NOT_READY, problems

router = APIRouter(tags=["health"])


class Alive(BaseModel):
    """The process answers."""

    status: Literal["alive"] = "alive"


class Ready(BaseModel):
    """The process can do its work."""

    status: Literal["ready"] = "ready"
    checks: dict[str, str]


@router.get("/healthz", summary="Liveness")
def is_alive() -> Alive:
    """Answer as long as the process can."""
    return Alive()


@router.get("/readyz", summary="Readiness", responses=problems(NOT_READY))
def is_ready(settings: SettingsDep) -> Ready:
    """Check what the service depends on."""
    try:
        free_bytes = shutil.disk_usage(settings.data_dir).free
    except OSError as error:
        raise HTTPException(503, f"disk: {settings.data_dir}: {error.strerror}") from error
    if free_bytes < settings.min_free_disk_bytes:
        raise HTTPException(503, f"disk: {free_bytes} bytes free, {settings.min_free_disk_bytes} wanted")
    return Ready(checks={"disk": "ok"})
