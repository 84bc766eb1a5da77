"""Client Selection (step 3 of Protocol 2 in the paper): from resource reports to a schedule.

Estimate what each candidate needs, let the policy choose, schedule the chosen, explain the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from services.domain.nanoseconds import to_ns
from services.domain.optimum import optimal_order
from services.domain.resources import (
    EstimatedTimes,
    LocalWork,
    Positions,
    ResourceReports,
    estimate_times,
)
from services.domain.schedule import Schedule, build_schedule
from services.domain.selection import LeftOutReason, Selection, SelectionPolicy
from services.errors import ScheduleTooLongError


@dataclass(frozen=True)
class RoundTerms:
    """What the operator sets for a round."""

    work: LocalWork
    round_deadline_s: float
    selection_s: float = 0.0
    aggregation_s: float = 0.0

    @property
    def available_ns(self) -> int:
        """What the deadline leaves for distribution, updates and uploads."""
        return to_ns(self.round_deadline_s) - to_ns(self.selection_s) - to_ns(self.aggregation_s)


@dataclass(frozen=True)
class LeftOut:
    """A candidate that was not selected, and what it would add to the round as planned."""

    position: int
    reason: LeftOutReason
    cost_ns: int | None


@dataclass(frozen=True)
class RoundPlan:
    """The outcome of Client Selection."""

    times: EstimatedTimes
    """Of every candidate."""
    schedule: Schedule
    left_out: list[LeftOut]
    most_clients: int
    """How many clients any selection could get into this round at the most."""


def select_clients(
    reports: ResourceReports, terms: RoundTerms, policy: SelectionPolicy, seed: int | Sequence[int]
) -> RoundPlan:
    """Select from the candidates with data, and schedule the selected."""
    times = estimate_times(reports, terms.work)
    with_data = np.flatnonzero(reports.data_samples > 0)
    eligible = times.of(with_data)
    selection = policy.select(eligible, terms.available_ns, np.random.default_rng(seed))
    order = with_data[selection.order]
    if times.of(order).never_done():
        raise ScheduleTooLongError(
            f"the {len(order)} clients that {policy.name!r} takes would need more than 18 years to upload"
        )
    return RoundPlan(
        times=times,
        schedule=build_schedule(order, times),
        left_out=_explain(selection, with_data, len(reports)),
        most_clients=len(optimal_order(eligible, terms.available_ns)),
    )


def _explain(selection: Selection, with_data: Positions, candidates: int) -> list[LeftOut]:
    """Say of every candidate left out why, in the order they came."""
    costs = None if selection.cost_ns is None else selection.cost_ns.tolist()
    left_out = [
        LeftOut(position, reason, None if costs is None else costs[eligible])
        for reason, positions in selection.left_out.items()
        for eligible, position in zip(positions.tolist(), with_data[positions].tolist(), strict=True)
    ]
    without_data = np.setdiff1d(np.arange(candidates), with_data, assume_unique=True)
    left_out += [LeftOut(position, LeftOutReason.NO_DATA, None) for position in without_data.tolist()]
    return sorted(left_out, key=lambda one: one.position)
