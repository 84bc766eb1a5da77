"""Comparisons: our figures with the published ones, FedCS with FedLim, extensions with the paper's FedCS."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from client_sim.reproduction.figures import RowFigures, TimeToAccuracy
from client_sim.reproduction.results_file import TrialRun
from client_sim.reproduction.rows import (
    FINAL_MINUTES,
    PAPER_TRIALS,
    PUBLISHED,
    Row,
    compared_row,
    parse_change,
)
from client_sim.reproduction.trial import Until


def findings(all_figures: Sequence[RowFigures]) -> list[str]:
    """A sentence for each finding, with the exceptions named."""
    paper = [figures for figures in all_figures if figures.row in PUBLISHED]
    return [_rows_done(paper), _against_published(paper), _against_fedlim(paper)]


def _rows_done(paper: Sequence[RowFigures]) -> str:
    done = {figures.row for figures in paper if any(map(_is_done, figures.runs))}
    left = [str(row) for row in PUBLISHED if row not in done]
    missing = f" Missing: {'; '.join(left)}." if left else ""
    return (
        f"{len(done)} of the paper's {len(PUBLISHED)} rows have a trial that reached the higher accuracy or "
        f"ran for {FINAL_MINUTES} minutes.{missing}"
    )


def _is_done(run: TrialRun) -> bool:
    row = run.trial.row
    until = Until(FINAL_MINUTES, max(PUBLISHED[row].minutes_to))
    return until.reached(run.elapsed_s, run.best_accuracy, 60.0 * row.round_minutes)


def _against_published(paper: Sequence[RowFigures]) -> str:
    """Compare the mean times with the published ones; unfinished trials leave the comparison open."""
    earlier, later, open_count = 0, [], 0
    for figures in paper:
        for accuracy, minutes in figures.published.minutes_to.items():
            times = figures.time_to_accuracy(accuracy)
            if minutes is None:
                continue
            if any(ran > minutes for ran in times.never) or (
                not times.never and times.whole_rounds is not None and times.whole_rounds.mean > minutes
            ):
                later.append(f"{figures.row}, {accuracy:g}, version {figures.version}")
            elif times.never:
                open_count += 1
            else:
                earlier += 1
    named = f": {'; '.join(later)}" if later else ""
    return (
        f"Of the published times to an accuracy, {earlier} were reached no later, {len(later)} later{named}. "
        f"Open, because not all trials have run so long: {open_count}."
    )


def _against_fedlim(paper: Sequence[RowFigures]) -> str:
    """Compare FedCS with FedLim at the higher accuracy, by pairs with the same seed and version."""
    runs = {
        (run.trial.row, run.trial.seed, figures.version): run for figures in paper for run in figures.runs
    }
    earlier, not_earlier, open_count = 0, [], 0
    for (row, seed, version), fedlim in runs.items():
        fedcs = runs.get((replace(row, policy="fedcs"), seed, version))
        if row.policy != "fedlim" or fedcs is None:
            continue
        order = _is_earlier(fedcs, fedlim, max(PUBLISHED[row].minutes_to))
        if order is None:
            open_count += 1
        elif order:
            earlier += 1
        else:
            not_earlier.append(f"{row.dataset}, {row.setting}, seed {seed}")
    named = f": {'; '.join(not_earlier)}" if not_earlier else ""
    return (
        f"FedCS reached the higher accuracy earlier than FedLim in {earlier} pairs with the same seed, not "
        f"earlier in {len(not_earlier)}{named}. Open, because not all trials have run so long: {open_count}."
    )


def _is_earlier(ours: TrialRun, theirs: TrialRun, accuracy: float) -> bool | None:
    """Whether our trial reached the accuracy earlier; None if the trials have not run long enough."""
    reached, their = (run.first_reached(accuracy) for run in (ours, theirs))
    if reached is not None and their is not None:
        return reached[0] < their[0]
    if reached is not None:
        return True if theirs.elapsed_s / 60 >= reached[0] else None
    if their is not None:
        return False if ours.elapsed_s / 60 >= their[0] else None
    return None


REASONS = {
    "radio": "The paper gives no noise figure, and its placement gives lower throughput than it states; "
    "our cell (1 dB, uniform in distance) is calibrated to its mean throughput.",
    "whole rounds": "Our times count every round with its full deadline, so they are multiples of it. Most "
    "published times are not: the authors may have counted rounds to the end of their last upload. Our times "
    "counted that way are in brackets.",
    "network": "The paper does not specify the position of batch normalisation, the initial weights, the "
    "scaling of inputs, or the averaging of batch statistics. The network as drawn has a quarter of the "
    "stated parameters.",
    "averaging": "We weight clients by their samples, and the learning rate decays by 0.99 per round; the "
    "paper specifies neither.",
    "few trials": "Published figures are means of ten trials; fewer trials have a larger random error.",
    "not finished": "Our trials have not run as long.",
}
"""Why a figure may differ from the published figure."""

_LEARNING = ("whole rounds", "network", "averaging")


@dataclass(frozen=True)
class Difference:
    """A difference between our figure and the published figure."""

    what: str
    reasons: Sequence[str]


def differences(figures: RowFigures) -> Iterator[Difference]:
    """All differences of a row."""
    published = figures.published
    few = ["few trials"] if len(figures.runs) < PAPER_TRIALS else []
    if published.clients_per_round is not None:
        ours = figures.clients_per_round.mean
        share = ours / published.clients_per_round - 1
        text = (
            f"{ours:.1f} clients per round where the paper has {published.clients_per_round:g} ({share:+.0%})"
        )
        yield Difference(text, ["radio"])
    for accuracy, minutes in published.minutes_to.items():
        times = figures.time_to_accuracy(accuracy)
        yield Difference(
            f"accuracy {accuracy:g} {_compared(times, minutes)}",
            _why(times, minutes, few),
        )
    final = figures.accuracy_at(FINAL_MINUTES)
    if final is None:
        yield Difference(
            f"no final accuracy: ran for {figures.minutes:g} of {FINAL_MINUTES} minutes "
            f"(the paper ends at {published.final_accuracy:.2f})",
            ["not finished"],
        )
    else:
        change = final.mean - published.final_accuracy
        text = (
            f"final accuracy {final.mean:.3f}; the paper has {published.final_accuracy:.2f} ({change:+.3f})"
        )
        yield Difference(text, ["network", "averaging", *few])


def _why(times: TimeToAccuracy, minutes: float | None, few: Sequence[str]) -> Sequence[str]:
    if times.whole_rounds is None and max(times.never) < (minutes or FINAL_MINUTES):
        return ["not finished"]
    return [*_LEARNING, *few]


def _compared(times: TimeToAccuracy, minutes: float | None) -> str:
    ours = times.whole_rounds
    if ours is None:
        not_reached = f"not reached in {max(times.never):g} min"
        return (
            f"{not_reached}, nor in the paper"
            if minutes is None
            else f"{not_reached}; the paper: {minutes:g} min"
        )
    missing = f" ({len(times.never)} of {ours.count + len(times.never)} trials did not reach it)"
    reached = f"after {ours.mean:.1f} min{missing if times.never else ''}"
    if minutes is None:
        return f"{reached}; in the paper some trials never reached it"
    if round(ours.mean, 1) == minutes:
        return f"{reached}, as in the paper"
    change = ours.mean - minutes
    beside = f"{abs(change):.1f} min {'later' if change > 0 else 'earlier'}"
    return f"{reached}, {beside} than the paper's {minutes:g}"


@dataclass(frozen=True)
class SeedComparison:
    """The time of a trial to an accuracy, and that of the paper's row with the same seed."""

    fixed: TrialRun
    extended: TrialRun
    accuracy: float

    @property
    def versions(self) -> str:
        """The version of the trial, and that of the paper's row if it is another one."""
        ours, theirs = self.extended.version, self.fixed.version
        return ours if ours == theirs else f"{ours}; fixed FedCS: {theirs}"

    @property
    def ratio(self) -> float | None:
        """The ratio of the times; None if one of them is not known."""
        return self._ratio(0)

    @property
    def ratio_of_ends(self) -> float | None:
        """The same, with rounds counted to the end of their last upload."""
        return self._ratio(1)

    @property
    def ratio_of_deadlines(self) -> float | None:
        """The same, with every round counted with its own full deadline; None if those are not known."""
        fixed, extended = (run.deadlines_until(self.accuracy) for run in (self.fixed, self.extended))
        return None if fixed is None or extended is None else extended / fixed

    def _ratio(self, kind: int) -> float | None:
        fixed, extended = (run.first_reached(self.accuracy) for run in (self.fixed, self.extended))
        return None if fixed is None or extended is None else extended[kind] / fixed[kind]

    def __str__(self) -> str:
        times = f"{_minutes(self.extended, self.accuracy)} / {_minutes(self.fixed, self.accuracy)} min"
        ratio = "" if self.ratio is None else f" = {self.ratio:.2f}"
        return f"seed {self.extended.trial.seed}: {times}{ratio}"


