"""The algorithm box of the paper, line by line: the peer that tests and benchmarks compare with."""

from collections.abc import Sequence


def literal_greedy(update_ns: Sequence[int], upload_ns: Sequence[int], available_ns: int) -> list[int]:
    """Select clients as Algorithm 3 is printed; ``available_ns`` is T_round - T_cs - T_agg."""
    candidates = list(range(len(update_ns)))
    selected: list[int] = []
    distribution = elapsed = 0

    def cost(k: int) -> int:
        longer_distribution = max(distribution, upload_ns[k]) - distribution
        return longer_distribution + upload_ns[k] + max(0, update_ns[k] - elapsed)

    while candidates:
        x = min(candidates, key=cost)  # argmax of 1 / cost; the first of equals
        candidates.remove(x)
        new_elapsed = elapsed + upload_ns[x] + max(0, update_ns[x] - elapsed)
        new_distribution = max(distribution, upload_ns[x])
        if new_distribution + new_elapsed < available_ns:
            elapsed, distribution = new_elapsed, new_distribution
            selected.append(x)
    return selected
