"""Lists in pages: ``page`` and ``per_page`` in the query, ``Link`` and ``X-Total-Count`` in the answer."""

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

from fastapi import Query, Request, Response
from starlette.datastructures import URL

from services.storage.rows import Page, Paging

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


async def paging_parameters(
    page: Annotated[int, Query(ge=1, le=1_000_000)] = 1,
    per_page: Annotated[int, Query(ge=1, le=100)] = 20,
) -> Paging:
    """Which page is asked for."""
    return Paging(page, per_page)


def answer_page(
    request: Request, response: Response, paging: Paging, found: Page[_T], show: Callable[[_T], _R]
) -> Sequence[_R]:
    """The items of a page, with the headers that tell of the others."""
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
