from collections.abc import Iterator

import pytest
import torch

from services.domain.tasks import AggregationRule
from services.learning.rules import RULES
from services.learning.rules.rule import Rule
from services.learning.rules.uniform import UniformAverage
from services.learning.rules.weighted import WeightedAverage


def shares(rule: type[Rule], data_samples: list[int]) -> list[float]:
    """What each client's step counts."""
    combined = rule(data_samples).combine(torch.eye(len(data_samples), dtype=torch.float64))
    return [float(share) for share in combined]


def test_each_rule_of_a_task_is_there() -> None:
    assert set(RULES) == set(AggregationRule)
    assert RULES[AggregationRule.WEIGHTED] is WeightedAverage
    assert RULES[AggregationRule.UNIFORM] is UniformAverage


@pytest.mark.parametrize(
    ("data_samples", "counts"),
    [
        ([100], [1]),
        ([100, 300], [100, 300]),
        ([100, 1000], [100, 1000]),
        ([100, 1001], [100, 1000]),
        ([10**12, 10**12], [1, 1]),
        ([1, 1, 10**12], [1, 1, 10]),
        ([1, 5, 7, 10**12], [1, 5, 7, 50]),  # the lower of the two in the middle
        ([10**12, 1], [10, 1]),
    ],
)
def test_clients_count_by_their_samples_up_to_ten_times_the_median(
    data_samples: list[int], counts: list[int]
) -> None:
    expected = [count / sum(counts) for count in counts]
    assert shares(WeightedAverage, data_samples) == pytest.approx(expected, rel=1e-6)


def test_clients_count_the_same_in_the_plain_average() -> None:
    assert shares(UniformAverage, [1, 10, 10**12, 7]) == pytest.approx([0.25] * 4)


@pytest.mark.parametrize("rule", RULES.values())
def test_values_may_come_in_the_same_room_and_are_not_written_to(rule: type[Rule]) -> None:
    room = torch.zeros(2, dtype=torch.float64)

    def values() -> Iterator[torch.Tensor]:
        for place in range(3):
            room.copy_(torch.tensor([place, 10.0 * place]))
            yield room
            assert room.tolist() == [place, 10.0 * place]

    assert rule([5, 5, 5]).combine(values()).tolist() == pytest.approx([1.0, 10.0])


@pytest.mark.parametrize("rule", RULES.values())
def test_averages_are_in_double_precision(rule: type[Rule]) -> None:
    values = [torch.tensor([number], dtype=torch.float64) for number in (1.0, 1.0 + 2**-40)]
    assert float(rule([7, 7]).combine(values)) == 1.0 + 2**-41
