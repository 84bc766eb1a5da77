"""What the results say: the share of rows done, and the two comparisons that the paper rests on."""

from collections.abc import Sequence
from dataclasses import replace

from client_sim.reproduction.figures import RowFigures
from client_sim.reproduction.results_file import TrialRun
from client_sim.reproduction.rows import FINAL_MINUTES, PUBLISHED
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
