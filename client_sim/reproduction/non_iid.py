"""The study of training with two classes per device: its rows, and its report as Markdown."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from client_sim.reproduction.report import TEMPLATES
from client_sim.reproduction.results_file import TrialRun, read_results
from client_sim.reproduction.rows import Row, Trial
from client_sim.results import write_file

SEED = 0
ACCURACIES = {"fashion-mnist": (0.5, 0.6, 0.7, 0.78), "cifar-10": (0.35, 0.5)}
LAST_MINUTES = (45.0, 60.0)
"""The rows are compared by their mean accuracy in this time, because it varies from round to round."""

_PAPER = Row("fashion-mnist", "non-iid", "fedcs", 5, 0.0)
_GROUP_NORM = _PAPER.with_changes({"model": "paper-cnn-gn", "learning_rate": 0.05})
_ENCODED = _GROUP_NORM.with_changes(
    {"round_deadline_s": 180, "update_encoding": "int8", "model_encoding": "float16"}
)
_MOMENTUM = _ENCODED.with_changes(
    {
        "aggregation": "server-momentum",
        "aggregation_parameters": {"weight_cap_factor": 10, "momentum": 0.9, "learning_rate": 0.3},
    }
)


@dataclass(frozen=True)
class StudyRow:
    """A setting of the study."""

    row: Row
    text: str
    compared_with: str | None = None
    """The row that differs from it in one change."""


STUDY: Mapping[str, StudyRow] = {
    "paper": StudyRow(_PAPER, "the paper's settings: batch normalisation, learning rate 0.25, fixed 5 min"),
    "group-norm": StudyRow(_GROUP_NORM, "group normalisation (`paper-cnn-gn`), learning rate 0.05", "paper"),
    "encoded": StudyRow(_ENCODED, "and `int8` updates, `float16` models, fixed 3 min", "group-norm"),
    "calibrated": StudyRow(
        _ENCODED.with_changes({"calibrated_loss": True}), "as `encoded`, and `calibrated_loss`", "encoded"
    ),
    "server-momentum": StudyRow(
        _MOMENTUM,
        "as `encoded`, and `server-momentum` with momentum 0.9 and learning rate 0.3",
        "encoded",
    ),
    "adaptive": StudyRow(
        _ENCODED.with_changes({"deadline_mode": "adaptive"}),
        "as `encoded`, with an adaptive deadline of at most 3 min",
        "encoded",
    ),
    "combined": StudyRow(
        _MOMENTUM.with_changes({"calibrated_loss": True}),
        "as `server-momentum`, and `calibrated_loss`",
        "server-momentum",
    ),
}
"""The rows by name, in the order of the report."""

ON_CIFAR_10 = StudyRow(replace(STUDY["combined"].row, dataset="cifar-10"), "as `combined`, with CIFAR-10")


@dataclass(frozen=True)
class StudyFigures:
    """A row of the report; without a run if it has no results yet."""

    name: str
    study: StudyRow
    run: TrialRun | None
    compared: TrialRun | None = None

    @property
    def clients_per_round(self) -> float | None:
        """The mean number of received updates."""
        return None if self.run is None else fmean(line.received for line in self.run.rounds)

    @property
    def minutes_to(self) -> Mapping[float, str]:
        """The minutes to each accuracy, or for how long it was not reached."""
        return {accuracy: _time_to(self.run, accuracy) for accuracy in ACCURACIES[self.study.row.dataset]}

    @property
    def best(self) -> tuple[float, float] | None:
        """The best accuracy, and the minutes to it."""
        if self.run is None or self.run.best_accuracy is None:
            return None
        reached = self.run.first_reached(self.run.best_accuracy)
        assert reached is not None, "a round has this accuracy"
        return self.run.best_accuracy, reached[0]

    @property
    def last(self) -> float | None:
        """The mean accuracy in `LAST_MINUTES`; None if the run is shorter."""
        return _last_accuracy(self.run)

    @property
    def change(self) -> float | None:
        """The change of this mean against the other row's."""
        theirs = _last_accuracy(self.compared)
        return None if self.last is None or theirs is None else self.last - theirs


def _time_to(run: TrialRun | None, accuracy: float) -> str:
    if run is None:
        return "–"
    reached = run.first_reached(accuracy)
    return f"not in {run.elapsed_s / 60:.0f}" if reached is None else f"{reached[0]:.1f}"


def _last_accuracy(run: TrialRun | None) -> float | None:
    first, last = LAST_MINUTES
    if run is None or run.elapsed_s / 60 + run.trial.row.round_minutes <= last:
        return None
    return fmean(
        line.accuracy
        for line in run.rounds
        if line.accuracy is not None and first <= line.elapsed_s / 60 <= last
    )


def write_study(results_path: Path, out: Path) -> None:
    """Write the report of the study."""
    runs = read_results(results_path)

    def figures(name: str, study: StudyRow) -> StudyFigures:
        other = None if study.compared_with is None else STUDY[study.compared_with]
        return StudyFigures(
            name,
            study,
            runs.get(Trial(study.row, SEED)),
            None if other is None else runs.get(Trial(other.row, SEED)),
        )

    text = TEMPLATES.get_template("non_iid.md.j2").render(
        rows=[figures(name, study) for name, study in STUDY.items()],
        cifar_10=figures("combined", ON_CIFAR_10),
        last_minutes=LAST_MINUTES,
        seed=SEED,
    )
    write_file(out, text.encode())
