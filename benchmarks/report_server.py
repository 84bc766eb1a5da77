"""The service with an additional endpoint: the checks of ``POST /reports`` without storing the report."""

import sys

import uvicorn
from fastapi import APIRouter, Response

from operator_api.app import create_app
from operator_api.dependencies import IdempotentRequestDep, PrincipalDep, ServiceDep
from operator_api.security import Access, AuthenticatedRoute, access, require_client
from operator_api.server import spare_the_collector
from operator_api.service import bootstrap
from services.contract.reports import ReportRequest
from services.logs import set_up_logs
from services.settings import Settings, load_settings

router = APIRouter(route_class=AuthenticatedRoute)


@router.post("/not-stored", status_code=201, openapi_extra=access(Access.MANAGE, Access.CLIENT))
async def check_only(
    body: ReportRequest,
    service: ServiceDep,  # noqa: ARG001 - the same is asked for as by the real one
    principal: PrincipalDep,
    idempotent: IdempotentRequestDep,  # noqa: ARG001
) -> Response:
    """Authenticate, validate, answer."""
    require_client(principal, body.client_id)
    return Response(body.model_dump_json(), 201, media_type="application/json")


if __name__ == "__main__":
    settings = load_settings(Settings)
    set_up_logs()
    app = create_app(bootstrap(settings))
    app.include_router(router)
    spare_the_collector()
    print("ready", flush=True)
    uvicorn.run(app, port=int(sys.argv[1]), log_config=None, access_log=False)
