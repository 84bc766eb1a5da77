"""A plan as one self-contained HTML page: the chart inline, nothing to load."""

from jinja2 import Environment, PackageLoader
from markupsafe import Markup

from services.charts.gantt import draw_gantt
from services.contract.plans import PlanRequest, PlanResponse

_templates = Environment(loader=PackageLoader("operator_api"), autoescape=True, trim_blocks=True)


def render_html(request: PlanRequest, plan: PlanResponse) -> str:
    """The page; every name from the reports is escaped."""
    svg = draw_gantt(request, plan, "svg").decode()
    return _templates.get_template("plan.html").render(
        request=request,
        plan=plan,
        chart=Markup(svg[svg.index("<svg") :]),  # noqa: S704 - matplotlib escapes text
        facts=_facts(request, plan),
    )


def _facts(request: PlanRequest, plan: PlanResponse) -> list[tuple[str, str]]:
    deadline = "none" if request.policy == "fl" else f"{request.round_deadline_s:g} s"
    return [
        ("deadline", deadline),
        ("in all", f"{plan.total_s:.1f} s"),
        ("distribution", f"{plan.distribution_s:.1f} s"),
        ("updates and uploads", f"{plan.elapsed_s:.1f} s"),
        ("most clients possible", str(plan.upper_bound)),
        ("model", f"{request.model_size_bytes / 1e6:g} MB"),
        ("resource blocks", str(request.resource_blocks)),
    ]
