"""Pages from Jinja2 templates: what every page is given, and the headers that go with it."""

from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlencode

from fastapi import Request, Response
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pydantic_core import to_json

from operator_api.dashboard.assets import bokeh_files, own_files
from operator_api.dashboard.formats import as_duration, as_moment, as_percent
from services.access import Scope

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; {plots}img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_STRICT = _POLICY.format(plots="")
# BokehJS puts <style> elements into the shadow roots of its plots. Style attributes stay forbidden, and
# scripts: what a hostile name could do with a style sheet needs an element first, and all names are escaped.
_WITH_PLOTS = _POLICY.format(plots="style-src-elem 'self' 'unsafe-inline'; ")


class Templates:
    """The templates of the pages, for a service under a root path."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._environment = Environment(
            loader=FileSystemLoader(Path(__file__).parent / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.filters |= {
            "duration": as_duration,
            "moment": as_moment,
            "percent": as_percent,
        }
        self._environment.globals |= {
            "root": root,
            "url": self.url,
            "static": self.static_url,
            "bokeh": self.bokeh_url,
            "version": version("fedcs-operator"),
        }

    def url(self, path: str, **query: object) -> str:
        """The address of a page: the path under the root, and what follows the question mark."""
        return f"{self._root}{path}" + (f"?{urlencode(query, doseq=True)}" if query else "")

    def static_url(self, name: str) -> str:
        """The address of one of our own files, another one whenever it changes."""
        return self.url(f"/dashboard/static/{name}", v=own_files()[name].version)

    def bokeh_url(self, name: str) -> str:
        """The address of a file of BokehJS."""
        return self.url(f"/dashboard/bokeh/{name}", v=bokeh_files()[name].version)

    def render(self, name: str, values: dict[str, object]) -> str:
        """The text of a page."""
        return self._environment.get_template(name).render(values)


def render(
    request: Request, template: str, /, *, status: int = 200, plots: bool = False, **values: object
) -> HTMLResponse:
    """A page; one with ``plots`` gets BokehJS, and leave for the styles that it makes."""
    dashboard = request.app.state.dashboard
    principal = getattr(request.state, "principal", None)
    given = {
        "caller": principal,
        "may_act": principal is not None and principal.scope is Scope.MANAGE,
        "csrf_token": "" if principal is None else dashboard.sessions.csrf_token(request),
        "address": f"{str(request.base_url).rstrip('/')}{dashboard.root}",
        "plots": plots,
        **values,
    }
    policy = _WITH_PLOTS if plots else _STRICT
    return HTMLResponse(
        dashboard.templates.render(template, given), status, headers={"Content-Security-Policy": policy}
    )


def to_be_saved(name: str) -> dict[str, str]:
    """The header with which a browser saves an answer as a file of this name."""
    return {"Content-Disposition": f'attachment; filename="{name}"'}


def send_json(content: object) -> Response:
    """Data for a page: thousands of numbers, in a tenth of the time that the standard library takes."""
    return Response(to_json(content, inf_nan_mode="null"), media_type="application/json")
