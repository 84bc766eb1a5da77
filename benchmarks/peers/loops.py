"""The network that all frameworks train, and the two training loops."""

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

BATCH_SIZE = 50
LEARNING_RATE = 0.05


def paper_cnn() -> nn.Sequential:
    """The network ``paper-cnn`` for CIFAR-10's images, layer by layer."""

    def convolution(before: int, after: int) -> list[nn.Module]:
        return [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(inplace=True)]

    return nn.Sequential(
        *convolution(3, 32),
        *convolution(32, 32),
        nn.MaxPool2d(2),
        *convolution(32, 64),
        *convolution(64, 64),
        nn.MaxPool2d(2),
        *convolution(64, 128),
        *convolution(128, 128),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2048, 382),
        nn.ReLU(inplace=True),
        nn.Linear(382, 192),
        nn.ReLU(inplace=True),
        nn.Linear(192, 10),
    )


def straightforward(network: nn.Module, inputs: Tensor, labels: Tensor, epochs: int) -> None:
    """A straightforward PyTorch loop."""
    loader = DataLoader(TensorDataset(inputs, labels), batch_size=BATCH_SIZE, shuffle=True)
    loss_of = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(network.parameters(), lr=LEARNING_RATE)
    network.train()
    for _ in range(epochs):
        for batch, batch_labels in loader:
            optimizer.zero_grad()
            loss = loss_of(network(batch), batch_labels)
            loss.backward()
            optimizer.step()


def optimised(network: nn.Module, inputs: Tensor, labels: Tensor, epochs: int) -> None:
    """Our workers' loop: channels last, and batches as slices of one tensor."""
    inputs = inputs.to(memory_format=torch.channels_last)
    network.to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(network.parameters(), lr=LEARNING_RATE)
    for _ in range(epochs):
        for batch in torch.split(torch.randperm(len(labels)), BATCH_SIZE):
            loss = nn.functional.cross_entropy(network(inputs[batch]), labels[batch])
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()


LOOPS = {"straightforward": straightforward, "optimised": optimised}
