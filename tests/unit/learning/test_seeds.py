from hypothesis import given
from hypothesis import strategies as st

from services.learning.datasets import Purpose, derive_seed

numbers = st.lists(st.integers(0, 10**9), max_size=2)


def test_equal_parts_give_equal_seeds() -> None:
    assert derive_seed(5, Purpose.TRAINING, 3, 8) == derive_seed(5, Purpose.TRAINING, 3, 8)


def test_seeds_of_different_things_differ() -> None:
    seeds = {
        derive_seed(task_seed, purpose, *numbers)
        for task_seed in (0, 1, 2**32, 2**53 - 1)
        for purpose in Purpose
        for numbers in ((), (0,), (1,), (10**9,), (0, 0), (0, 1), (1, 0), (1, 1), (2, 10**9), (10**9, 2))
    }
    assert len(seeds) == 4 * len(Purpose) * 10


@given(st.integers(0, 2**53 - 1), st.sampled_from(Purpose), numbers)
def test_seeds_have_63_bits_at_most(task_seed: int, purpose: Purpose, numbers: list[int]) -> None:
    assert 0 <= derive_seed(task_seed, purpose, *numbers) < 2**63


def test_seeds_use_their_63_bits() -> None:
    seeds = [derive_seed(0, Purpose.PARTITION, partition) for partition in range(200)]
    for bit in range(63):
        assert 50 < sum(seed >> bit & 1 for seed in seeds) < 150
