"""A data set that is made, not read: the same samples everywhere, for tests and demonstrations offline.

Each class has a few patterns of its own. A sample is one of them, moved a little, with a pattern of another
class laid faintly over it and much noise on top: a network has to see many before it tells them apart.
"""

import numpy as np
import numpy.typing as npt
import torch

from services.learning.samples import DataSet, Samples

CLASSES = 10
SIDE = 16
_TRAINING = 6_000
_VALIDATION = 2_000
_PATTERNS_PER_CLASS = 3
_LARGEST_MOVE = 2
_OTHERS = 0.5
_NOISE = 0.8
_SEED = 20190520


def generate() -> DataSet:
    """Make the data set."""
    rng = np.random.default_rng(_SEED)
    patterns = _smooth(rng.standard_normal((CLASSES, _PATTERNS_PER_CLASS, SIDE, SIDE)))
    return DataSet(_draw(rng, patterns, _TRAINING), _draw(rng, patterns, _VALIDATION), CLASSES)


def _smooth(fields: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Random fields without fine detail, each of variance 1."""
    for _ in range(3):
        for axis in (-2, -1):
            fields = (np.roll(fields, 1, axis) + fields + np.roll(fields, -1, axis)) / 3
    spread: npt.NDArray[np.float64] = fields.std(axis=(-2, -1), keepdims=True)
    return fields / spread


def _draw(rng: np.random.Generator, patterns: npt.NDArray[np.float64], count: int) -> Samples:
    labels = rng.integers(CLASSES, size=count)
    others = (labels + rng.integers(1, CLASSES, size=count)) % CLASSES
    own, other = (
        patterns[of_class, rng.integers(_PATTERNS_PER_CLASS, size=count)] for of_class in (labels, others)
    )
    images = own + _OTHERS * other + _NOISE * rng.standard_normal(own.shape)
    moves = rng.integers(-_LARGEST_MOVE, _LARGEST_MOVE + 1, size=(count, 2))
    moved = np.stack([np.roll(image, move, (0, 1)) for image, move in zip(images, moves, strict=True)])
    inputs = np.clip(np.rint(128 + 32 * moved), 0, 255).astype(np.uint8)
    return Samples(torch.from_numpy(inputs[:, None]), torch.from_numpy(labels))
