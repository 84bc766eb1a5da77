"""What Flower makes of a sequence of updates, as ``make_flower_vectors.py`` wrote it down."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Arrays: TypeAlias = dict[str, npt.NDArray[np.float32]]

_VECTORS = json.loads(Path(__file__).with_suffix(".json").read_text())
_SHAPES = {"fc.weight": (3, 4), "fc.bias": (4,)}

TOLERANCE = 1e-5


def _arrays(listed: Mapping[str, list[float]]) -> Arrays:
    return {name: np.array(listed[name], np.float32).reshape(shape) for name, shape in _SHAPES.items()}


SAMPLES: list[int] = _VECTORS["samples"]
MODEL = _arrays(_VECTORS["model"])
UPDATES = [[_arrays(update) for update in of_round] for of_round in _VECTORS["updates"]]
"""Of each round, in the order of ``SAMPLES``."""
PARAMETERS: dict[str, dict[str, Any]] = {name: rule["parameters"] for name, rule in _VECTORS["rules"].items()}
"""Of each aggregator."""
MODELS = {name: [_arrays(made) for made in rule["models"]] for name, rule in _VECTORS["rules"].items()}
"""Of each aggregator, the model after each round."""


def assert_same(ours: Mapping[str, npt.NDArray[Any]], expected: Arrays) -> None:
    """Equal to the tolerance."""
    assert ours.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(ours[name], array, rtol=0, atol=TOLERANCE)
