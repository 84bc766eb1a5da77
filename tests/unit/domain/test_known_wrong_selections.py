"""Two public implementations of FedCS get Client Selection wrong; these tests fail if we repeat that."""

import pytest

from services.domain.schedule import build_schedule
from services.domain.selection.fedcs import greedy_order
from tests.unit.domain.instances import round_ns, select, times_of


def test_the_least_cost_comes_first_not_the_largest() -> None:
    """One of them takes the candidate with the largest cost first."""
    times = times_of([1, 50, 10], [1, 20, 5])
    assert greedy_order(times, 1000).tolist() == [0, 2, 1]
    assert greedy_order(times, 40).tolist() == [0, 2]


@pytest.mark.parametrize("policy", ["fedcs", "optimal", "fedlim"])
def test_uploads_add_up_they_do_not_run_at_the_same_time(policy: str) -> None:
    """The other one checks each client alone, as if all of them could upload at once."""
    times = times_of([0] * 10, [10] * 10)
    # Distribution 10, then 10 for each upload: three are done at 40, the fourth at 50.
    order = select(policy, times, 50)
    assert len(order) == 3
    assert build_schedule(order, times).upload_ends_ns.tolist() == [10, 20, 30]
    assert round_ns(times, order.tolist()) == 40
