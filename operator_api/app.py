"""The FastAPI application, put together in one place."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline

from operator_api.dashboard import (
    activity,
    cell_page,
    clients_page,
    login,
    overview,
    round_page,
    task_form,
    task_list,
    task_page,
    what_if,
)
from operator_api.dashboard.setup import install_dashboard
from operator_api.openapi import INTRODUCTION, TAGS, install_docs, install_openapi
from operator_api.problems import WITHOUT_HEAD, install_problem_handlers
from operator_api.request_context import HeadRequests, RequestContext
from operator_api.routes import (
    assignments,
    cells,
    clients,
    events,
    health,
    keys,
    plans,
    reports,
    rounds,
    tasks,
    trainings,
    updates,
)
from operator_api.service import Service

_ROUTERS = (
    # First what devices ask for by the thousand: each request is held against one route after another.
    reports.router,
    updates.uploads,
    updates.downloads,
    assignments.router,
    trainings.router,
    rounds.router,
    tasks.router,
    tasks.uploads,
    events.router,
    health.router,
    plans.router,
    plans.registries,
    clients.router,
    cells.router,
    keys.router,
    login.router,
    activity.live_events,
    overview.router,
    overview.data,
    cell_page.router,
    cell_page.data,
    what_if.router,
    what_if.data,
    task_form.router,
    task_list.router,
    task_page.router,
    task_page.data,
    clients_page.router,
    activity.router,
    round_page.router,
    round_page.data,
)


def create_app(service: Service) -> FastAPI:
    """Build the API over these parts; it starts their threads and stops them."""

    @asynccontextmanager
    async def run_parts(app: FastAPI) -> AsyncIterator[None]:  # noqa: ARG001 - FastAPI's signature
        service.reports.start()
        service.arrivals.start()
        service.reconciler.start()
        await service.hub.start()
        following = asyncio.create_task(service.hub.run())
        yield
        service.hub.close()
        await following
        await asyncio.to_thread(service.stop)

    root = service.settings.api_root
    app = FastAPIOffline(
        title="FedCS Operator",
        summary="Client selection and resource-block scheduling for federated learning at the mobile edge.",
        version=version("fedcs-operator"),
        description=INTRODUCTION,
        openapi_tags=TAGS,
        servers=[{"url": "/", "description": "This service."}],
        contact={"name": "FedCS Operator"},
        generate_unique_id_function=lambda route: route.name,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        docs_url=None,
        redoc_url=None,
        openapi_url=f"{root}/openapi.json",
        static_url=f"{root}/static-docs",
        swagger_ui_oauth2_redirect_url=f"{root}/docs/oauth2-redirect",
        lifespan=run_parts,
    )
    app.state.service = service
    app.state.routes = [route for router in _ROUTERS for route in router.routes]
    for router in _ROUTERS:
        app.include_router(router, prefix=root)
    app.add_middleware(HeadRequests, without=[f"{root}{path}" for path in WITHOUT_HEAD])
    app.add_middleware(RequestContext, monitoring=service.monitoring)
    install_problem_handlers(app)
    install_dashboard(app, service)
    install_docs(app, root)
    install_openapi(app, root, service.report_limits)
    return app
