import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save, save_file
from torch import nn

from services.errors import ImportRefusedError, NetworkError
from services.learning.devices import to_device
from services.learning.networks import ResidualBlock, build_network, load_parameters, parameters_of
from tests.unit.learning import custom_parts
from tests.unit.learning.digests import digest

CUSTOM = custom_parts.__name__
CIFAR, FASHION, GENERATED = (3, 32, 32), (1, 28, 28), (1, 16, 16)


def build(name: str = "paper-cnn", *, seed: int = 0) -> nn.Module:
    return build_network(name, GENERATED, 10, seed=seed, allowed_imports=("tests",))


@pytest.mark.parametrize(
    ("name", "shape", "millions"),
    [
        ("paper-cnn", CIFAR, 1.15),
        ("paper-cnn", FASHION, 0.80),
        ("paper-cnn-stated-size", CIFAR, 4.583),
        ("paper-cnn-stated-size", FASHION, 3.600),
        ("paper-cnn-gn", CIFAR, 1.15),
        ("paper-cnn-gn", FASHION, 0.80),
        ("resnet18-gn", CIFAR, 11.174),
        ("resnet18-gn", GENERATED, 11.173),
    ],
)
def test_the_networks_have_the_stated_number_of_parameters(
    name: str, shape: tuple[int, ...], millions: float
) -> None:
    network = build_network(name, shape, 10, seed=0)
    count = sum(parameter.numel() for parameter in network.parameters())
    digits = 2 if millions < 2 else 3
    assert round(count / 1e6, digits) == millions
    network.eval()
    assert network(torch.zeros(2, *shape)).shape == (2, 10)


def test_the_networks_are_made_of_the_layers_that_the_paper_names() -> None:
    network = build_network("paper-cnn", CIFAR, 10, seed=0)
    convolutions = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d)]
    assert [layer.out_channels for layer in convolutions] == [32, 32, 64, 64, 128, 128]
    assert {layer.kernel_size for layer in convolutions} == {(3, 3)}
    assert sum(isinstance(layer, nn.BatchNorm2d) for layer in network.modules()) == 6
    assert sum(isinstance(layer, nn.MaxPool2d) for layer in network.modules()) == 3
    dense = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
    assert [layer.out_features for layer in dense] == [382, 192, 10]


@pytest.mark.parametrize("name", ["paper-cnn-gn", "resnet18-gn"])
def test_group_normalisation_treats_each_sample_by_itself(name: str) -> None:
    network = build_network(name, GENERATED, 10, seed=0)
    assert not any(isinstance(layer, nn.BatchNorm2d) for layer in network.modules())
    assert not list(network.buffers())
    inputs = torch.randn(3, *GENERATED, generator=torch.Generator().manual_seed(1))
    network.train()
    together = network(inputs)
    alone = torch.cat([network(image[None]) for image in inputs])
    torch.testing.assert_close(alone, together, rtol=1e-3, atol=1e-5)
    network.eval()
    torch.testing.assert_close(network(inputs), together, rtol=1e-3, atol=1e-5)


def test_the_group_norm_variant_differs_from_the_papers_network_in_the_normalisation_only() -> None:
    layers = [
        [type(layer) for layer in build_network(name, FASHION, 10, seed=0).children()]
        for name in ("paper-cnn", "paper-cnn-gn")
    ]
    assert [nn.GroupNorm if kind is nn.BatchNorm2d else kind for kind in layers[0]] == layers[1]


def test_the_blocks_of_the_resnet_add_their_input() -> None:
    block = ResidualBlock(8, 8, 1)
    inputs = torch.randn(2, 8, 4, 4, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.zero_()
    assert torch.equal(block(inputs), inputs.relu())
    assert ResidualBlock(8, 16, 2)(inputs).shape == (2, 16, 2, 2)


@pytest.mark.parametrize("name", ["paper-cnn", "paper-cnn-gn", "resnet18-gn", f"{CUSTOM}:Perceptron"])
def test_the_seed_alone_decides_the_parameters(name: str) -> None:
    torch.manual_seed(1)
    first = digest(parameters_of(build(name)))
    torch.manual_seed(2)
    assert digest(parameters_of(build(name))) == first
    assert digest(parameters_of(build(name, seed=1))) != first


def test_what_a_module_draws_on_import_does_not_change_the_network() -> None:
    here = digest(parameters_of(build(f"{CUSTOM}:Perceptron")))  # the module is imported already
    program = (
        "from tests.unit.learning.digests import digest\n"
        "from services.learning.networks import ResidualBlock, build_network, parameters_of\n"
        f"net = build_network('{CUSTOM}:Perceptron', (1, 16, 16), 10, seed=0, allowed_imports=('tests',))\n"
        "print(digest(parameters_of(net)))"
    )
    there = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, check=True, timeout=120, text=True
    )
    assert there.stdout.strip() == here


