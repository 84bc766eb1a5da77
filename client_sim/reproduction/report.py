"""``fedcs reproduce report``: our figures beside the published ones, as Markdown and HTML."""

import base64
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import ClassVar

from jinja2 import Environment, PackageLoader, StrictUndefined
from markdown_it import MarkdownIt

from client_sim.reproduction.comparisons import (
    REASONS,
    Difference,
    changes_of,
    compare_extensions,
    differences,
    findings,
)
from client_sim.reproduction.figures import (
    Bar,
    RowFigures,
    Spread,
    TimeToAccuracy,
    draw_accuracies,
    draw_clients,
    draw_times,
    draw_totals,
    figures_of,
)
from client_sim.reproduction.results_file import read_runs
from client_sim.reproduction.rows import FINAL_MINUTES, PUBLISHED, Published, Row, compared_row
from client_sim.results import write_file
from services.errors import FedCSError

TIMES_PLOT = "time-to-accuracy.png"
_NAMES = {
    "iid": "IID",
    "non-iid": "non-IID",
    "cifar-10": "CIFAR-10",
    "fashion-mnist": "Fashion-MNIST",
    "fedcs": "FedCS",
    "fedlim": "FedLim",
}


class NoResultsError(FedCSError):
    """The results file has no results."""

    cause: ClassVar[str] = "NO_RESULTS"


@dataclass(frozen=True)
class PaperTable:
    """A table in the layout of the paper, with our line below each published one."""

    title: str
    columns: Sequence[str]
    lines: Sequence[Sequence[str]]


@dataclass(frozen=True)
class ReportRow:
    """A row of the report."""

    figures: RowFigures
    differences: Sequence[Difference]


@dataclass(frozen=True)
class ReportSection:
    """The rows of a data set and setting."""

    title: str
    slug: str
    accuracies: Sequence[float]
    rows: Sequence[ReportRow]

    @property
    def paper(self) -> list[RowFigures]:
        """The rows of the paper."""
        return [row.figures for row in self.rows if row.figures.row in PUBLISHED]

    @property
    def compared(self) -> list[RowFigures]:
        """FedCS and FedLim with the deadline that the paper compares them with."""
        return [figures for figures in self.paper if figures.row == _compared_policy(figures.row)]

    @property
    def deadlines(self) -> list[RowFigures]:
        """FedCS with different deadlines."""
        return [
            figures for figures in self.paper if figures.row.policy == "fedcs" and not figures.row.uncertainty
        ]

    @property
    def extensions(self) -> list[RowFigures]:
        """Rows that the paper does not have."""
        return [row.figures for row in self.rows if row.figures.row not in PUBLISHED]

    @property
    def with_extensions(self) -> list[RowFigures]:
        """Rows that the paper does not have, after the rows that they are compared with."""
        rows = {compared_row(figures.row) for figures in self.extensions}
        return [*(figures for figures in self.paper if figures.row in rows), *self.extensions]


def _compared_policy(row: Row) -> Row:
    return Row(row.dataset, row.setting, row.policy, 5 if row.setting == "non-iid" else 3, 0.0)


@dataclass(frozen=True)
class Report:
    """The Markdown, and functions that draw its plots, by file name."""

    markdown: str
    plots: Mapping[str, Callable[[], bytes]]


def make_report(results_path: Path) -> Report:
    """The report of a results file; its plots are not drawn yet."""
    all_figures = figures_of(read_runs(results_path))
    if not all_figures:
        raise NoResultsError(f"{results_path}: no results yet; run `fedcs reproduce`")
    sections = _sections(all_figures)
    plots = {name: plot for section in sections for name, plot in _plots(section).items()}
    panels = {_bars_title(section): list(_bars(section)) for section in sections}
    if shown := {title: bars for title, bars in panels.items() if bars}:
        plots[TIMES_PLOT] = partial(draw_times, shown)
    return Report(_markdown(sections, all_figures, plots), plots)


def write_report(results_path: Path, out: Path) -> list[Path]:
    """Write ``report.md``, ``report.html`` and plots; return their paths."""
    report = make_report(results_path)
    plots = {name: draw() for name, draw in report.plots.items()}
    html = _html(report.markdown, plots)
    files = {"report.md": report.markdown.encode(), "report.html": html.encode()} | plots
    for name, content in files.items():
        write_file(out / name, content)
    return [out / name for name in files]


