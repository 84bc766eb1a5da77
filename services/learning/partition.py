"""Which samples a simulated device holds (section V-B of the paper)."""

import numpy as np
import torch
from torch import Tensor

from services.domain.tasks import PartitionScheme
from services.errors import DataSetError
from services.learning.seeds import Purpose, derive_seed

_CLASSES_OF_A_DEVICE = 2


def draw_partition(
    labels: Tensor, classes: int, scheme: PartitionScheme, *, samples: int, task_seed: int, partition: int
) -> Tensor:
    """The places of ``samples`` samples, drawn from all or from two of the classes; each at most once.

    With more samples, the same device keeps those it had.
    """
    rng = np.random.default_rng(derive_seed(task_seed, Purpose.PARTITION, partition))
    places = np.arange(len(labels))
    if scheme is PartitionScheme.NON_IID:
        own = rng.choice(classes, min(_CLASSES_OF_A_DEVICE, classes), replace=False)
        places = places[np.isin(labels.numpy(), own)]
    if samples > len(places):
        raise DataSetError(
            f"the device reported {samples} samples, and its part of the data set ({scheme.value}) has "
            f"{len(places)}; report fewer"
        )
    return torch.from_numpy(rng.permutation(places)[:samples])