@dataclass(frozen=True)
class ExtensionTime:
    """The times of a row with extensions to an accuracy, as ratios to the paper's row."""

    row: Row
    accuracy: float
    versions: str
    seeds: Sequence[SeedComparison]

    @property
    def mean_ratio(self) -> str:
        """The mean of the ratios, and in brackets that of rounds counted to their last upload.

        If all deadlines of adaptive rounds were recorded, also that of rounds counted with their deadlines.
        """
        ratios = [seed.ratio for seed in self.seeds if seed.ratio is not None]
        of_ends = [seed.ratio_of_ends for seed in self.seeds if seed.ratio_of_ends is not None]
        if not ratios:
            return "–"
        found = f"{fmean(ratios):.2f} ({len(ratios)}) [{fmean(of_ends):.2f}]"
        of_deadlines = [seed.ratio_of_deadlines for seed in self.seeds if seed.ratio_of_deadlines is not None]
        if self.row.deadline_mode == "fixed" or len(of_deadlines) < len(ratios):
            return found
        return f"{found}, full deadlines: {fmean(of_deadlines):.2f}"


def compare_extensions(all_figures: Sequence[RowFigures]) -> list[ExtensionTime]:
    """The times of all rows with extensions; trials of different versions are in different lines."""
    fixed = [run for figures in all_figures if figures.row in PUBLISHED for run in figures.runs]
    lines = []
    for figures in all_figures:
        if figures.row in PUBLISHED:
            continue
        for accuracy in sorted(figures.published.minutes_to):
            groups: dict[str, list[SeedComparison]] = {}
            for comparison in _comparisons(figures, fixed, accuracy):
                groups.setdefault(comparison.versions, []).append(comparison)
            lines += [
                ExtensionTime(figures.row, accuracy, versions, seeds) for versions, seeds in groups.items()
            ]
    return lines


