"""Client Selection: the policies, one file each.

To add one, write its class and name it in ``POLICIES``; the API, the command line and the forms take it from
there.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum

import numpy as np

from services.domain.parameters import with_parameters
from services.domain.selection.baselines import FL, FedLim
from services.domain.selection.fedcs import FedCS
from services.domain.selection.optimal import Optimal
from services.domain.selection.policy import Candidates, ClientHistory, SelectionPolicy

__all__ = [
    "POLICIES",
    "Candidates",
    "ClientHistory",
    "NotSelectedReason",
    "SelectionPolicy",
    "make_policy",
    "policy_rng",
]

POLICIES: Mapping[str, type[SelectionPolicy]] = {
    "fedcs": FedCS,
    "optimal": Optimal,
    "fedlim": FedLim,
    "fl": FL,
}


class NotSelectedReason(StrEnum):
    """Why a candidate was not selected."""

    DEADLINE = "DEADLINE"
    """The round would miss its deadline with this client."""
    NO_DATA = "NO_DATA"
    """It has no samples."""
    TOO_SLOW = "TOO_SLOW"
    """Without a deadline: the round would exceed the longest duration, about 18 years."""
    NOT_CHOSEN = "NOT_CHOSEN"
    """It would fit, but the policy chose others."""


def make_policy(name: str, parameters: Mapping[str, object]) -> SelectionPolicy:
    """The policy of this name with these parameters; ``ParameterError`` if it does not have them."""
    return with_parameters(POLICIES[name], parameters)


def policy_rng(seed: int | Sequence[int]) -> np.random.Generator:
    """The random generator of a policy, independent of the one that draws the candidates."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(0,)))
