"""What routes ask for, as annotated types."""

from typing import Annotated

from fastapi import Depends, Header, Request

from operator_api.idempotency import IDEMPOTENCY_KEY, Once
from operator_api.paging import paging_parameters
from operator_api.security import bearer_text
from operator_api.service import Service
from services.access import Principal
from services.storage.rows import Paging


def _service(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


def _principal(request: Request) -> Principal:
    principal: Principal = request.state.principal
    return principal


async def _once(
    request: Request,
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
        database=_service(request).database,
        principal=_principal(request),
        key=idempotency_key,
        bearer=bearer_text(request),
        request=f"{request.method} {request.url.path}".encode() + b"\0" + await request.body(),
    )


ServiceDep = Annotated[Service, Depends(_service)]
PrincipalDep = Annotated[Principal, Depends(_principal)]
OnceDep = Annotated[Once, Depends(_once)]
PagingDep = Annotated[Paging, Depends(paging_parameters)]
