"""The paper's baselines: FL, the original protocol without a deadline, and FedLim, with one."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from services.domain.resources import Positions
from services.domain.selection.policy import Candidates, SelectionPolicy


@dataclass(frozen=True)
class FL(SelectionPolicy):
    """Takes every candidate and waits for all of them."""

    summary: ClassVar[str] = "everyone in random order, no deadline"
    honours_deadline: ClassVar[bool] = False

    def select(self, candidates: Candidates, available_ns: int, rng: np.random.Generator) -> Positions:
        """All of them, in random order."""
        return rng.permutation(len(candidates))


@dataclass(frozen=True)
class FedLim(SelectionPolicy):
    """Takes clients in random order, each one that still fits."""

    summary: ClassVar[str] = "random order, those that fit"

    def select(self, candidates: Candidates, available_ns: int, rng: np.random.Generator) -> Positions:
        """Those that fit, in random order."""
        shuffled = rng.permutation(len(candidates))
        times = candidates.times.of(shuffled)
        columns = (times.update_ns.tolist(), times.upload_ns.tolist(), times.download_ns.tolist())
        distribution_ns = elapsed_ns = 0
        admitted: list[int] = []
        for turn, (update_ns, upload_ns, download_ns) in enumerate(zip(*columns, strict=True)):
            new_elapsed_ns = max(elapsed_ns, update_ns) + upload_ns
            new_distribution_ns = max(distribution_ns, download_ns)
            if new_distribution_ns + new_elapsed_ns < available_ns:
                distribution_ns, elapsed_ns = new_distribution_ns, new_elapsed_ns
                admitted.append(turn)
        return shuffled[admitted]
