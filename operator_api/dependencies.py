"""What routes share: the service, the caller, idempotent requests, pages of lists and entity tags."""

import base64
import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

from cryptography.fernet import Fernet, InvalidToken
from fastapi import Depends, Header, Query, Request, Response
from pydantic import BaseModel, Field
from pydantic.json_schema import SkipJsonSchema
from sqlalchemy.exc import IntegrityError
from starlette.datastructures import URL

from operator_api.service import Service
from services.access import Principal
from services.errors import ConflictError, IdempotencyKeyReusedError
from services.storage.coordination import SavedAnswer
from services.storage.database import Database, UnitOfWork
from services.storage.sql import Page, Paging

IDEMPOTENCY_KEY = r"^[\x21-\x7e]{1,255}$"


@dataclass(frozen=True)
class IdempotentRequest:
    """A request that creates something, once."""

    database: Database
    principal: Principal
    key: str | None
    sealing_text: str
    request: bytes

    def answer(self, status: int, act: Callable[[UnitOfWork, datetime], BaseModel]) -> Response:
        """Act and commit, or give the answer of the first time."""
        try:
            return self._answer(status, act)
        except (IntegrityError, ConflictError):
            if self.key is None:
                raise
            return self._answer(status, act)  # the same request came twice at once, and the other was first

    def _answer(self, status: int, act: Callable[[UnitOfWork, datetime], BaseModel]) -> Response:
        now = self.database.now()
        with self.database.unit_of_work() as uow:
            if self.key is not None:
                saved = uow.idempotency.find(self.principal.key_id, self.key)
                if saved is not None:
                    return self._repeat(saved)
            content = act(uow, now).model_dump_json().encode()
            if self.key is not None:
                sealed = SavedAnswer(self._fingerprint(), status, self._seal().encrypt(content))
                uow.idempotency.add(self.principal.key_id, self.key, sealed, now)
            uow.commit()
        return Response(content, status, media_type="application/json")

    def _repeat(self, saved: SavedAnswer) -> Response:
        if saved.fingerprint != self._fingerprint():
            raise IdempotencyKeyReusedError(f"The Idempotency-Key {self.key!r} was used for another request.")
        try:
            content = self._seal().decrypt(saved.answer)
        except InvalidToken as error:  # FEDCS_OPERATOR_KEY was another one then, or only one was a token
            raise IdempotencyKeyReusedError(
                f"The Idempotency-Key {self.key!r} was used before the caller's key was changed, or once "
                "with a key and once with a token."
            ) from error
        return Response(content, saved.status, media_type="application/json")

    def _fingerprint(self) -> bytes:
        return hashlib.sha256(self.request).digest()

    def _seal(self) -> Fernet:
        secret = hashlib.sha256(f"{self.sealing_text}\0{self.key}".encode()).digest()
        return Fernet(base64.urlsafe_b64encode(secret))


async def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


async def _principal(request: Request) -> Principal:
    principal: Principal = request.state.principal
    return principal


ServiceDep = Annotated[Service, Depends(_service)]
PrincipalDep = Annotated[Principal, Depends(_principal)]


async def _once(
    request: Request,
    service: ServiceDep,
    principal: PrincipalDep,
    idempotency_key: Annotated[
        Annotated[str, Field(pattern=IDEMPOTENCY_KEY)] | SkipJsonSchema[None],
        Header(
            # No example: it would be sent as it is, again and again, by those who try the operation out.
            description="Make one up, such as a UUID. The same key and body gives the first answer again.",
        ),
    ] = None,
) -> IdempotentRequest:
    return IdempotentRequest(
        database=service.database,
        principal=principal,
        key=idempotency_key,
        sealing_text=service.authenticator.sealing_text(request, principal),
        request=f"{request.method} {request.url.path}".encode() + b"\0" + await request.body(),
    )


async def _paging(
    page: Annotated[int, Query(ge=1, le=1_000_000, description="Which page, from 1.")] = 1,
    per_page: Annotated[int, Query(ge=1, le=100, description="Items on a page.")] = 20,
) -> Paging:
    """Which page is asked for."""
    return Paging(page, per_page)


IdempotentRequestDep = Annotated[IdempotentRequest, Depends(_once)]
PagingDep = Annotated[Paging, Depends(_paging)]


def etag_of(content: bytes) -> str:
    """The entity tag (RFC 9110) of some content."""
    return f'"{hashlib.sha256(content).hexdigest()[:32]}"'


def matches_etag(if_none_match: str | None, etag: str) -> bool:
    """Whether the header ``If-None-Match`` names this tag, alone, in a list, or as any; weak tags count."""
    if if_none_match is None:
        return False
    named = {tag.strip().removeprefix("W/") for tag in if_none_match.split(",")}
    return etag in named or "*" in named


_T = TypeVar("_T")
_R = TypeVar("_R")

PAGED: dict[int | str, dict[str, Any]] = {
    200: {
        "headers": {
            "Link": {
                "description": "The first, previous, next and last page (RFC 8288).",
                "schema": {"type": "string"},
            },
            "X-Total-Count": {"description": "Items on all pages.", "schema": {"type": "integer"}},
        }
    }
}


def answer_page(
    request: Request, response: Response, paging: Paging, found: Page[_T], show: Callable[[_T], _R]
) -> Sequence[_R]:
    """The items of a page, with ``Link`` and ``X-Total-Count`` headers."""
    last = max(math.ceil(found.total / paging.per_page), 1)
    pages = {"first": 1, "last": last}
    if paging.page > 1:
        pages["prev"] = min(paging.page - 1, last)
    if paging.page < last:
        pages["next"] = paging.page + 1
    url = URL(scope={**request.scope, "path": quote(request.scope["path"])})
    links = [
        f'<{url.include_query_params(page=page, per_page=paging.per_page)}>; rel="{relation}"'
        for relation, page in pages.items()
    ]
    response.headers["Link"] = ", ".join(links)
    response.headers["X-Total-Count"] = str(found.total)
    return [show(item) for item in found.items]
