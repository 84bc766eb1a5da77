"""Client Selection: the policies, behind one Protocol.

A policy is one class in this file, named in ``POLICIES``; the API, the command line and the benchmarks take
it from there.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Protocol

import numpy as np

from services.domain.greedy import costs_ns, greedy_order
from services.domain.nanoseconds import Nanoseconds
from services.domain.optimum import optimal_order
from services.domain.resources import EstimatedTimes, Positions
from services.domain.schedule import upload_ends_ns


class LeftOutReason(StrEnum):
    """Why a candidate was not selected."""

    DEADLINE = "DEADLINE"
    """With it the round would not end before its deadline."""
    NO_DATA = "NO_DATA"
    """It holds no samples to train on."""


@dataclass(frozen=True)
class Selection:
    """What a policy decided: who uploads in which order, and why the others do not."""

    order: Positions
    left_out: Mapping[LeftOutReason, Positions]
    cost_ns: Nanoseconds | None = None
    """What each candidate would add to the round as selected, for a policy that goes by cost."""


class SelectionPolicy(Protocol):
    """A way to choose clients for a round."""

    name: ClassVar[str]
    summary: ClassVar[str]

    def select(self, times: EstimatedTimes, available_ns: int, rng: np.random.Generator) -> Selection:
        """Choose; distribution, updates and uploads together have to stay below ``available_ns``."""
        ...


class FedCS:
    """The paper's greedy rule: again and again the client that prolongs the round least."""

    name: ClassVar[str] = "fedcs"
    summary: ClassVar[str] = "greedy, the paper's rule"

    def select(self, times: EstimatedTimes, available_ns: int, rng: np.random.Generator) -> Selection:
        order = greedy_order(times, available_ns)
        selected = times.of(order)
        elapsed_ns = int(upload_ends_ns(selected)[-1]) if len(order) else 0
        costs = costs_ns(times, selected.distribution_ns(), elapsed_ns)
        return Selection(order, _others_miss_deadline(order, times), costs)


class Optimal:
    """The most clients that fit, exactly."""

    name: ClassVar[str] = "optimal"
    summary: ClassVar[str] = "the most clients that fit, exactly"

    def select(self, times: EstimatedTimes, available_ns: int, rng: np.random.Generator) -> Selection:
        order = optimal_order(times, available_ns)
        return Selection(order, _others_miss_deadline(order, times))


class FedLim:
    """The paper's baseline: clients in random order, each admitted if the round still fits with it."""

    name: ClassVar[str] = "fedlim"
    summary: ClassVar[str] = "random order, those that fit"

    def select(self, times: EstimatedTimes, available_ns: int, rng: np.random.Generator) -> Selection:
        shuffled = rng.permutation(len(times))
        updates_ns, uploads_ns = times.update_ns[shuffled], times.upload_ns[shuffled]
        distribution_ns = elapsed_ns = 0
        admitted: list[int] = []
        for turn, (update_ns, upload_ns) in enumerate(
            zip(updates_ns.tolist(), uploads_ns.tolist(), strict=True)
        ):
            new_elapsed_ns = max(elapsed_ns, update_ns) + upload_ns
            new_distribution_ns = max(distribution_ns, upload_ns)
            if new_distribution_ns + new_elapsed_ns < available_ns:
                distribution_ns, elapsed_ns = new_distribution_ns, new_elapsed_ns
                admitted.append(turn)
        order = shuffled[admitted]
        return Selection(order, _others_miss_deadline(order, times))


class FL:
    """The original protocol: every candidate, in random order, however long it takes."""

    name: ClassVar[str] = "fl"
    summary: ClassVar[str] = "everyone in random order, no deadline"

    def select(self, times: EstimatedTimes, available_ns: int, rng: np.random.Generator) -> Selection:
        return Selection(rng.permutation(len(times)), left_out={})


POLICIES: Mapping[str, SelectionPolicy] = {
    policy.name: policy for policy in (FedCS(), Optimal(), FedLim(), FL())
}


def _others_miss_deadline(order: Positions, times: EstimatedTimes) -> Mapping[LeftOutReason, Positions]:
    others = np.ones(len(times), dtype=np.bool_)
    others[order] = False
    return {LeftOutReason.DEADLINE: np.flatnonzero(others)}
