"""Models over HTTP: streamed in with a digest, handed out with ``ETag`` and ``Range``."""

import asyncio
import base64
import binascii
import contextvars
import re
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, TypeVar

from fastapi import Header, HTTPException, Request, Response
from pydantic import AfterValidator, WithJsonSchema
from pydantic.json_schema import SkipJsonSchema
from pydantic_core import PydanticCustomError
from starlette.background import BackgroundTask
from starlette.responses import FileResponse, MalformedRangeHeader, RangeNotSatisfiable
from starlette.types import Receive, Scope, Send

from operator_api.dependencies import matches_etag
from operator_api.openapi import Responses, problems
from operator_api.request_context import is_head
from services.errors import DigestMismatchError, ModelStoreUnavailableError, TooLargeError
from services.storage.model_store import IncomingBlob, ModelStore

_T = TypeVar("_T")

SAFETENSORS = "application/octet-stream"
_BUFFER_BYTES = 384 * 1024
_RECEIVING = ThreadPoolExecutor(8, "receive-model")
_FINISHING = ThreadPoolExecutor(16, "finish-model")
"""Separate pools: a slow model store delays only model uploads, and receiving does not wait for checking."""
_DIGEST_KEY, _DIGEST_VALUE = "[a-z*][a-z0-9_.*-]*", "[A-Za-z0-9+/=]*"
_DIGEST_MEMBER = re.compile(f"({_DIGEST_KEY})=:({_DIGEST_VALUE}):")
_OTHER_DIGEST = f"{_DIGEST_KEY}=:{_DIGEST_VALUE}:"
_DIGEST_PATTERN = f"^(?:{_OTHER_DIGEST}, *)*sha-256=:[A-Za-z0-9+/]{{43}}=:(?:, *{_OTHER_DIGEST})*$"
"""For the OpenAPI document; ``sha256_of`` decides."""
_DIGEST_EXAMPLE = "sha-256=:LCa0a2j/xo/5m0U8HTBBNBNCLXBkg7+g+YpeiGJm564=:"
_SHA256_BYTES = 32


def sha256_of(content_digest: str) -> str:
    """The SHA-256 digest in a ``Content-Digest`` header, in hexadecimal digits.

    The header is a dictionary of byte sequences (RFC 9530, RFC 9651): of a key that is given twice the last
    value counts, and other algorithms are ignored.
    """
    digests: dict[str, str] = {}
    for member in content_digest.split(","):
        if (found := _DIGEST_MEMBER.fullmatch(member.strip(" \t"))) is None:
            raise _not_a_digest()
        digests[found[1]] = found[2]
    try:
        digest = base64.b64decode(digests.get("sha-256", ""), validate=True)
    except binascii.Error as error:
        raise _not_a_digest() from error
    if len(digest) != _SHA256_BYTES:
        raise _not_a_digest()
    return digest.hex()


def _not_a_digest() -> PydanticCustomError:
    return PydanticCustomError("content_digest", "Content-Digest must be sha-256=:BASE64:")


_Sha256 = Annotated[
    str,
    AfterValidator(sha256_of),
    WithJsonSchema({"type": "string", "pattern": _DIGEST_PATTERN, "examples": [_DIGEST_EXAMPLE]}),
]
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
    **problems(ModelStoreUnavailableError),
}


class ModelFile(FileResponse):
    """A file whose refusals of a range are problems like all others."""

    chunk_size = 1024 * 1024  # half the work of the usual 64 KiB

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the file; in answer to HEAD it is not read."""
        await super().__call__({**scope, "method": "HEAD"} if is_head(scope) else scope, receive, send)

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
    if matches_etag(if_none_match, etag):
        return Response(status_code=304, headers=headers, background=after)
    return ModelFile(path, media_type=SAFETENSORS, headers=headers, background=after)


async def _nothing() -> None:
    pass


async def receive_model(
    request: Request,
    store: ModelStore,
    *,
    admit: Callable[[], int],
    content_digest: str | None,
    finish: Callable[[IncomingBlob], _T],
    arrived: Callable[[], Awaitable[None]] = _nothing,
) -> _T:
    """Stream the body into a temporary file, compare its digest and ``finish``; unless it is kept, it goes.

    ``admit`` comes first, and says how many bytes there may be. It and ``finish`` run in a thread, together
    with what else is to be done there: to go there and back takes longer than most of it. ``arrived`` is
    called on the event loop as soon as the last byte has been read.
    """
    files = ExitStack()

    def begin() -> tuple[int, IncomingBlob]:
        return admit(), files.enter_context(store.receive())

    def end() -> _T:
        with files:
            blob.write(b"".join(rest))
            if content_digest is not None and blob.digest != content_digest:
                raise DigestMismatchError(
                    "The body does not have the SHA-256 digest that Content-Digest announces."
                )
            return finish(blob)

    max_bytes, blob = await _in_thread(_RECEIVING, begin)
    try:
        rest = await _stream(request, blob, max_bytes, arrived)
    except BaseException:
        await _in_thread(_RECEIVING, files.close)
        raise
    return await _in_thread(_FINISHING, end)


def _in_thread(pool: ThreadPoolExecutor, work: Callable[..., _T], *arguments: object) -> asyncio.Future[_T]:
    """Do this in one of the threads for models."""
    context = contextvars.copy_context()
    return asyncio.get_running_loop().run_in_executor(pool, context.run, work, *arguments)


async def _stream(
    request: Request, blob: IncomingBlob, max_bytes: int, arrived: Callable[[], Awaitable[None]]
) -> list[bytes]:
    """Write the body as it comes; the rest, which is little, is left to be written.

    One piece is read while another is written: the end of the body is seen when it comes, however slow the
    disk is.
    """
    received_bytes = waiting_bytes = 0
    waiting: list[bytes] = []
    writing: asyncio.Future[None] | None = None
    more = True
    try:
        while more:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise HTTPException(400, "The connection ended before the body did.")
            chunk, more = message.get("body", b""), message.get("more_body", False)
            received_bytes += len(chunk)
            if received_bytes > max_bytes:
                raise TooLargeError(f"The body is larger than {max_bytes} bytes.")
            waiting.append(chunk)
            waiting_bytes += len(chunk)
            if more and waiting_bytes >= _BUFFER_BYTES:
                if writing is not None:
                    await writing
                writing = _in_thread(_RECEIVING, blob.write, b"".join(waiting))  # many pieces take longer
                waiting, waiting_bytes = [], 0
        await arrived()
    finally:
        if writing is not None:
            await writing
    return waiting
