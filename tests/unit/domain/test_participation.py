"""Who is passed over, and for how long."""

import numpy as np
import pytest

from services.domain.past_slots import MAX_COOLDOWN_DRAWS, Undelivered, find_cooldowns, most_rounds


def _slots(actions_by_client: dict[int, str]) -> Undelivered:
    """M: missed, D: declined, one letter for each round from the first; others: not selected."""
    rows = [
        (client, number, action == "D")
        for client, actions in sorted(actions_by_client.items())
        for number, action in enumerate(actions, start=1)
        if action in "MD"
    ]
    client, number, declined = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    return Undelivered(client, number, declined.astype(np.bool_))


@pytest.mark.parametrize(
    ("actions", "misses", "until"),
    [
        ("MM", 2, 4),
        ("M..M", 2, 6),
        ("MM..M", 3, 9),
        ("MM..M....M", 4, 18),
        ("DDDM", 2, 6),
        ("DDDDDD", 2, 8),
        ("MDDD", 2, 6),
        ("MDDDD", 2, 6),
        ("DDMDM", 2, 7),
    ],
)
def test_the_pause_doubles_with_each_miss(actions: str, misses: int, until: int) -> None:
    found = find_cooldowns(_slots({7: actions}), 1.0)
    assert (found.client.tolist(), found.misses.tolist()) == ([7], [misses])
    assert found.until.tolist() == [until]
    assert found.last_missed.tolist() == [until - 2 ** (misses - 1)]


@pytest.mark.parametrize("actions", ["", "M", "DD", "DDD", "MDD", "DDMDD", "DDDDD"])
def test_fewer_than_two_misses_do_no_harm(actions: str) -> None:
    assert find_cooldowns(_slots({7: actions}), 1.0).client.tolist() == []


def test_clients_are_counted_apart() -> None:
    found = find_cooldowns(_slots({1: "MD", 2: "DDM", 3: "MM", 4: "DDDDDD", 5: "M"}), 1.0)
    assert found.client.tolist() == [3, 4]
    assert found.last_missed.tolist() == [2, 6]


def test_the_pause_has_a_limit() -> None:
    found = find_cooldowns(_slots({1: "M" * 100}), 1.0)
    assert found.until.tolist() == [100 + MAX_COOLDOWN_DRAWS]


@pytest.mark.parametrize(("request_fraction", "until"), [(0.1, 22), (0.3, 9), (1e-3, 2002)])
def test_a_client_that_is_seldom_drawn_pauses_for_longer(request_fraction: float, until: int) -> None:
    assert find_cooldowns(_slots({1: "MM"}), request_fraction).until.tolist() == [until]


@pytest.mark.parametrize(
    ("share", "rounds", "most"),
    [(1.0, 5, 5), (0.1, 1, 1), (0.1, 10, 1), (0.1, 11, 2), (0.07, 100, 7), (0.5, 3, 2), (1e-6, 1, 1)],
)
def test_a_share_is_rounded_up_to_whole_rounds(share: float, rounds: int, most: int) -> None:
    assert most_rounds(share, rounds) == most