def test_an_unknown_network_is_refused_with_the_names_that_there_are() -> None:
    with pytest.raises(
        NetworkError,
        match=r"'lenet'; there are paper-cnn, paper-cnn-stated-size, paper-cnn-gn, resnet18-gn, and",
    ):
        build("lenet")


def test_images_that_are_too_small_are_refused() -> None:
    with pytest.raises(NetworkError, match="images of 7×32 are too small for 3 poolings"):
        build_network("paper-cnn", (1, 7, 32), 10, seed=0)
    build_network("paper-cnn", (1, 8, 8), 10, seed=0)


@pytest.mark.parametrize("shape", [(4,), (28, 28), (3, 8, 8, 8)])
def test_inputs_that_are_no_images_are_refused_with_advice(shape: tuple[int, ...]) -> None:
    for name in ("paper-cnn", "resnet18-gn"):
        with pytest.raises(NetworkError, match=r"\(channels, height, width\); name your own network"):
            build_network(name, shape, 10, seed=0)


def test_a_network_of_ones_own_has_to_be_allowed() -> None:
    with pytest.raises(ImportRefusedError, match="FEDCS_ALLOWED_IMPORTS"):
        build_network(f"{CUSTOM}:Perceptron", GENERATED, 10, seed=0)


def test_a_network_of_ones_own_can_be_used() -> None:
    assert isinstance(build(f"{CUSTOM}:Perceptron"), custom_parts.Perceptron)


def test_what_makes_no_network_is_refused() -> None:
    with pytest.raises(
        NetworkError, match=r"no_network' must return a torch\.nn\.Module, but returned a str"
    ):
        build(f"{CUSTOM}:no_network")
    with pytest.raises(NetworkError, match=r"called without arguments: TypeError: .*'width'"):
        build(f"{CUSTOM}:WithArguments")


def test_parameters_come_back_from_a_file(tmp_path: Path) -> None:
    network = build(seed=1)
    with torch.no_grad():
        for tensor in network.state_dict().values():
            tensor.copy_(torch.randint(1, 9, tensor.shape))
    save_file(parameters_of(network), tmp_path / "model")
    other = build(seed=2)
    load_parameters(other, tmp_path / "model")
    assert digest(parameters_of(other)) == digest(parameters_of(network))
    assert any("running_var" in name for name in parameters_of(network))
    assert any("num_batches_tracked" in name for name in parameters_of(network))


def test_loading_and_training_do_not_write_to_the_file(tmp_path: Path) -> None:
    network = build()
    save_file(parameters_of(network), tmp_path / "model")
    before = (tmp_path / "model").read_bytes()
    load_parameters(network, tmp_path / "model")
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.zero_()
    assert (tmp_path / "model").read_bytes() == before


def test_parameters_are_contiguous_and_stay_when_the_network_changes() -> None:
    network = to_device(build(), torch.device("cpu"))
    parameters = parameters_of(network)
    before = digest(parameters)
    assert all(tensor.is_contiguous() and not tensor.requires_grad for tensor in parameters.values())
    with torch.no_grad():
        for tensor in network.state_dict().values():
            tensor.add_(1)
    assert digest(parameters) == before


def test_parameters_that_a_network_uses_twice_can_be_kept(tmp_path: Path) -> None:
    network = build(f"{CUSTOM}:Tied")
    (tmp_path / "model").write_bytes(save(parameters_of(network)))
    assert set(load_file(tmp_path / "model")) == {"first.weight", "second.weight"}
    other = build(f"{CUSTOM}:Tied", seed=1)
    load_parameters(other, tmp_path / "model")
    assert torch.equal(other.get_parameter("second.weight"), network.get_parameter("first.weight"))


@pytest.mark.parametrize("fault", ["missing", "unexpected", "shape"])
def test_a_model_of_another_network_is_refused(tmp_path: Path, fault: str) -> None:
    tensors = parameters_of(build())
    name = next(iter(tensors))
    if fault == "missing":
        del tensors[name]
    elif fault == "unexpected":
        tensors["another"] = torch.ones(1)
    else:
        tensors[name] = torch.ones(1)
    save_file(tensors, tmp_path / "model")
    with pytest.raises(NetworkError, match="do not fit the network") as refused:
        load_parameters(build(), tmp_path / "model")
    assert ("another" if fault == "unexpected" else name) in str(refused.value)
