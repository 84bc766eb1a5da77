"""The experiments of the paper (its section V and Tables I and II), and what it reports of them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from client_sim.scenario import Scenario, load_scenario
from services.contract.tasks import TaskRequest

FINAL_MINUTES = 400
"""T_final. The paper's section on metrics says 360; accuracies are reported at both."""
PAPER_TRIALS = 10


@dataclass(frozen=True)
class Row:
    """One row of the paper's tables: a setting that is tried with several seeds."""

    dataset: str
    setting: str
    policy: str
    round_minutes: int
    uncertainty: float

    def __str__(self) -> str:
        uncertain = f", r = {self.uncertainty:.0%}" if self.uncertainty else ""
        return f"{self.dataset}, {self.setting}, {self.policy}, {self.round_minutes} min{uncertain}"


@dataclass(frozen=True)
class Trial:
    """A row, tried with a seed."""

    row: Row
    seed: int

    def __str__(self) -> str:
        return f"{self.row}, seed {self.seed}"

    @property
    def slug(self) -> str:
        """A name for files."""
        row = self.row
        return (
            f"{row.dataset}-{row.setting}-{row.policy}-{row.round_minutes}min"
            f"-r{row.uncertainty * 100:.0f}-seed{self.seed}"
        )


@dataclass(frozen=True)
class Published:
    """What the paper reports of a row, as means of ten trials."""

    minutes_to: Mapping[float, float | None]
    """When an accuracy was first reached; None: never."""
    final_accuracy: float
    clients_per_round: float | None = None


def _row(dataset: str, policy: str, minutes: int, r: float = 0.0, setting: str = "iid") -> Row:
    return Row(dataset, setting, policy, minutes, r)


_CIFAR, _FASHION = "cifar-10", "fashion-mnist"

PUBLISHED: Mapping[Row, Published] = {
    _row(_CIFAR, "fedlim", 3): Published({0.5: 38.1, 0.75: 209.2}, 0.77, 3.3),
    _row(_CIFAR, "fedcs", 3): Published({0.5: 25.8, 0.75: 132.7}, 0.79, 7.7),
    _row(_CIFAR, "fedcs", 3, 0.1): Published({0.5: 27.9, 0.75: 138.1}, 0.78),
    _row(_CIFAR, "fedcs", 3, 0.2): Published({0.5: 31.1, 0.75: 178.3}, 0.78),
    _row(_CIFAR, "fedcs", 1): Published({0.5: None, 0.75: None}, 0.50),
    _row(_CIFAR, "fedcs", 5): Published({0.5: 41.0, 0.75: 166.6}, 0.79),
    _row(_CIFAR, "fedcs", 10): Published({0.5: 75.7, 0.75: 281.7}, 0.76),
    _row(_FASHION, "fedlim", 3): Published({0.5: 10.4, 0.85: 66.8}, 0.90),
    _row(_FASHION, "fedcs", 3): Published({0.5: 10.6, 0.85: 33.5}, 0.91),
    _row(_FASHION, "fedcs", 3, 0.1): Published({0.5: 11.3, 0.85: 32.1}, 0.92),
    _row(_FASHION, "fedcs", 3, 0.2): Published({0.5: 12.7, 0.85: 37.0}, 0.91),
    _row(_FASHION, "fedcs", 1): Published({0.5: 3.0, 0.85: 73.7}, 0.89),
    _row(_FASHION, "fedcs", 5): Published({0.5: 18.1, 0.85: 48.8}, 0.92),
    _row(_FASHION, "fedcs", 10): Published({0.5: 42.0, 0.85: 93.3}, 0.91),
    _row(_CIFAR, "fedlim", 5, setting="non-iid"): Published({0.35: None, 0.5: None}, 0.31),
    _row(_CIFAR, "fedcs", 5, setting="non-iid"): Published({0.35: 91.7, 0.5: 213.7}, 0.54),
    _row(_FASHION, "fedlim", 5, setting="non-iid"): Published({0.5: None, 0.7: None}, 0.46),
    _row(_FASHION, "fedcs", 5, setting="non-iid"): Published({0.5: 82.4, 0.7: 187.7}, 0.71),
}


def choose_rows(
    *,
    dataset: Collection[str] = (),
    setting: Collection[str] = (),
    policy: Collection[str] = (),
    round_minutes: Collection[int] = (),
    uncertainty: Collection[float] = (),
) -> list[Row]:
    """The rows that have one of the values given for each; nothing given: any value."""
    wanted = {
        "dataset": dataset,
        "setting": setting,
        "policy": policy,
        "round_minutes": round_minutes,
        "uncertainty": uncertainty,
    }
    return [
        row
        for row in PUBLISHED
        if all(not values or getattr(row, name) in values for name, values in wanted.items())
    ]


def trials_of(rows: Sequence[Row], trials: int) -> list[Trial]:
    """The first trials of every row before the second ones, so that an early end leaves a comparison."""
    return [Trial(row, seed) for seed in range(trials) for row in rows]


def scenario_of(trial: Trial) -> Scenario:
    """A trial as the simulator runs it."""
    row = trial.row
    preset = load_scenario(f"paper-{row.dataset}").changed(
        policy=row.policy, seed=trial.seed, uncertainty=row.uncertainty
    )
    changes = {
        "name": str(trial),
        "partition_scheme": row.setting.replace("-", "_"),
        "round_deadline_s": 60.0 * row.round_minutes,
        "final_deadline_s": 60.0 * FINAL_MINUTES,
        # A run that is stopped for a while goes on with the round that was open.
        "idle_timeout_s": preset.task.report_max_age_s,
    }
    task = TaskRequest.model_validate(preset.task.model_dump() | changes)
    return preset.model_copy(update={"task": task})
