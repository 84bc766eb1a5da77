"""The names that the API knows are those that are implemented."""

from services.domain.builtins import DATASETS, NETWORKS
from services.learning import datasets, networks


def test_the_known_networks_and_data_sets_are_the_implemented_ones() -> None:
    assert set(NETWORKS) == set(networks._NETWORKS)
    assert set(DATASETS) == {datasets.GENERATED, *datasets._TORCHVISION}
