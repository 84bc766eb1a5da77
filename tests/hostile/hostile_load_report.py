"""The result of a hostile load test as Markdown."""

import platform
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tests.hostile.attackers import WAITING, Toll
from tests.hostile.honest_clients import Sample

MAX_GROWTH_MB = 64.0
MAX_SLOWDOWN = 5.0

_HEAD = """\
# Hostile input

Written by `make hostile`: one API process (`fedcs serve`) under hostile updates, hostile and fuzzed requests
and slow connections, with honest clients beside them; see `tests/hostile/`. Memory is the resident memory of
the process. An answer of `none` is a connection closed without one, `waited` a request that announced more
than it sent, whose sender went.

Python {python}, {machine}.
"""


@dataclass(frozen=True)
class HostileLoad:
    """What a hostile load test measured on one database."""

    database: str
    seed: int
    rate_per_s: float
    wanted: int
    """How many attacks there were to be."""
    duration_s: float
    toll: Toll
    slow_connections: int
    slow_closed: int
    quiet: Sequence[Sample]
    under_attack: Sequence[Sample]
    memory_before_mb: float
    memory_most_mb: float
    memory_after_mb: float

    @property
    def uploads(self) -> int:
        """How many hostile updates were sent."""
        return sum(count for (kind, _), count in self.toll.statuses.items() if kind == "update")

    @property
    def requests(self) -> int:
        """How many other hostile requests were sent."""
        return self.toll.statuses.total() - self.uploads

    @property
    def server_errors(self) -> int:
        """How many attacks were answered with 5xx."""
        return sum(count for (_, status), count in self.toll.statuses.items() if status >= 500)

    @property
    def failures(self) -> list[str]:
        """What did not hold."""
        honest = Counter(sample.status for sample in (*self.quiet, *self.under_attack))
        refused = {status: count for status, count in honest.items() if not 200 <= status < 300}
        sent = self.toll.statuses.total()
        checks = {
            f"only {sent} of {self.wanted} attacks were sent in time": sent < self.wanted,
            f"{self.server_errors} answers were 5xx": self.server_errors,
            f"honest clients were refused: {refused}": refused,
            f"memory grew by {self.growth_mb:.0f} MB": self.growth_mb > MAX_GROWTH_MB,
            f"p99 of honest clients rose {self.slowdown(99):.1f} times": self.slowdown(99) > MAX_SLOWDOWN,
            **{f"unexpected: {surprise}": True for surprise in self.toll.surprises[:20]},
        }
        return [failure for failure, happened in checks.items() if happened]

    @property
    def growth_mb(self) -> float:
        """By how much the memory was larger than before, at most."""
        return self.memory_most_mb - self.memory_before_mb

    def slowdown(self, percent: float) -> float:
        """How many times longer honest clients waited, at this percentile."""
        return percentile_ms(self.under_attack, percent) / percentile_ms(self.quiet, percent)


def percentile_ms(samples: Sequence[Sample], percent: float) -> float:
    """Of the times that honest clients waited."""
    return float(np.percentile([sample.took_s for sample in samples], percent)) * 1000


def report(loads: Sequence[HostileLoad]) -> str:
    """All of them, as a page."""
    head = _HEAD.format(python=platform.python_version(), machine=platform.machine())
    return "\n".join([head, *map(_section, loads)])


def _section(load: HostileLoad) -> str:
    rows = [
        ("hostile updates", f"{load.uploads}"),
        ("other hostile and fuzzed requests", f"{load.requests}"),
        ("answers 5xx", f"{load.server_errors}"),
        ("answers other than expected", f"{len(load.toll.surprises)}"),
        ("updates named in the round's record", f"{load.toll.recorded}, all of those read and refused"),
        (
            "slow connections at a time",
            f"{load.slow_connections}; closed by the service {load.slow_closed} times",
        ),
        (
            "memory before, most, after",
            f"{load.memory_before_mb:.0f}, {load.memory_most_mb:.0f}, {load.memory_after_mb:.0f} MB "
            f"(+{load.growth_mb:.0f} MB at most)",
        ),
        *(
            (
                f"honest p{percent}, quiet and under attack",
                f"{percentile_ms(load.quiet, percent):.1f} and "
                f"{percentile_ms(load.under_attack, percent):.1f} ms ({load.slowdown(percent):.1f} ×)",
            )
            for percent in (50, 99)
        ),
        ("honest requests, quiet and under attack", f"{len(load.quiet)} and {len(load.under_attack)}"),
        ("result", "; ".join(load.failures) or "holds"),
    ]
    lines = [
        f"## {load.database}\n",
        f"Seed {load.seed}, up to {load.rate_per_s:g} attacks per second, {load.duration_s:.0f} s.\n",
        "| | |\n|---|---|",
        *(f"| {name} | {value} |" for name, value in rows),
        "",
        *_status_table(load.toll),
        "",
    ]
    return "\n".join(lines)


def _status_table(toll: Toll) -> list[str]:
    statuses = sorted({status for _, status in toll.statuses})
    names = {WAITING: "waited", 0: "none"}
    head = " | ".join(names.get(status, str(status)) for status in statuses)
    rows = [
        f"| {kind} | " + " | ".join(str(toll.statuses[kind, status] or "") for status in statuses) + " |"
        for kind in sorted({kind for kind, _ in toll.statuses})
    ]
    return [f"| answers | {head} |", "|---" * (len(statuses) + 1) + "|", *rows]
