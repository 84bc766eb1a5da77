"""Parts that responses share: pages of lists (``Link``, ``X-Total-Count``) and entity tags (RFC 9110)."""

import hashlib
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

from fastapi import Request, Response
from starlette.datastructures import URL

from services.storage.sql import Page, Paging


def etag_of(content: bytes) -> str:
    """The tag of some content."""
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