def _sections(all_figures: Sequence[RowFigures]) -> list[ReportSection]:
    groups: dict[tuple[str, str], list[RowFigures]] = {}
    for figures in all_figures:
        groups.setdefault((figures.row.dataset, figures.row.setting), []).append(figures)
    return [
        ReportSection(
            title=f"{_NAMES[dataset]}, {_NAMES[setting]}",
            slug=f"{dataset}-{setting}",
            accuracies=sorted(group[0].published.minutes_to),
            rows=[
                ReportRow(figures, list(differences(figures)) if figures.row in PUBLISHED else [])
                for figures in group
            ],
        )
        for (dataset, setting), group in groups.items()
    ]


def _plots(section: ReportSection) -> dict[str, Callable[[], bytes]]:
    title, compared, deadlines = section.title, section.compared, section.deadlines
    plots: dict[str, Callable[[], bytes]] = {}
    if compared:
        plots["accuracy"] = partial(draw_accuracies, compared, f"{title}: accuracy")
        plots["clients"] = partial(draw_clients, compared, f"{title}: clients in each round")
        plots["totals"] = partial(draw_totals, compared, f"{title}: clients in total")
    if len({figures.row for figures in deadlines}) > 1:
        plots["deadlines"] = partial(draw_accuracies, deadlines, f"{title}: effect of the deadline")
    if section.extensions:
        extended = section.with_extensions
        plots["extensions"] = partial(draw_accuracies, extended, f"{title}: accuracy with extensions")
    return {f"{section.slug}-{name}.png": draw for name, draw in plots.items()}


def _bars(section: ReportSection) -> Iterator[Bar]:
    """The times to the higher accuracy without uncertainty: published, ours, with extensions."""
    accuracy = section.accuracies[-1]
    shown = [*section.compared, *(found for found in section.extensions if not found.row.uncertainty)]
    for row in dict.fromkeys(compared_row(figures.row) for figures in shown):
        minutes = PUBLISHED[row].minutes_to[accuracy]
        yield Bar(f"{row.name}, published", minutes or 0.0, _published_minutes(minutes), is_published=True)
    for figures in shown:
        times = figures.time_to_accuracy(accuracy)
        trials = f"{len(figures.runs)} trial{'s' * (len(figures.runs) > 1)}"
        if times.whole_rounds is None:
            yield Bar(figures.name, 0.0, f"{_not_reached(times)}, {trials}", is_published=False)
        else:
            reached = f"{times.whole_rounds.count} of " if times.never else ""
            text = f"{times.whole_rounds.mean:.1f}, {reached}{trials}"
            yield Bar(figures.name, times.whole_rounds.mean, text, is_published=False)


def _bars_title(section: ReportSection) -> str:
    return f"{section.title}: minutes to accuracy {section.accuracies[-1]:g}"


def paper_tables(all_figures: Sequence[RowFigures]) -> list[PaperTable]:
    """Tables I and II."""
    return [
        _paper_table("Table I: IID", "iid", all_figures),
        _paper_table("Table II: non-IID", "non-iid", all_figures),
    ]


def _paper_table(title: str, setting: str, all_figures: Sequence[RowFigures]) -> PaperTable:
    rows = [row for row in PUBLISHED if row.setting == setting]
    datasets = list(dict.fromkeys(row.dataset for row in rows))
    columns = [column for dataset in datasets for column in _columns(replace(rows[0], dataset=dataset))]
    lines = []
    for first in (row for row in rows if row.dataset == datasets[0]):
        of_datasets = [replace(first, dataset=dataset) for dataset in datasets]
        name = first.name.replace(first.policy, _NAMES[first.policy], 1)
        lines.append(
            [name, "published", *(cell for row in of_datasets for cell in _published_cells(PUBLISHED[row]))]
        )
        found = {
            (figures.row, figures.version): figures for figures in all_figures if figures.row in of_datasets
        }
        for version in sorted({version for _, version in found}):
            cells = [
                cell for row in of_datasets for cell in _our_cells(PUBLISHED[row], found.get((row, version)))
            ]
            lines.append(["", f"ours, version {version}", *cells])
        if not found:
            lines.append(["", "ours", *("–" for _ in columns)])
    return PaperTable(title, columns, lines)


def _columns(row: Row) -> list[str]:
    dataset = row.dataset
    times = [f"{_NAMES[dataset]}: minutes to {accuracy:g}" for accuracy in sorted(PUBLISHED[row].minutes_to)]
    return [*times, f"{_NAMES[dataset]}: accuracy"]


def _published_cells(published: Published) -> list[str]:
    times = [published.minutes_to[accuracy] for accuracy in sorted(published.minutes_to)]
    return [*map(_published_minutes, times), f"{published.final_accuracy:.2f}"]


