"""The networks and data sets that come with the service, by name; ``services.learning`` implements them."""

from collections.abc import Mapping

NETWORKS: Mapping[str, str] = {
    "paper-cnn": "The paper's network as drawn: 1.15 M parameters for CIFAR-10, 0.80 M for Fashion-MNIST.",
    "paper-cnn-stated-size": "The paper's network in the size it states: 4.58 M parameters for CIFAR-10, "
    "3.60 M for Fashion-MNIST.",
    "paper-cnn-gn": "`paper-cnn` with group normalisation (8 groups) in place of batch normalisation: for "
    "devices with data of few classes.",
    "resnet18-gn": "ResNet-18 for small images, with group normalisation (8 groups): 11.2 M parameters.",
}
"""A sentence about each network."""

DATASETS: Mapping[str, str] = {
    "generated": "Ten classes of 16×16 patterns, made by the worker itself: no files are needed.",
    "cifar-10": "CIFAR-10: 50,000 colour images of 32×32 pixels for training, 10,000 for validation.",
    "fashion-mnist": "Fashion-MNIST: 60,000 grey images of 28×28 pixels for training, 10,000 for validation.",
}
"""A sentence about each data set."""


def is_import_path(name: str) -> bool:
    """Whether a name is a path such as ``package.module:Name``, not one of ours."""
    return ":" in name
