"""The summary of a chaos test as Markdown, for the terminal and docs/results/."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func, select

from services.storage.database import Database
from services.storage.tables import events, rounds, tasks
from tests.faults.chaos.checker import round_delays
from tests.faults.chaos.history import History
from tests.faults.chaos.timing import SHORT, Timing


@dataclass(frozen=True)
class InjectedFault:
    """A fault; moments are those of this process's clock."""

    kind: str
    began_s: float
    ended_s: float


@dataclass(frozen=True)
class ChaosRun:
    """A chaos test that is over."""

    seed: int
    duration_s: float
    timing: Timing
    injected: Sequence[InjectedFault]
    left_out: Sequence[str]
    """Kinds of faults that cannot be made on this machine."""
    starts: dict[str, int]
    """How often each process was started."""
    settled_s: float
    """How long after the last fault all tasks had ended."""
    faults: Sequence[str]
    """What the checker found."""


def summarize(run: ChaosRun, history: History, database: Database) -> str:
    """The summary, in Markdown."""
    answered_s = sorted(history.reports.values())
    kinds = Counter(item.kind for item in run.injected)
    recovery_s = dict.fromkeys(kinds, 0.0)
    for item in run.injected:
        recovery_s[item.kind] = max(recovery_s[item.kind], _recovery_s(item, answered_s))
    longest_s = max(recovery_s.values(), default=0.0)
    verdict = "Nothing acknowledged was lost, nothing was counted twice, all tasks ended."
    if run.faults:
        verdict = f"**{len(run.faults)} faults found:**\n\n" + "\n".join(f"- {item}" for item in run.faults)
    lines = [
        "# Chaos test",
        "",
        f"`python -m tests.faults.chaos --seed {run.seed} --minutes {run.duration_s / 60:g}"
        f"{' --short' if run.timing is SHORT else ''}`: "
        f"{len(run.injected)} faults of {len(kinds)} kinds. {verdict}",
        "",
        *(f"Left out, as this machine does not allow it: {kind}.\n" for kind in run.left_out),
        "| fault | times | longest until a report was acknowledged again, s |",
        "|---|---|---|",
        *(f"| {kind} | {number} | {recovery_s[kind]:.1f} |" for kind, number in sorted(kinds.items())),
        "",
        "| measured | |",
        "|---|---|",
        f"| longest until a report was acknowledged again after a fault, s | {longest_s:.1f} |",
        *(f"| {name} | {value} |" for name, value in _figures(run, history, database)),
        "",
    ]
    return "\n".join(lines)


def _recovery_s(fault: InjectedFault, answered_s: Sequence[float]) -> float:
    """From the end of a fault until the service acknowledged something."""
    return next((moment for moment in answered_s if moment >= fault.ended_s), fault.ended_s) - fault.ended_s


def _figures(run: ChaosRun, history: History, database: Database) -> list[tuple[str, str]]:
    with database.engine.connect() as connection:
        number_of_events = connection.execute(select(func.count()).select_from(events)).scalar_one()
        ended = Counter(connection.execute(select(tasks.c.state)).scalars())
        outcomes = Counter(connection.execute(select(rounds.c.state)).scalars())
        delays = list(round_delays(connection))
    late_s = max((late for _, late, _ in delays if late is not None), default=0.0)
    slow_s = max((slow for _, _, slow in delays if slow is not None), default=0.0)
    allowed = f"allowed: {run.timing.overdue_s:g}"
    told = [
        (f"{what}s {outcome}", f"{history.outcomes[what, outcome]:,}")
        for what in ("report", "update")
        for outcome in ("acknowledged", "refused", "retried")
    ]
    return [
        ("processes started again", _listed({name: starts - 1 for name, starts in run.starts.items()})),
        *told,
        ("rounds", _listed(outcomes)),
        ("tasks", _listed(ended)),
        ("events, told once each and in order", f"{number_of_events:,}"),
        (f"longest from a round's deadline to the end of its collection, s ({allowed})", f"{late_s:.1f}"),
        (f"longest from the end of collection to the end of the round, s ({allowed})", f"{slow_s:.1f}"),
        (
            f"from the last fault until all tasks had ended, s (allowed: {run.timing.settle_s:g})",
            f"{run.settled_s:.1f}",
        ),
    ]


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in sorted(counts.items()))
