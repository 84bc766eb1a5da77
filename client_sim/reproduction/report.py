"""``fedcs reproduce report``: our figures beside the published ones, as Markdown and as one HTML file."""

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from jinja2 import Environment, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt

from client_sim.reproduction.figures import Arrival, RowFigures, Spread, figures_of
from client_sim.reproduction.plots import draw_accuracies, draw_clients, draw_totals
from client_sim.reproduction.results_file import TrialRun, read_results
from client_sim.reproduction.rows import Trial
from client_sim.reproduction.statements import REASONS, Difference, differences
from client_sim.results import write_file
from services.errors import FedCSError


class NoResultsError(FedCSError):
    """There is nothing to report."""

    cause: ClassVar[str] = "NO_RESULTS"


@dataclass(frozen=True)
class ReportRow:
    """A row as the report shows it."""

    name: str
    figures: RowFigures
    differences: Sequence[Difference]


@dataclass(frozen=True)
class ReportTable:
    """The rows of one data set and setting."""

    title: str
    slug: str
    accuracies: Sequence[float]
    rows: Sequence[ReportRow]


def write_report(results_path: Path, out: Path) -> list[Path]:
    """Write ``report.md``, ``report.html`` and their pictures; which files there are now."""
    runs = read_results(results_path)
    if not runs:
        raise NoResultsError(f"{results_path}: no results yet; make some with `fedcs reproduce`")
    tables = _tables(figures_of(runs))
    pictures = {name: picture for table in tables for name, picture in _pictures(table).items()}
    markdown = _markdown(tables, runs)
    files = {"report.md": markdown.encode(), "report.html": _html(markdown, pictures).encode()} | pictures
    for name, content in files.items():
        write_file(out / name, content)
    return [out / name for name in files]


def _tables(all_figures: Sequence[RowFigures]) -> list[ReportTable]:
    groups: dict[tuple[str, str], list[RowFigures]] = {}
    for figures in all_figures:
        groups.setdefault((figures.row.dataset, figures.row.setting), []).append(figures)
    names = {"iid": "IID", "non-iid": "non-IID", "cifar-10": "CIFAR-10", "fashion-mnist": "Fashion-MNIST"}
    return [
        ReportTable(
            title=f"{names[dataset]}, {names[setting]}",
            slug=f"{dataset}-{setting}",
            accuracies=sorted(group[0].published.minutes_to),
            rows=[ReportRow(_name(figures), figures, list(differences(figures))) for figures in group],
        )
        for (dataset, setting), group in groups.items()
    ]


def _name(figures: RowFigures) -> str:
    row = figures.row
    uncertain = f", r = {row.uncertainty:.0%}" if row.uncertainty else ""
    return f"{row.policy}, {row.round_minutes} min{uncertain}"


def _pictures(table: ReportTable) -> dict[str, bytes]:
    figures = [row.figures for row in table.rows]
    return {
        f"{table.slug}-accuracy.png": draw_accuracies(figures, f"{table.title}: accuracy"),
        f"{table.slug}-clients.png": draw_clients(figures, f"{table.title}: clients in each round"),
        f"{table.slug}-totals.png": draw_totals(figures, f"{table.title}: clients in total"),
    }


def _markdown(tables: Sequence[ReportTable], runs: Mapping[Trial, TrialRun]) -> str:
    return _TEMPLATES.get_template("report.md.j2").render(
        tables=tables,
        trials=len(runs),
        lines=sum(len(run.rounds) for run in runs.values()),
        pairs=[text for table in tables for text in _pairs(table)],
        reasons=REASONS,
    )


def _spread(spread: Spread | None, pattern: str) -> str:
    if spread is None:
        return "–"
    deviation = "" if spread.deviation is None else f" ± {pattern.format(spread.deviation)}"
    return f"{pattern.format(spread.mean)}{deviation} ({spread.count})"


def _arrival(arrival: Arrival) -> str:
    never = f"not in {_range(arrival.never)} ({len(arrival.never)})" if arrival.never else ""
    if arrival.whole_rounds is None or arrival.actual_ends is None:
        return never
    reached = f"{_spread(arrival.whole_rounds, '{:.1f}')} [{arrival.actual_ends.mean:.1f}]"
    return f"{reached}, {never}" if never else reached


def _range(values: Sequence[float]) -> str:
    least, most = min(values), max(values)
    return f"{least:g}" if least == most else f"{least:g}–{most:g}"


def _pairs(table: ReportTable) -> list[str]:
    """FedCS and FedLim in the same setting: who was earlier at the highest accuracy both reached."""
    tried = {row.figures.row: row.figures for row in table.rows}
    told = []
    for row, fedcs in tried.items():
        fedlim = tried.get(replace(row, policy="fedlim"))
        if row.policy != "fedcs" or fedlim is None:
            continue
        ratio = fedcs.clients_per_round.mean / fedlim.clients_per_round.mean
        told.append(
            f"{table.title}, {row.round_minutes} min: FedCS takes in {ratio:.2f} times FedLim's clients. "
            + " ".join(_earlier(fedcs, fedlim, accuracy) for accuracy in table.accuracies)
        )
    return told


def _earlier(fedcs: RowFigures, fedlim: RowFigures, accuracy: float) -> str:
    ours, theirs = (figures.arrival(accuracy) for figures in (fedcs, fedlim))
    return f"Accuracy {accuracy:g}: FedCS {_arrival(ours)}, FedLim {_arrival(theirs)}."


def _html(markdown: str, pictures: Mapping[str, bytes]) -> str:
    """One file that can be sent around: pictures are part of it."""

    def inline(found: re.Match[str]) -> str:
        picture = base64.b64encode(pictures[found[1]]).decode()
        return f'src="data:image/png;base64,{picture}"'

    body = MarkdownIt("commonmark").enable("table").render(markdown)
    with_pictures = re.sub(r'src="([^":]+\.png)"', inline, body)
    return _TEMPLATES.get_template("report.html.j2").render(body=with_pictures)


_TEMPLATES = Environment(
    loader=PackageLoader("client_sim.reproduction", ""),
    autoescape=False,  # noqa: S701 - Markdown of our own numbers, and HTML that was made of it
    undefined=StrictUndefined,
    keep_trailing_newline=True,
)
_TEMPLATES.filters |= {
    "accuracy": lambda spread: _spread(spread, "{:.3f}"),
    "arrival": _arrival,
    "clients": lambda spread: f"{spread.mean:.2f} ± {spread.deviation or 0:.2f}",
    "number": lambda value: f"{value:g}",
    "percent": lambda share: f"{share:.1%}",
    "published": lambda minutes: "never" if minutes is None else f"{minutes:g}",
}
