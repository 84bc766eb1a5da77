"""Models over HTTP: streamed in with a digest, handed out with ``ETag`` and ``Range``."""

import asyncio
import base64
import contextvars
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, TypeVar

from fastapi import Header, HTTPException, Request, Response
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema
from starlette.background import BackgroundTask
from starlette.requests import ClientDisconnect
from starlette.responses import FileResponse, MalformedRangeHeader, RangeNotSatisfiable

from operator_api.openapi import Responses, problems
from services.errors import DigestMismatchError, ModelStoreAwayError, TooLargeError
from services.storage.model_store import IncomingBlob, ModelStore

_T = TypeVar("_T")

SAFETENSORS = "application/octet-stream"
_BUFFER_BYTES = 384 * 1024
_THREADS = ThreadPoolExecutor(16, "models")
"""Of their own: a model store that is slow holds up those who bring models, and nobody else."""
_DIGEST = (
    r"^(?:[a-z0-9-]+=:[A-Za-z0-9+/=]*:, *)*sha-256=:[A-Za-z0-9+/]{43}=:(?:, *[a-z0-9-]+=:[A-Za-z0-9+/=]*:)*$"
)
_DIGEST_EXAMPLE = "sha-256=:LCa0a2j/xo/5m0U8HTBBNBNCLXBkg7+g+YpeiGJm564=:"

_Sha256 = Annotated[str, Field(pattern=_DIGEST, examples=[_DIGEST_EXAMPLE])]
_CONTENT_DIGEST = Header(description="SHA-256 of the body (RFC 9530).")
ContentDigest = Annotated[_Sha256, _CONTENT_DIGEST]
OptionalContentDigest = Annotated[_Sha256 | SkipJsonSchema[None], _CONTENT_DIGEST]
IfNoneMatch = Annotated[
    str | SkipJsonSchema[None], Header(description="Answer 304 if the model has this ETag.")
]

MODEL_BODY = {
    "requestBody": {
        "required": True,
        "content": {SAFETENSORS: {"schema": {"type": "string", "format": "binary"}}},
    }
}
MODEL_FILE: Responses = {
    200: {
        "description": "The model.",
        "content": {SAFETENSORS: {"schema": {"type": "string", "format": "binary"}}},
        "headers": {"ETag": {"description": "The SHA-256 of the file.", "schema": {"type": "string"}}},
    },
    206: {
        "description": "The range asked for.",
        "content": {SAFETENSORS: {"schema": {"type": "string", "format": "binary"}}},
    },
    304: {"description": "The model has the ETag given."},
    **problems(ModelStoreAwayError),
}


class ModelFile(FileResponse):
    """A file whose refusals of a range are problems like all others."""

    chunk_size = 1024 * 1024  # half the work of the usual 64 KiB

    @classmethod
    def _parse_range_header(cls, http_range: str, file_size: int) -> list[tuple[int, int]]:
        try:
            return super()._parse_range_header(http_range, file_size)
        except MalformedRangeHeader:
            return []  # RFC 9110: what is no range is ignored
        except RangeNotSatisfiable as error:
            raise HTTPException(
                416, f"The file has {file_size} bytes.", headers={"Content-Range": f"bytes */{file_size}"}
            ) from error


def send_model(
    path: Path, digest: str, if_none_match: str | None, after: BackgroundTask | None = None
) -> Response:
    """The model, or that it has not changed."""
    etag = f'"{digest}"'
    headers = {"ETag": etag, "Cache-Control": "private, no-cache"}
    if if_none_match is not None and (if_none_match.strip() == "*" or etag in if_none_match):
        return Response(status_code=304, headers=headers, background=after)
    return ModelFile(path, media_type=SAFETENSORS, headers=headers, background=after)


def announced_sha256(content_digest: str) -> str:
    """The digest in hex, out of the header."""
    found = re.search(r"sha-256=:([^:]*):", content_digest)
    assert found, "checked by the header's pattern"
    return base64.b64decode(found[1]).hex()


async def receive_model(
    request: Request,
    store: ModelStore,
    *,
    admit: Callable[[], int],
    content_digest: str | None,
    finish: Callable[[IncomingBlob], _T],
) -> _T:
    """Stream the body into a temporary file, compare its digest and ``finish``; unless it is kept, it goes.

    ``admit`` comes first, and says how many bytes there may be. Both run in a thread, together with what else
    is to be done there: to go there and back takes longer than most of it.
    """
    files = ExitStack()

    def begin() -> tuple[int, IncomingBlob]:
        return admit(), files.enter_context(store.receive())

    def end() -> _T:
        with files:
            blob.write(b"".join(rest))
            if content_digest is not None and blob.digest != announced_sha256(content_digest):
                raise DigestMismatchError(
                    "The body does not have the SHA-256 digest that Content-Digest announces."
                )
            return finish(blob)

    max_bytes, blob = await _in_thread(begin)
    try:
        rest = await _stream(request, blob, max_bytes)
    except BaseException:
        await _in_thread(files.close)
        raise
    return await _in_thread(end)


async def _in_thread(work: Callable[..., _T], *arguments: object) -> _T:
    """Do this in one of the threads for models."""
    context = contextvars.copy_context()
    return await asyncio.get_running_loop().run_in_executor(_THREADS, context.run, work, *arguments)


async def _stream(request: Request, blob: IncomingBlob, max_bytes: int) -> list[bytes]:
    """Write the body as it comes; the rest, which is little, is left to be written."""
    received_bytes = waiting_bytes = 0
    waiting: list[bytes] = []
    try:
        async for chunk in request.stream():
            received_bytes += len(chunk)
            if received_bytes > max_bytes:
                raise TooLargeError(f"The body is larger than {max_bytes} bytes.")
            if waiting_bytes >= _BUFFER_BYTES:
                await _in_thread(blob.write, b"".join(waiting))  # once: many pieces take longer
                waiting, waiting_bytes = [], 0
            waiting.append(chunk)
            waiting_bytes += len(chunk)
    except ClientDisconnect as error:
        raise HTTPException(400, "The connection ended before the body did.") from error
    return waiting
