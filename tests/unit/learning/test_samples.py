import numpy as np
import torch

from services.learning.datasets import DataSet, Samples

CPU = torch.device("cpu")


def data_of(inputs: torch.Tensor) -> DataSet:
    samples = Samples(inputs, torch.zeros(len(inputs), dtype=torch.int64))
    return DataSet(samples, samples, classes=1)


def random_bytes(*shape: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(3).integers(0, 200, shape, np.uint8))


def test_bytes_are_put_on_the_scale_of_the_training_data_by_channel() -> None:
    training = random_bytes(50, 3, 4, 5)
    training[:, 1] //= 4
    prepared = data_of(training).prepare(training[:7], CPU)
    floats = training.numpy().astype(np.float64)
    mean, deviation = (moment(floats, axis=(0, 2, 3), keepdims=True) for moment in (np.mean, np.std))
    expected = (floats[:7] - mean) / deviation
    assert prepared.dtype == torch.float32
    np.testing.assert_allclose(prepared.numpy(), expected, rtol=0, atol=1e-5)


def test_the_validation_data_do_not_change_the_scale() -> None:
    training = Samples(random_bytes(20, 1, 2, 2), torch.zeros(20))
    bright = Samples(torch.full((5, 1, 2, 2), 255, dtype=torch.uint8), torch.zeros(5))
    with_bright = DataSet(training, bright, 1).prepare(training.inputs, CPU)
    assert torch.equal(with_bright, data_of(training.inputs).prepare(training.inputs, CPU))


def test_a_channel_of_one_value_becomes_zeros() -> None:
    training = torch.full((4, 1, 2, 2), 9, dtype=torch.uint8)
    assert torch.equal(data_of(training).prepare(training, CPU), torch.zeros(4, 1, 2, 2))


def test_rows_of_bytes_are_scaled_by_column() -> None:
    training = random_bytes(30, 6)
    prepared = data_of(training).prepare(training, CPU)
    assert prepared.shape == (30, 6)
    np.testing.assert_allclose(prepared.mean(0).numpy(), np.zeros(6), atol=1e-5)
    np.testing.assert_allclose(prepared.std(0, correction=0).numpy(), np.ones(6), atol=1e-5)


def test_images_come_with_the_channels_last() -> None:
    images = random_bytes(6, 3, 4, 5)
    for inputs in (images, images.to(torch.float32)):
        assert data_of(inputs).prepare(inputs, CPU).is_contiguous(memory_format=torch.channels_last)


def test_other_inputs_stay_as_they_are() -> None:
    for inputs in (torch.randn(4, 3, 5, 5), torch.randn(4, 7), torch.randint(9, (4, 3))):
        prepared = data_of(inputs).prepare(inputs, CPU)
        assert prepared.dtype == inputs.dtype
        assert torch.equal(prepared, inputs)


def test_preparing_does_not_change_the_data() -> None:
    inputs = random_bytes(6, 3, 4, 5)
    before = inputs.clone()
    data_of(inputs).prepare(inputs, CPU)
    assert torch.equal(inputs, before)
    assert data_of(inputs).input_shape == (3, 4, 5)
    assert len(data_of(inputs).training) == 6
