"""What the dashboard of one API process is made of, put together in one place."""

from dataclasses import dataclass

from fastapi import FastAPI

from operator_api.dashboard.rendering import Templates
from operator_api.dashboard.sessions import Sessions
from operator_api.dashboard.vitals import VitalsWatch
from operator_api.failed_attempts import FailedAttempts
from operator_api.service import Service


@dataclass(frozen=True)
class Dashboard:
    """The parts of the dashboard; routes find them in ``request.app.state.dashboard``."""

    root: str
    failures: FailedAttempts
    """To log in; not those of devices that try for tokens, which must not keep operators out."""
    sessions: Sessions
    templates: Templates
    vitals: VitalsWatch


def install_dashboard(app: FastAPI, service: Service) -> None:
    """Put the parts where the dashboard's routes find them."""
    root = service.settings.api_root
    app.state.dashboard = Dashboard(
        root=root,
        failures=FailedAttempts(),
        sessions=Sessions(service.settings.operator_key, root),
        templates=Templates(root),
        vitals=VitalsWatch(service),
    )
