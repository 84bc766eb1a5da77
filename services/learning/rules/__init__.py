"""The rules of aggregation, one file each."""

from collections.abc import Mapping

from services.domain.tasks import AggregationRule
from services.learning.rules.rule import Rule
from services.learning.rules.uniform import UniformAverage
from services.learning.rules.weighted import WeightedAverage

RULES: Mapping[AggregationRule, type[Rule]] = {
    AggregationRule.WEIGHTED: WeightedAverage,
    AggregationRule.UNIFORM: UniformAverage,
}
