"""Baseline for uploads: a Starlette handler that streams the body into a file and syncs it."""

import os
import sys
import tempfile

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route


async def store(request: Request) -> Response:
    """Write the body to a file."""
    with tempfile.TemporaryFile(dir=os.environ["FEDCS_DATA_DIR"]) as file:
        async for chunk in request.stream():
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    return Response(status_code=201)


async def answer(_: Request) -> Response:
    """The health check."""
    return Response()


if __name__ == "__main__":
    app = Starlette(routes=[Route("/healthz", answer), Route("/{path:path}", store, methods=["PUT"])])
    uvicorn.run(app, port=int(sys.argv[1]), log_level="warning")
