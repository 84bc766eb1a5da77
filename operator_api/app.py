"""The FastAPI application, put together in one place."""

from importlib.metadata import version

from fastapi import FastAPI
from fastapi_offline import FastAPIOffline

from operator_api.body_limit import BodyLimit
from operator_api.openapi import install_openapi
from operator_api.problems import install_problem_handlers
from operator_api.routes import health, plans
from services.settings import Settings


def create_app(settings: Settings) -> FastAPI:
    """Build the API for these settings."""
    root = settings.api_root
    app = FastAPIOffline(
        title="FedCS Operator",
        summary="Client selection and resource-block scheduling for federated learning at the mobile edge.",
        version=version("fedcs-operator"),
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        docs_url=f"{root}/docs",
        redoc_url=None,
        openapi_url=f"{root}/openapi.json",
        static_url=f"{root}/static-docs",
        swagger_ui_oauth2_redirect_url=f"{root}/docs/oauth2-redirect",
    )
    app.state.settings = settings
    for module in (plans, health):
        app.include_router(module.router, prefix=root)
    app.add_middleware(BodyLimit, max_bytes=settings.max_json_bytes)
    install_problem_handlers(app)
    install_openapi(app)
    return app
