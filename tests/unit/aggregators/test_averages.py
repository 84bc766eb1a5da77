import pytest

from services.aggregators import AGGREGATORS
from services.aggregators.uniform import UniformAverage
from services.aggregators.weighted import WeightedAverage
from services.domain.parameters import ParameterError, parameters_of, with_parameters


def test_the_averages_are_registered_under_their_names() -> None:
    assert AGGREGATORS["weighted"] is WeightedAverage
    assert AGGREGATORS["uniform"] is UniformAverage


@pytest.mark.parametrize("name", AGGREGATORS)
def test_every_aggregator_has_a_sentence_about_itself_and_its_parameters(name: str) -> None:
    kind = AGGREGATORS[name]
    sentences = [kind.summary, *(item.description for item in parameters_of(kind))]
    assert all(text.strip() == text and text.endswith(".") for text in sentences)
    defaults = {item.name: item.default for item in parameters_of(kind)}
    assert with_parameters(kind, defaults) == with_parameters(kind, {})
    with pytest.raises(ParameterError, match="no_such: unknown parameter"):
        with_parameters(kind, {"no_such": 1})


@pytest.mark.parametrize(
    ("data_samples", "weights"),
    [
        ([100], [100]),
        ([100, 300], [100, 300]),
        ([100, 301], [100, 300]),
        ([10**9, 10**9], [10**9, 10**9]),
        ([1, 1, 10**9], [1, 1, 3]),
        ([1, 5, 7, 10**9], [1, 5, 7, 15]),  # the lower of the two in the middle
        ([10**9, 1], [3, 1]),
    ],
)
def test_clients_count_by_their_samples_up_to_three_times_the_median(
    data_samples: list[int], weights: list[int]
) -> None:
    assert WeightedAverage().weights(data_samples) == weights


def test_the_cap_can_be_moved_and_switched_off() -> None:
    assert WeightedAverage(weight_cap_factor=1.5).weights([3, 3, 3, 90]) == [3, 3, 3, 4]
    assert WeightedAverage(weight_cap_factor=None).weights([1, 1, 10**9]) == [1, 1, 10**9]
    for wrong in (0.99, -1, "3", True, float("nan"), float("inf")):
        with pytest.raises(ParameterError, match="weight_cap_factor: must be"):
            with_parameters(WeightedAverage, {"weight_cap_factor": wrong})


def test_clients_count_the_same_in_the_plain_average() -> None:
    assert UniformAverage().weights([1, 10, 10**9, 7]) == [1, 1, 1, 1]
