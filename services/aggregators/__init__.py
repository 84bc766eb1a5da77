"""The aggregators, one file each: what turns a round's updates into the next model."""

from collections.abc import Mapping

from services.aggregators.aggregation import Aggregator
from services.aggregators.fedadam import FedAdam
from services.aggregators.fedyogi import FedYogi
from services.aggregators.krum import Krum
from services.aggregators.median import Median
from services.aggregators.multi_krum import MultiKrum
from services.aggregators.server_momentum import ServerMomentum
from services.aggregators.trimmed_mean import TrimmedMean
from services.aggregators.uniform import UniformAverage
from services.aggregators.weighted import WeightedAverage
from services.domain.parameters import with_parameters

AGGREGATORS: Mapping[str, type[Aggregator]] = {
    "weighted": WeightedAverage,
    "uniform": UniformAverage,
    "median": Median,
    "trimmed-mean": TrimmedMean,
    "krum": Krum,
    "multi-krum": MultiKrum,
    "server-momentum": ServerMomentum,
    "fedadam": FedAdam,
    "fedyogi": FedYogi,
}


def make_aggregator(name: str, parameters: Mapping[str, object]) -> Aggregator:
    """The aggregator of this name with these parameters; ``ParameterError`` if it does not have them."""
    return with_parameters(AGGREGATORS[name], parameters)
