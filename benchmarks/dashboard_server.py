"""The service with an additional endpoint: a health check with one database query."""

import sys

import uvicorn
from fastapi import APIRouter
from sqlalchemy import text

from operator_api.app import create_app
from operator_api.dependencies import ServiceDep
from operator_api.security import Access, AuthenticatedRoute, access
from operator_api.server import spare_the_collector
from operator_api.service import bootstrap
from services.logs import set_up_logs
from services.settings import Settings, load_settings

router = APIRouter(route_class=AuthenticatedRoute)


@router.get("/healthz-with-query", openapi_extra=access(Access.OPEN))
def answer(service: ServiceDep) -> dict[str, int]:
    """Run a trivial query."""
    with service.database.engine.connect() as connection:
        return {"answer": connection.execute(text("SELECT 1")).scalar_one()}


if __name__ == "__main__":
    settings = load_settings(Settings)
    set_up_logs()
    app = create_app(bootstrap(settings))
    app.include_router(router)
    spare_the_collector()
    uvicorn.run(app, port=int(sys.argv[1]), log_config=None, access_log=False)
