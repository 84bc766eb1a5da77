"""Records of runs that never were."""

from collections.abc import Sequence

from client_sim.results import RoundRecord, RunRecord
from client_sim.scenario import load_scenario


def round_record(
    number: int, *, received: int = 7, late: int = 1, accuracy: float | None = None, selected: int = 10
) -> RoundRecord:
    return RoundRecord(
        number=number,
        asked=30,
        selected=selected,
        received=received,
        late=late,
        dropped=selected - received - late,
        rejected=0,
        elapsed_s=60.0 * number,
        duration_s=58.25,
        accuracy=accuracy,
        loss=None if accuracy is None else 1 - accuracy,
        wall_s=0.5,
    )


def run_record(policy: str, rounds: Sequence[RoundRecord], seed: int = 0) -> RunRecord:
    return RunRecord(
        scenario=load_scenario("small").changed(policy=policy, seed=seed),
        task_id=f"task-{policy}-{seed}",
        rounds=rounds,
        outcome="no further round fits",
        wall_s=12.5,
    )
