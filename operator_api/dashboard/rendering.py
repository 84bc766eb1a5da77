"""Jinja2 templates, number formats, static files, and the headers of every page."""

import hashlib
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import parse_qs, quote, urlencode

from fastapi import Request, Response
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pydantic_core import to_json
from starlette.exceptions import HTTPException
from starlette.types import Scope as RequestScope

from operator_api.dashboard.wording import label_with_unit, outcome_name, policy_name
from services.access import Scope


def as_duration(seconds: float) -> str:
    """A time in its two largest units: ``6 h 40 min``, ``3 min``, ``2.5 s``."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest_s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (rest_s, "s")]
    first = next(place for place, (number, _) in enumerate(parts) if number)
    return " ".join(f"{number} {unit}" for number, unit in parts[first : first + 2] if number)


def as_percent(share: float) -> str:
    """A share of one: ``53.1 %``."""
    return f"{share * 100:.1f} %"


def as_moment(moment: datetime) -> str:
    """A moment, to the second."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def as_ago(moment: datetime) -> str:
    """How long ago a moment is, in one unit: ``3 min ago``."""
    seconds = (datetime.now(UTC) - moment).total_seconds()
    if seconds < 5:
        return "just now"
    units = [(86400, "d"), (3600, "h"), (60, "min"), (1, "s")]
    size, unit = next(pair for pair in units if seconds >= pair[0])
    return f"{seconds // size:.0f} {unit} ago"


def as_bytes(size: int) -> str:
    """A size in its largest decimal unit: ``4.6 MB``."""
    units = [(1e9, "GB"), (1e6, "MB"), (1e3, "kB")]
    return next((f"{size / factor:.3g} {unit}" for factor, unit in units if size >= factor), f"{size} B")


def chosen(**choices: str) -> dict[str, str]:
    """The choices that were made, for addresses."""
    return {name: str(value) for name, value in choices.items() if value}


BOKEH_FILES = ("bokeh.min.js", "bokeh-api.min.js")
"""The library, and ``Bokeh.Plotting``."""


class VersionedStaticFiles(StaticFiles):
    """Static files that browsers cache for a year if the query names their version, else revalidate."""

    def __init__(self, directory: Path, names: Iterable[str]) -> None:
        super().__init__(directory=directory)
        self.versions = {
            name: hashlib.sha256((directory / name).read_bytes()).hexdigest()[:16] for name in names
        }

    async def get_response(self, path: str, scope: RequestScope) -> Response:
        """The file, with ``Cache-Control``."""
        if path not in self.versions:
            raise HTTPException(404, "There is no such file.")
        response = await super().get_response(path, scope)
        is_current = parse_qs(scope["query_string"].decode("latin-1")).get("v") == [self.versions[path]]
        response.headers["Cache-Control"] = _IMMUTABLE if is_current else "no-cache"
        return response


def dashboard_files() -> VersionedStaticFiles:
    """The style sheet and the scripts of the dashboard."""
    directory = Path(__file__).parent / "static"
    return VersionedStaticFiles(directory, [path.name for path in directory.iterdir()])


def bokeh_files() -> VersionedStaticFiles:
    """BokehJS from the installed package, which is located but not imported: an import takes 0.5 s."""
    package = find_spec("bokeh")
    assert package is not None, "bokeh is a dependency"
    assert package.origin is not None, "bokeh is a package"
    return VersionedStaticFiles(Path(package.origin).parent / "server" / "static" / "js", BOKEH_FILES)


_IMMUTABLE = "public, max-age=31536000, immutable"
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
        self.static_files = dashboard_files()
        self.bokeh_files = bokeh_files()
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
            "ago": as_ago,
            "bytes": as_bytes,
            "policy": policy_name,
            "outcome": outcome_name,
            "label": label_with_unit,
        }
        self._environment.globals |= {
            "root": root,
            "url": self.url,
            "client_path": self.client_path,
            "static": self.static_url,
            "bokeh": self.bokeh_url,
            "version": version("fedcs-operator"),
        }

    def url(self, path: str, **query: object) -> str:
        """The address of a page: the path under the root, and what follows the question mark."""
        return f"{self._root}{path}" + (f"?{urlencode(query, doseq=True)}" if query else "")

    def client_path(self, client_id: str) -> str:
        """The path of a client's page."""
        return f"/dashboard/clients/{quote(client_id, safe='')}"

    def static_url(self, name: str) -> str:
        """The address of one of our own files, another one whenever it changes."""
        return self.url(f"/dashboard/static/{name}", v=self.static_files.versions[name])

    def bokeh_url(self, name: str) -> str:
        """The address of a file of BokehJS."""
        return self.url(f"/dashboard/bokeh/{name}", v=self.bokeh_files.versions[name])

    def render(self, name: str, values: dict[str, object]) -> str:
        """The text of a page."""
        return self._environment.get_template(name).render(values)


def render(
    request: Request, template: str, /, *, status: int = 200, plots: bool = False, **values: object
) -> HTMLResponse:
    """A page; with ``plots`` it loads BokehJS, and the policy allows the styles that it creates."""
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


def attachment_header(name: str) -> dict[str, str]:
    """The header that makes a browser save the response under this name."""
    return {"Content-Disposition": f'attachment; filename="{name}"'}


def send_json(content: object) -> Response:
    """A JSON response, serialised by pydantic: ten times as fast as the standard library."""
    return Response(to_json(content, inf_nan_mode="null"), media_type="application/json")
