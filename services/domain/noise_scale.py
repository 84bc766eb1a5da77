"""The gradient noise scale B, counted in clients: how many clients average out the noise of their updates.

With the steps d_i of m clients, S = mean |d_i|² and G = |mean d_i|², ``trace = (S - G)·m/(m - 1)`` estimates
the noise of one client and ``signal = G - trace/m`` what the clients have in common; B = trace/signal
(McCandlish et al., 2018).

What clients have in common is not all progress: they also undo the error that earlier rounds' noise left in
the model, most of all where each client has few classes. If each round undoes a share c of the error, and N
is the noise of a round's step, this adds c·N/(2 - c) to the signal and takes as much from the inner product
of consecutive steps, for any c. So the mean of the two is the progress (docs/adr/0035).
"""

import math
from dataclasses import dataclass

FIRST_NOISE_SCALE = 4.0
"""Before anything is measured."""
LEAST, MOST = 0.5, 60.0
_NEWEST = 0.3
"""The weight of the newest round in the averages."""


@dataclass(frozen=True)
class StepMoments:
    """What is measured of the steps of a round's clients: parameters only, no running statistics."""

    clients: int
    mean_square: float
    """The mean of the squared lengths."""
    square_of_mean: float
    """The squared length of the mean."""
    product: float | None = None
    """The inner product of the mean with the step that the round before made; none in the first round."""

    @property
    def trace(self) -> float:
        """The noise of one client."""
        return max(self.mean_square - self.square_of_mean, 0.0) * self.clients / (self.clients - 1)

    @property
    def signal(self) -> float:
        """What the clients have in common; below 0 by chance."""
        return self.square_of_mean - self.trace / self.clients


@dataclass(frozen=True)
class NoiseEstimate:
    """What was measured, averaged over the rounds; stored with a version of the model."""

    trace: float
    signal: float
    product: float | None = None

    @property
    def progress(self) -> float:
        """The squared length of the step that would be made without noise."""
        return self.signal if self.product is None else (self.signal + self.product) / 2

    @property
    def noise_scale(self) -> float:
        """B, in clients."""
        if self.progress <= 0 or self.trace >= MOST * self.progress:
            return MOST
        return max(self.trace / self.progress, LEAST)


def update_estimate(before: NoiseEstimate | None, moments: StepMoments) -> NoiseEstimate | None:
    """The estimate with one more round; a round of one client tells nothing."""
    measured = (moments.mean_square, moments.square_of_mean, moments.product or 0.0)
    if moments.clients < 2 or not all(map(math.isfinite, measured)):
        return before
    if before is None:
        return NoiseEstimate(moments.trace, moments.signal, moments.product)
    product = before.product if moments.product is None else moments.product
    if before.product is not None and moments.product is not None:
        product = _average(before.product, moments.product)
    return NoiseEstimate(
        _average(before.trace, moments.trace), _average(before.signal, moments.signal), product
    )


def _average(before: float, newest: float) -> float:
    return (1 - _NEWEST) * before + _NEWEST * newest
