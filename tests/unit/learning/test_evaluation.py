import math

import pytest
import torch
from torch import nn

from services.domain.tasks import Score
from services.learning.datasets import DataSet, Samples
from services.learning.evaluation import evaluate
from services.learning.networks import parameters_of
from tests.unit.learning.digests import digest

CPU = torch.device("cpu")


def data_of(count: int) -> DataSet:
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randint(256, (count, 1, 4, 4), generator=generator, dtype=torch.uint8)
    labels = torch.randint(3, (count,), generator=generator)
    training = Samples(inputs.flip(0), labels.flip(0))
    return DataSet(training, Samples(inputs, labels), classes=3)


def new_network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(16, 3)
    )


def measure(data: DataSet, part: int = 0, parts: int = 1, network: nn.Module | None = None) -> Score:
    return evaluate(
        network or new_network(), data, part=part, parts=parts, device=CPU, after_batch=lambda _: None
    )


@pytest.mark.parametrize("count", [1, 500, 501, 1203])
def test_the_score_is_that_of_one_sample_after_another(count: int) -> None:
    data, network = data_of(count), new_network().eval()
    correct, loss = 0, 0.0
    with torch.no_grad():
        for image, label in zip(data.validation.inputs, data.validation.labels, strict=True):
            logits = network(data.prepare(image[None], CPU))[0].double()
            correct += int(logits.argmax() == label)
            loss -= float(torch.log_softmax(logits, 0)[label])
    score = measure(data)
    assert (score.samples, score.correct) == (count, correct)
    assert score.loss_sum == pytest.approx(loss, rel=1e-5)


@pytest.mark.parametrize(("count", "parts"), [(1203, 1), (1203, 2), (1203, 4), (1203, 7), (50, 50)])
def test_the_parts_add_up_to_the_whole(count: int, parts: int) -> None:
    data = data_of(count)
    whole = measure(data)
    scores = [measure(data, part, parts) for part in range(parts)]
    assert sum(score.samples for score in scores) == whole.samples == count
    assert sum(score.correct for score in scores) == whole.correct
    losses = [score.loss_sum for score in scores if score.loss_sum is not None]
    assert len(losses) == parts
    assert math.fsum(losses) == pytest.approx(whole.loss_sum, rel=1e-5)
    assert max(score.samples for score in scores) - min(score.samples for score in scores) <= 1


def test_of_more_parts_than_samples_some_are_empty() -> None:
    data = data_of(3)
    scores = [measure(data, part, 5) for part in range(5)]
    assert sorted(score.samples for score in scores) == [0, 0, 1, 1, 1]
    assert sum(score.correct for score in scores) == measure(data).correct
    assert Score(samples=0, correct=0, loss_sum=0.0) in scores


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_a_model_that_diverged_has_no_loss(number: float) -> None:
    network = new_network()
    nn.init.constant_(network.get_parameter("5.bias"), number)
    score = measure(data_of(20), network=network)
    assert score.loss_sum is None
    assert score.samples == 20


def test_neither_the_model_nor_the_data_change() -> None:
    network = nn.Sequential(nn.ReLU(inplace=True), *new_network().children()).train()
    data = data_of(20)
    floats = DataSet(data.training, Samples(torch.randn(20, 1, 4, 4), data.validation.labels), 3)
    before = digest(parameters_of(network)), digest({"inputs": floats.validation.inputs})
    first = measure(floats, network=network)
    assert (digest(parameters_of(network)), digest({"inputs": floats.validation.inputs})) == before
    assert measure(floats, network=network) == first


def test_the_part_that_is_done_is_told_after_each_batch() -> None:
    told = list[float]()
    evaluate(new_network(), data_of(2400), part=1, parts=2, device=CPU, after_batch=told.append)
    assert told == pytest.approx([place / 6 for place in range(1, 7)])
    assert told[-1] == 1.0


def test_measuring_ends_when_it_is_told_to() -> None:
    def stop(_: float) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        evaluate(new_network(), data_of(20), part=0, parts=1, device=CPU, after_batch=stop)
