"""One seed for each thing that is drawn, all derived from the task's: equal seeds, equal results."""

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """What a seed is for; two purposes never share one."""

    MODEL = 0
    PARTITION = 1
    TRAINING = 2


def derive_seed(task_seed: int, purpose: Purpose, *numbers: int) -> int:
    """A seed of 63 bits for the model, for a device's part of the data, or for its training in a round."""
    sequence = np.random.SeedSequence(task_seed, spawn_key=(purpose, *numbers))
    return int(sequence.generate_state(1, np.uint64)[0] >> np.uint64(1))
