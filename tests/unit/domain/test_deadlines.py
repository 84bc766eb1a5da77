"""The adaptive deadline: equal to brute force over all candidate deadlines, and within its limits."""

from collections.abc import Sequence

import numpy as np
import pytest

from services.domain.deadlines import (
    MAX_POINTS,
    DeadlineLimits,
    choose_deadline,
    round_deadline_s,
)
from services.domain.resources import EstimatedTimes
from services.domain.selection import POLICIES, Candidates, make_policy, policy_rng
from tests.unit.domain.instances import KAPPAS, candidates_of, random_instance, round_ns, times_of

WITH_DEADLINE = [name for name, kind in POLICIES.items() if kind.honours_deadline]
HOUR_NS = 3600 * 10**9
INSTANCES = 334
"""With each policy: 1,002 in all."""


def greedy_by_hand(times: EstimatedTimes, available_ns: int) -> list[int]:
    """The paper's algorithm, literally."""
    order: list[int] = []
    left = list(range(len(times)))
    while left:
        best = min(left, key=lambda client: (round_ns(times, [*order, client]), client))
        if round_ns(times, [*order, best]) >= available_ns:
            break
        order.append(best)
        left.remove(best)
    return order


def brute_force(
    draws: Sequence[Sequence[EstimatedTimes]], policy: str, noise_scale: float, limits: DeadlineLimits
) -> int | None:
    """Every candidate deadline tried with every draw, straight from the definition."""
    deadlines = set()
    for cells in draws:
        for times in cells:
            order = greedy_by_hand(times, limits.longest_ns - limits.overhead_ns)
            for count in range(1, len(order) + 1):
                deadlines.add(limits.overhead_ns + round_ns(times, order[:count]) + 1)
    best = None
    for deadline in sorted(deadlines):
        clients = total = 0.0
        for cells in draws:
            orders = [
                make_policy(policy, {})
                .select(candidates_of(times), deadline - limits.overhead_ns, policy_rng(5))
                .tolist()
                for times in cells
            ]
            count = sum(map(len, orders))
            if count < limits.min_clients:
                total += limits.failed_ns
                continue
            clients += count
            total += limits.overhead_ns + max(map(round_ns, cells, orders))
        clients, total = clients / len(draws), total / len(draws)
        if clients >= limits.min_clients:
            cost = total * (1 + noise_scale / clients)
            if best is None or cost < best[0]:
                best = (cost, deadline)
    return None if best is None else best[1]


@pytest.mark.parametrize("policy", WITH_DEADLINE)
def test_choice_is_that_of_brute_force_over_all_candidate_deadlines(policy: str) -> None:
    rng = np.random.default_rng(WITH_DEADLINE.index(policy))
    chosen = 0
    for number in range(INSTANCES):
        kappa = KAPPAS[number % len(KAPPAS)]
        draws = [
            [random_instance(rng, 4, kappa)[0] for _ in range(1 + number % 3 // 2)]
            for _ in range(1 + number % 2)
        ]
        longest = max(int(cell.upload_ns.sum() + cell.update_ns.sum()) for cells in draws for cell in cells)
        limits = DeadlineLimits(
            int(rng.integers(0, 3)),
            3 + int(rng.integers(0, 3 * longest + 3)),
            1 + number % 4 // 3,
            number % 5,
        )
        noise_scale = float(rng.choice([0.5, 4, 17, 60]))
        expected = brute_force(draws, policy, noise_scale, limits)
        found = choose_deadline(
            [[candidates_of(times) for times in cells] for cells in draws],
            make_policy(policy, {}),
            noise_scale,
            limits,
            seed=5,
        )
        assert found.deadline_ns == (limits.longest_ns if expected is None else expected)
        chosen += expected is not None
    assert chosen > 0.6 * INSTANCES


def test_points_show_the_best_and_are_at_most_100() -> None:
    rng = np.random.default_rng(0)
    updates, uploads = rng.integers(0, 10**11, (8, 60)), rng.integers(10**9, 10**10, (8, 60))
    draws = [[candidates_of(times_of(updates[draw].tolist(), uploads[draw].tolist()))] for draw in range(8)]
    found = choose_deadline(draws, make_policy("fedcs", {}), 10.0, DeadlineLimits(0, HOUR_NS), seed=0)
    assert len(found.points) <= MAX_POINTS
    deadlines = [point.deadline_s for point in found.points]
    assert deadlines == sorted(deadlines)
    (best,) = [point for point in found.points if point.relative_cost == 1]
    assert best.deadline_s == pytest.approx(found.deadline_ns / 1e9)
    assert all(point.relative_cost >= 1 for point in found.points)


def test_more_noise_means_more_clients() -> None:
    times = times_of([0] * 20, [10**9] * 20)
    draws = [[candidates_of(times)]]
    policy = make_policy("fedcs", {})
    found = [
        choose_deadline(draws, policy, noise_scale, DeadlineLimits(0, HOUR_NS), seed=0).deadline_ns
        for noise_scale in (0.5, 4, 60)
    ]
    assert found[0] < found[1] < found[2]


def test_without_candidates_the_longest_deadline_holds() -> None:
    limits = DeadlineLimits(0, 10**10)
    nobody = candidates_of(times_of([], []))
    several: list[list[list[Candidates]]] = [[], [[]], [[nobody]]]
    for draws in several:
        found = choose_deadline(draws, make_policy("fedcs", {}), 4.0, limits, seed=0)
        assert (found.deadline_ns, found.points) == (10**10, ())


@pytest.mark.parametrize(
    ("total_s", "slack", "expected"),
    [(50, 0.1, 55), (5, 0.1, 10), (170, 0.1, 180), (50, 1.0, 100), (179, 0, 179.000000001)],
)
def test_a_round_has_room_for_what_takes_longer(total_s: float, slack: float, expected: float) -> None:
    found = round_deadline_s(int(total_s * 1e9), slack, least_s=10, longest_s=180)
    assert found == pytest.approx(expected, abs=1e-12)
