"""What happened in a storm, as a table for people: on the terminal, and in docs/results/."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func, select

from services.storage.database import Database
from services.storage.tables import events, rounds, tasks
from tests.faults.storm.checker import round_delays
from tests.faults.storm.ledger import Ledger
from tests.faults.storm.tempo import HASTY, Tempo


@dataclass(frozen=True)
class Happened:
    """A fault; moments are those of this process's clock."""

    kind: str
    began_s: float
    ended_s: float


@dataclass(frozen=True)
class Storm:
    """A storm that is over."""

    seed: int
    duration_s: float
    tempo: Tempo
    happened: Sequence[Happened]
    left_out: Sequence[str]
    """Kinds of faults that cannot be made on this machine."""
    starts: dict[str, int]
    """How often each process was started."""
    settled_s: float
    """How long after the last fault all tasks had ended."""
    faults: Sequence[str]
    """What the checker found."""


def summarize(storm: Storm, ledger: Ledger, database: Database) -> str:
    """The summary, in Markdown."""
    answered_s = sorted(ledger.reports.values())
    kinds = Counter(one.kind for one in storm.happened)
    recovery_s = dict.fromkeys(kinds, 0.0)
    for one in storm.happened:
        recovery_s[one.kind] = max(recovery_s[one.kind], _recovery_s(one, answered_s))
    longest_s = max(recovery_s.values(), default=0.0)
    verdict = "Nothing acknowledged was lost, nothing was counted twice, all tasks ended."
    if storm.faults:
        verdict = f"**{len(storm.faults)} faults found:**\n\n" + "\n".join(f"- {one}" for one in storm.faults)
    lines = [
        "# A storm of faults",
        "",
        f"`python -m tests.faults.storm --seed {storm.seed} --minutes {storm.duration_s / 60:g}"
        f"{' --hasty' if storm.tempo is HASTY else ''}`: "
        f"{len(storm.happened)} faults of {len(kinds)} kinds. {verdict}",
        "",
        *(f"Left out, as this machine does not allow it: {kind}.\n" for kind in storm.left_out),
        "| fault | times | longest until a report was acknowledged again, s |",
        "|---|---|---|",
        *(f"| {kind} | {number} | {recovery_s[kind]:.1f} |" for kind, number in sorted(kinds.items())),
        "",
        "| measured | |",
        "|---|---|",
        f"| longest until a report was acknowledged again after a fault, s | {longest_s:.1f} |",
        *(f"| {name} | {value} |" for name, value in _figures(storm, ledger, database)),
        "",
    ]
    return "\n".join(lines)


def _recovery_s(fault: Happened, answered_s: Sequence[float]) -> float:
    """From the end of a fault until the service acknowledged something."""
    return next((moment for moment in answered_s if moment >= fault.ended_s), fault.ended_s) - fault.ended_s


def _figures(storm: Storm, ledger: Ledger, database: Database) -> list[tuple[str, str]]:
    with database.engine.connect() as connection:
        number_of_events = connection.execute(select(func.count()).select_from(events)).scalar_one()
        ended = Counter(connection.execute(select(tasks.c.state)).scalars())
        outcomes = Counter(connection.execute(select(rounds.c.state)).scalars())
        delays = list(round_delays(connection))
    late_s = max((late for _, late, _ in delays if late is not None), default=0.0)
    slow_s = max((slow for _, _, slow in delays if slow is not None), default=0.0)
    allowed = f"allowed: {storm.tempo.overdue_s:g}"
    told = [
        (f"{what}s {outcome}", f"{ledger.outcomes[what, outcome]:,}")
        for what in ("report", "update")
        for outcome in ("acknowledged", "refused", "retried")
    ]
    return [
        ("processes started again", _listed({name: starts - 1 for name, starts in storm.starts.items()})),
        *told,
        ("rounds", _listed(outcomes)),
        ("tasks", _listed(ended)),
        ("events, told once each and in order", f"{number_of_events:,}"),
        (f"longest from a round's deadline to the end of its collection, s ({allowed})", f"{late_s:.1f}"),
        (f"longest from the end of collection to the end of the round, s ({allowed})", f"{slow_s:.1f}"),
        (
            f"from the last fault until all tasks had ended, s (allowed: {storm.tempo.settle_s:g})",
            f"{storm.settled_s:.1f}",
        ),
    ]


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{number} {name}" for name, number in sorted(counts.items()))
