"""The paper's Algorithm 3, line by line: the reference for tests and benchmarks."""

from services.domain.resources import EstimatedTimes


def literal_greedy(times: EstimatedTimes, available_ns: int) -> list[int]:
    """Select clients by Algorithm 3; ``available_ns`` is T_round - T_cs - T_agg.

    T_d is the longest download of the selected clients.
    """
    update_ns: list[int] = times.update_ns.tolist()
    upload_ns: list[int] = times.upload_ns.tolist()
    download_ns: list[int] = times.download_ns.tolist()
    candidates = list(range(len(times)))
    selected: list[int] = []
    distribution = elapsed = 0

    def cost(k: int) -> int:
        longer_distribution = max(distribution, download_ns[k]) - distribution
        return longer_distribution + upload_ns[k] + max(0, update_ns[k] - elapsed)

    while candidates:
        x = min(candidates, key=cost)  # argmax of 1 / cost; the first if equal
        candidates.remove(x)
        new_elapsed = elapsed + upload_ns[x] + max(0, update_ns[x] - elapsed)
        new_distribution = max(distribution, download_ns[x])
        if new_distribution + new_elapsed < available_ns:
            elapsed, distribution = new_elapsed, new_distribution
            selected.append(x)
    return selected
