"""What routes ask for, as annotated types. All are coroutines: FastAPI would send others through a thread."""

from typing import Annotated

from fastapi import Depends, Header, Request

from operator_api.idempotency import IDEMPOTENCY_KEY, Once
from operator_api.paging import paging_parameters
from operator_api.security import bearer_text
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
        str | None,
        Header(
            pattern=IDEMPOTENCY_KEY,
            description="The same key and body gives the first answer again.",
            examples=["8e03978e-40d5-43dd-bc93-6894a57f9324"],
        ),
    ] = None,
) -> Once:
    return Once(
        database=service.database,
        principal=principal,
        key=idempotency_key,
        bearer=bearer_text(request),
        request=f"{request.method} {request.url.path}".encode() + b"\0" + await request.body(),
    )


OnceDep = Annotated[Once, Depends(_once)]
PagingDep = Annotated[Paging, Depends(paging_parameters)]
