from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from services.learning.devices import to_device
from services.learning.local_update import Hyperparameters, update_locally
from services.learning.networks import parameters_of
from tests.unit.learning.digests import digest

RECIPE = Hyperparameters(epochs=2, batch_size=8, learning_rate=0.05)


def new_network() -> nn.Module:
    torch.manual_seed(11)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.ReLU(), nn.BatchNorm2d(4), nn.Dropout(0.3), nn.Flatten(), nn.Linear(64, 3)
    )


def samples(count: int = 21) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(count, 2, 6, 6, generator=generator)
    return inputs, torch.randint(3, (count,), generator=generator)


def train(
    recipe: Hyperparameters = RECIPE, *, count: int = 21, seed: int = 3
) -> tuple[nn.Module, list[float]]:
    network, fractions = new_network(), list[float]()
    update_locally(network, *samples(count), recipe, seed=seed, after_batch=fractions.append)
    return network, fractions


def train_by_hand(recipe: Hyperparameters, sizes: list[int], seed: int) -> nn.Module:
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
        (Hyperparameters(3, 1000, 0.1), [21]),
        (Hyperparameters(1, 1, 0.001), [1, 1, 1]),
    ],
)
def test_a_local_update_is_plain_sgd(recipe: Hyperparameters, sizes: list[int]) -> None:
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
    one_batch = Hyperparameters(epochs=1, batch_size=1000, learning_rate=0.01)
    start = new_network().get_parameter("5.weight")
    steps = [
        train(Hyperparameters(one_batch.epochs, one_batch.batch_size, rate))[0].get_parameter("5.weight")
        - start
        for rate in (0.01, 0.04)
    ]
    torch.testing.assert_close(steps[1], 4 * steps[0], rtol=0, atol=1e-6)
    assert steps[0].norm() > 1e-4


@pytest.mark.parametrize(
    ("recipe", "count", "fractions"),
    [
        (Hyperparameters(2, 4, 0.1), 10, [0.2, 0.35, 0.5, 0.7, 0.85, 1.0]),
        (Hyperparameters(2, 100, 0.1), 10, [0.5, 1.0]),
        (Hyperparameters(1, 5, 0.1), 10, [0.5, 1.0]),
    ],
)
def test_the_part_that_is_done_is_told_after_each_batch(
    recipe: Hyperparameters, count: int, fractions: list[float]
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


class PriorCorrected(nn.Module):
    """Cross entropy whose logits are raised by the log share of their class, of 0 to 3 samples each."""

    def forward(self, outputs: Tensor, labels: Tensor) -> Tensor:
        _, all_labels = samples()
        shares = [
            (1 + sum(int(label) == c for label in all_labels)) / (len(all_labels) + 3) for c in range(3)
        ]
        scaled = outputs.exp() * torch.tensor(shares)
        return -(scaled[range(len(labels)), labels] / scaled.sum(1)).log().mean()


@pytest.mark.parametrize(
    "terms",
    [
        {"gradient_clip_norm": 0.5},
        {"gradient_clip_norm": 1e9},
        {"local_momentum": 0.9},
        {"weight_decay": 0.1},
        {"proximal_mu": 0.5},
        {"calibrated_loss": True},
        {
            "gradient_clip_norm": 0.5,
            "local_momentum": 0.7,
            "weight_decay": 0.1,
            "proximal_mu": 0.5,
            "calibrated_loss": True,
        },
    ],
    ids="+".join,
)
def test_the_terms_of_local_training_are_those_of_torch(terms: dict[str, Any]) -> None:
    recipe = replace(RECIPE, **terms)
    network = to_device(new_network(), torch.device("cpu")).train()
    received = [parameter.detach().clone() for parameter in network.parameters()]
    inputs, labels = samples()
    optimizer = torch.optim.SGD(
        network.parameters(),
        lr=recipe.learning_rate,
        momentum=recipe.local_momentum,
        weight_decay=recipe.weight_decay,
    )
    loss_of = PriorCorrected() if recipe.calibrated_loss else nn.CrossEntropyLoss()
    torch.manual_seed(3)
    for _ in range(recipe.epochs):
        for batch in torch.tensor_split(torch.randperm(21), 3):
            distance = sum(
                ((parameter - start) ** 2).sum()
                for parameter, start in zip(network.parameters(), received, strict=True)
            )
            optimizer.zero_grad()
            loss = loss_of(network(inputs[batch]), labels[batch]) + recipe.proximal_mu / 2 * distance
            torch.autograd.backward(loss)
            if recipe.gradient_clip_norm is not None:
                nn.utils.clip_grad_norm_(network.parameters(), recipe.gradient_clip_norm)
            optimizer.step()
    trained, plain = parameters_of(train(recipe)[0]), parameters_of(train()[0])
    for name, expected in parameters_of(network).items():
        torch.testing.assert_close(trained[name], expected, rtol=1e-4, atol=1e-6)
    changes = terms != {"gradient_clip_norm": 1e9}
    assert (digest(trained) != digest(plain)) == changes


def test_a_large_proximal_term_keeps_the_received_model() -> None:
    start = parameters_of(new_network())["5.weight"]
    moved = [
        float((parameters_of(train(replace(RECIPE, proximal_mu=mu))[0])["5.weight"] - start).norm())
        for mu in (0.0, 15.0)
    ]
    assert moved[1] < 0.5 * moved[0]


def test_a_calibrated_loss_does_not_unlearn_classes_that_the_client_lacks() -> None:
    inputs, _ = samples()
    labels = torch.tensor([0, 1] * 10 + [0])
    biases = []
    for calibrated in (False, True):
        network = new_network()
        recipe = replace(RECIPE, epochs=20, calibrated_loss=calibrated)
        update_locally(network, inputs, labels, recipe, seed=3, after_batch=lambda _: None)
        change = parameters_of(network)["5.bias"] - parameters_of(new_network())["5.bias"]
        biases.append(float(change[2]))
    plain, corrected = biases
    assert plain < 0
    assert abs(corrected) < 0.5 * abs(plain)


@pytest.mark.parametrize(
    "terms",
    [{"local_momentum": 0.9}, {"proximal_mu": 0.1}, {"weight_decay": 0.1}, {"gradient_clip_norm": 0.1}],
    ids="+".join,
)
def test_parameters_without_a_gradient_stay(terms: dict[str, Any]) -> None:
    network = new_network()
    network.register_parameter("unused", nn.Parameter(torch.ones(3)))
    update_locally(network, *samples(), replace(RECIPE, **terms), seed=3, after_batch=lambda _: None)
    assert torch.equal(network.get_parameter("unused"), torch.ones(3))