def _published_minutes(minutes: float | None) -> str:
    return "never" if minutes is None else f"{minutes:g}"


def _our_cells(published: Published, figures: RowFigures | None) -> list[str]:
    accuracies = sorted(published.minutes_to)
    if figures is None:
        return ["–" for _ in [*accuracies, "accuracy"]]
    final = figures.accuracy_at(FINAL_MINUTES)
    return [
        *(_time_to_accuracy(figures.time_to_accuracy(accuracy)) for accuracy in accuracies),
        _spread(final, "{:.3f}"),
    ]


def _markdown(
    sections: Sequence[ReportSection], all_figures: Sequence[RowFigures], plots: Collection[str]
) -> str:
    extensions = [figures.row for section in sections for figures in section.extensions]
    return TEMPLATES.get_template("report.md.j2").render(
        tables=paper_tables(all_figures),
        sections=sections,
        findings=findings(all_figures),
        plots=plots,
        times_plot=TIMES_PLOT,
        extension_times=compare_extensions(all_figures),
        changes={str(row): list(changes_of(row)) for row in extensions},
        trials=sum(len(figures.runs) for figures in all_figures),
        lines=sum(len(run.rounds) for figures in all_figures for run in figures.runs),
        versions=sorted({figures.version for figures in all_figures}),
        pairs=[text for section in sections for text in _pairs(section)],
        reasons=REASONS,
    )


def _spread(spread: Spread | None, pattern: str) -> str:
    if spread is None:
        return "–"
    deviation = "" if spread.deviation is None else f" ± {pattern.format(spread.deviation)}"
    return f"{pattern.format(spread.mean)}{deviation} ({spread.count})"


def _time_to_accuracy(times: TimeToAccuracy) -> str:
    never = f"{_not_reached(times)} ({len(times.never)})" if times.never else ""
    if times.whole_rounds is None or times.actual_ends is None:
        return never
    reached = f"{_spread(times.whole_rounds, '{:.1f}')} [{times.actual_ends.mean:.1f}]"
    return f"{reached}, {never}" if never else reached


def _not_reached(times: TimeToAccuracy) -> str:
    return f"not in {_range(times.never)}"


def _range(values: Sequence[float]) -> str:
    least, most = (f"{value:.4g}" for value in (min(values), max(values)))
    return least if least == most else f"{least}–{most}"


def _pairs(section: ReportSection) -> list[str]:
    """Compare FedCS with FedLim in the same setting and version."""
    tried = {(figures.row, figures.version): figures for figures in section.paper}
    lines = []
    for (row, version), fedcs in tried.items():
        fedlim = tried.get((replace(row, policy="fedlim"), version))
        if row.policy != "fedcs" or fedlim is None:
            continue
        ratio = fedcs.clients_per_round.mean / fedlim.clients_per_round.mean
        lines.append(
            f"{section.title}, {row.round_minutes} min, version {version}: FedCS has {ratio:.2f} times "
            "FedLim's clients. "
            + " ".join(_earlier(fedcs, fedlim, accuracy) for accuracy in section.accuracies)
        )
    return lines


def _earlier(fedcs: RowFigures, fedlim: RowFigures, accuracy: float) -> str:
    ours, theirs = (figures.time_to_accuracy(accuracy) for figures in (fedcs, fedlim))
    return f"Accuracy {accuracy:g}: FedCS {_time_to_accuracy(ours)}, FedLim {_time_to_accuracy(theirs)}."


def _html(markdown: str, plots: Mapping[str, bytes]) -> str:
    """A single HTML file with the plots embedded."""

    def inline(found: re.Match[str]) -> str:
        plot = base64.b64encode(plots[found[1]]).decode()
        return f'src="data:image/png;base64,{plot}"'

    body = MarkdownIt("commonmark").enable("table").render(markdown)
    with_plots = re.sub(r'src="([^":]+\.png)"', inline, body)
    return TEMPLATES.get_template("report.html.j2").render(body=with_plots)


TEMPLATES = Environment(
    loader=PackageLoader("client_sim.reproduction", ""),
    autoescape=False,  # noqa: S701 - Markdown of our own numbers, and HTML made from it
    undefined=StrictUndefined,
    keep_trailing_newline=True,
)
TEMPLATES.filters |= {
    "accuracy": lambda spread: _spread(spread, "{:.3f}"),
    "clients": lambda spread: f"{spread.mean:.2f} ± {spread.deviation or 0:.2f}",
    "number": lambda value: f"{value:.4g}",
    "percent": lambda share: f"{share:.1%}",
}
