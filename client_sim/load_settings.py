"""How much load a load test makes."""

from dataclasses import dataclass

from client_sim.scenario import (
    LEAST_MODEL_BYTES,
    MAX_CLIENTS,
    MOST_MODEL_BYTES,
    CellSettings,
    Scenario,
    StandIn,
)
from services.contract.tasks import TaskRequest
from services.domain.tasks import Clock
from services.errors import SettingsError

_DAY_S = 24 * 3600.0
_SCHEDULED_BYTES = 1_000_000
"""What rounds are planned for, whatever is uploaded: a larger model is more load, not fewer clients."""
_LIMITS: dict[str, tuple[float, float]] = {
    "clients": (1, MAX_CLIENTS),
    "duration_s": (1, _DAY_S),
    "report_every_s": (0.1, _DAY_S),
    "round_every_s": (0.1, _DAY_S),
    "asked_per_round": (1, MAX_CLIENTS),
    "round_deadline_s": (1, 1e6),
    "model_bytes": (LEAST_MODEL_BYTES, MOST_MODEL_BYTES),
    "long_polls": (0, MAX_CLIENTS),
    "poll_wait_s": (1, 60),
}


@dataclass(frozen=True)
class LoadSettings:
    """How much load there is. The defaults fit two cores that service, worker and load test share."""

    clients: int = 5000
    duration_s: float = 120.0
    report_every_s: float = 20.0
    """How often each client reports."""
    round_every_s: float = 5.0
    """From the opening of a round to that of the next, if it is over by then."""
    asked_per_round: int = 500
    """How many of the clients are asked in a round; the deadline tells how many of them upload."""
    round_deadline_s: float = 45.0
    """In the simulated time of the task."""
    model_bytes: int = 1_000_000
    long_polls: int = 100
    """How many of the clients wait for rounds by long polls; the others are told by the load test."""
    poll_wait_s: float = 25.0
    keep_clients: bool = False
    """Whether they stay enrolled."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name, (least, most) in _LIMITS.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise SettingsError(f"{name} is {value:g}: it has to be from {least:g} to {most:g}")
        if self.long_polls > self.clients:
            raise SettingsError(f"{self.long_polls} long polls: there are {self.clients} clients only")
        if self.round_every_s > self.duration_s:
            raise SettingsError(f"in {self.duration_s:g} s there is no time for a round")

    def scenario(self) -> Scenario:
        """The cell and the task."""
        task = TaskRequest(
            name="load test",
            clock=Clock.SIMULATED,
            request_fraction=min(1.0, self.asked_per_round / self.clients),
            round_deadline_s=self.round_deadline_s,
            model_size_bytes=_SCHEDULED_BYTES,
            seed=self.seed,
        )
        return Scenario(
            name="load test",
            seed=self.seed,
            rounds=1,
            cell=CellSettings(clients=self.clients),
            task=task,
            stand_in=StandIn(model_bytes=self.model_bytes),
        )