def _comparisons(figures: RowFigures, fixed: Sequence[TrialRun], accuracy: float) -> Iterator[SeedComparison]:
    """Compare each trial with a run of the paper's row, if possible of the same version."""
    row = compared_row(figures.row)
    for run in figures.runs:
        found = [other for other in fixed if other.trial.row == row and other.trial.seed == run.trial.seed]
        if found:
            best = max(
                found,
                key=lambda other: (
                    other.first_reached(accuracy) is not None,
                    other.version == run.version,
                    len(other.rounds),
                ),
            )
            yield SeedComparison(best, run, accuracy)


def _minutes(run: TrialRun, accuracy: float) -> str:
    reached = run.first_reached(accuracy)
    return f"not in {run.elapsed_s / 60:.1f}" if reached is None else f"{reached[0]:.1f}"


def changes_of(row: Row) -> Iterator[str]:
    """What differs from the row of the paper that it is compared with."""
    compared = compared_row(row)
    if row.policy != compared.policy:
        yield f"the policy is `{row.policy}` instead of the paper's greedy selection"
    if row.round_minutes != compared.round_minutes:
        yield f"the deadline is {row.round_minutes} minutes instead of {compared.round_minutes}"
    if row.deadline_mode != "fixed":
        yield "the service chooses the deadline of each round, and a round ends with its last upload"
    if row.update_encoding != "float32":
        yield f"clients upload `{row.update_encoding}`, and the scheduled size is that of the encoded update"
    if row.model_encoding != "float32":
        yield f"clients download `{row.model_encoding}`, and the scheduled size is that of the encoded model"
    if row.dispatch == "on_ready":
        yield "the channel is granted to a client whose update is ready, not in the planned order"
    if row.model != compared.model:
        yield f"the network is `{row.model}`"
    if row.aggregation != compared.aggregation:
        yield f"the aggregation is `{row.aggregation}`"
    for name, value in map(parse_change, row.changes):
        yield f"the field `{name}` of the task is `{value}`"
