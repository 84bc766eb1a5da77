import pytest
import torch
from torch import Tensor, nn

from services.learning.local_update import Recipe, update_locally
from services.learning.networks import parameters_of
from tests.unit.learning.digests import digest

RECIPE = Recipe(epochs=2, batch_size=8, learning_rate=0.05)


def new_network() -> nn.Module:
    torch.manual_seed(11)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ReLU(), nn.BatchNorm2d(4), nn.Dropout(0.3), nn.Flatten(), nn.Linear(64, 3)
    )


def samples(count: int = 21) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(count, 2, 6, 6, generator=generator)
    return inputs, torch.randint(3, (count,), generator=generator)


def train(recipe: Recipe = RECIPE, *, count: int = 21, seed: int = 3) -> tuple[nn.Module, list[float]]:
    network, fractions = new_network(), list[float]()
    update_locally(network, *samples(count), recipe, seed=seed, after_batch=fractions.append)
    return network, fractions


def train_by_hand(recipe: Recipe, sizes: list[int], seed: int) -> nn.Module:
    count = sum(sizes)
    network = new_network().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    inputs, labels = samples(count)
    network.train()
    torch.manual_seed(seed)
    for _ in range(recipe.epochs):
        order = torch.randperm(count).tolist()
        for size in sizes:
            batch, order = order[:size], order[size:]
            loss = nn.CrossEntropyLoss()(network(inputs[batch]), labels[batch])
            parameters = list(network.parameters())
            with torch.no_grad():
                for parameter, gradient in zip(
                    parameters, torch.autograd.grad(loss, parameters), strict=True
                ):
                    parameter.add_(gradient, alpha=-recipe.learning_rate)
    assert isinstance(network, nn.Module)
    return network


@pytest.mark.parametrize(
    ("recipe", "sizes"),
    [
        (RECIPE, [8, 8, 8]),
        (RECIPE, [7, 7, 7]),  # batches are as equal as can be
        (RECIPE, [6, 6, 5]),
        (RECIPE, [5, 4]),
        (RECIPE, [1]),
        (Recipe(3, 1000, 0.1), [21]),
        (Recipe(1, 1, 0.001), [1, 1, 1]),
    ],
)
def test_a_local_update_is_plain_sgd(recipe: Recipe, sizes: list[int]) -> None:
    trained, _ = train(recipe, count=sum(sizes))
    assert digest(parameters_of(trained)) == digest(parameters_of(train_by_hand(recipe, sizes, 3)))
    assert digest(parameters_of(trained)) != digest(parameters_of(new_network()))


def test_the_seed_alone_decides_the_result() -> None:
    first, _ = train()
    torch.manual_seed(99)
    torch.rand(7)
    assert digest(parameters_of(train()[0])) == digest(parameters_of(first))
    assert digest(parameters_of(train(seed=4)[0])) != digest(parameters_of(first))


def test_the_learning_rate_is_the_length_of_a_step() -> None:
    one_batch = Recipe(epochs=1, batch_size=1000, learning_rate=0.01)
    start = new_network().get_parameter("5.weight")
    steps = [
        train(Recipe(one_batch.epochs, one_batch.batch_size, rate))[0].get_parameter("5.weight") - start
        for rate in (0.01, 0.04)
    ]
    torch.testing.assert_close(steps[1], 4 * steps[0], rtol=0, atol=1e-6)
    assert steps[0].norm() > 1e-4


@pytest.mark.parametrize(
    ("recipe", "count", "fractions"),
    [
        (Recipe(2, 4, 0.1), 10, [0.2, 0.35, 0.5, 0.7, 0.85, 1.0]),
        (Recipe(2, 100, 0.1), 10, [0.5, 1.0]),
        (Recipe(1, 5, 0.1), 10, [0.5, 1.0]),
    ],
)
def test_the_part_that_is_done_is_told_after_each_batch(
    recipe: Recipe, count: int, fractions: list[float]
) -> None:
    _, told = train(recipe, count=count)
    assert told == pytest.approx(fractions)
    assert told[-1] == 1.0


def test_training_ends_when_it_is_told_to() -> None:
    class StopError(Exception):
        pass

    told = list[float]()

    def stop_in_the_middle(done: float) -> None:
        told.append(done)
        if done >= 0.5:
            raise StopError

    with pytest.raises(StopError):
        update_locally(new_network(), *samples(), RECIPE, seed=3, after_batch=stop_in_the_middle)
    assert len(told) == 3
    assert told[-1] == 0.5


def test_a_network_that_was_evaluated_before_is_trained_all_the_same() -> None:
    network = new_network().eval()
    update_locally(network, *samples(), RECIPE, seed=3, after_batch=lambda _: None)
    assert digest(parameters_of(network)) == digest(parameters_of(train()[0]))


def test_the_samples_stay_as_they_are() -> None:
    inputs, labels = samples()
    before = digest({"inputs": inputs, "labels": labels})
    network = nn.Sequential(nn.ReLU(inplace=True), *new_network().children())
    update_locally(network, inputs, labels, RECIPE, seed=3, after_batch=lambda _: None)
    assert digest({"inputs": inputs, "labels": labels}) == before
