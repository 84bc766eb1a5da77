"""What routes ask for, as annotated types. All are coroutines: FastAPI would send others through a thread."""

from typing import Annotated

from fastapi import Depends, Header, Request
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from operator_api.idempotency import IDEMPOTENCY_KEY, Once
from operator_api.paging import paging_parameters
from operator_api.service import Service
from services.access import Principal
from services.storage.rows import Paging


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
) -> Once:
    return Once(
        database=service.database,
        principal=principal,
        key=idempotency_key,
        sealing_text=service.guard.sealing_text(request, principal),
        request=f"{request.method} {request.url.path}".encode() + b"\0" + await request.body(),
    )


OnceDep = Annotated[Once, Depends(_once)]
PagingDep = Annotated[Paging, Depends(paging_parameters)]
