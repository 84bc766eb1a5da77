import numpy as np
import pytest
import torch

from services.learning.datasets import CLASSES, SIDE, DataSet, generate


@pytest.fixture(scope="module")
def data() -> DataSet:
    return generate()


def test_the_samples_are_images_of_bytes_with_a_label_each(data: DataSet) -> None:
    assert data.classes == CLASSES
    assert data.input_shape == (1, SIDE, SIDE)
    for samples in (data.training, data.validation):
        assert samples.inputs.dtype == torch.uint8
        assert samples.inputs.shape == (len(samples), 1, SIDE, SIDE)
        assert samples.labels.dtype == torch.int64
        assert samples.labels.shape == (len(samples),)
    assert len(data.training) > len(data.validation) >= 1000


def test_all_classes_have_nearly_as_many_samples(data: DataSet) -> None:
    for samples in (data.training, data.validation):
        counts = torch.bincount(samples.labels, minlength=CLASSES)
        assert len(counts) == CLASSES
        assert counts.min() > 0.75 * len(samples) / CLASSES
        assert counts.max() < 1.25 * len(samples) / CLASSES


def test_no_sample_comes_twice_nor_in_both_parts(data: DataSet) -> None:
    images = torch.cat([data.training.inputs, data.validation.inputs]).flatten(1).numpy()
    assert len(np.unique(images, axis=0)) == len(images)


def test_bytes_are_seldom_cut_off(data: DataSet) -> None:
    values = data.training.inputs
    assert ((values == 0) | (values == 255)).double().mean() < 0.2
