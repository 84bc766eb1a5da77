"""``/dashboard/static`` and ``/dashboard/bokeh``: what pages load. It is no secret, and needs no session."""

from collections.abc import Mapping

from fastapi import APIRouter, HTTPException, Request, Response

from operator_api.dashboard.assets import StaticFile, bokeh_files, own_files
from operator_api.dashboard.page_route import DataRoute
from operator_api.security import Access, access

router = APIRouter(route_class=DataRoute, include_in_schema=False)

_FOR_EVER = "public, max-age=31536000, immutable"
_ASK_AGAIN = "no-cache"


@router.get("/dashboard/static/{name}", openapi_extra=access(Access.OPEN))
async def send_static_file(name: str, request: Request, v: str = "") -> Response:
    """A style sheet or a script of our own."""
    return _send(own_files(), name, request, v)


@router.get("/dashboard/bokeh/{name}", openapi_extra=access(Access.OPEN))
async def send_bokeh_file(name: str, request: Request, v: str = "") -> Response:
    """A script of BokehJS."""
    return _send(bokeh_files(), name, request, v)


def _send(files: Mapping[str, StaticFile], name: str, request: Request, version: str) -> Response:
    """With its version in the query a file can be kept for ever; without, the browser asks each time."""
    file = files.get(name)
    if file is None:
        raise HTTPException(404, "There is no such file.")
    headers = {
        "ETag": f'"{file.version}"',
        "Cache-Control": _FOR_EVER if version == file.version else _ASK_AGAIN,
    }
    if headers["ETag"] in request.headers.get("If-None-Match", ""):
        return Response(status_code=304, headers=headers)
    return Response(file.content, headers=headers, media_type=file.media_type)
