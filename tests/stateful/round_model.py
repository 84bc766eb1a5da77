"""A task and its rounds as a few plain rules: what the protocol should do, in the simplest words.

Times are whole seconds since the model began. Every method tells what the service should answer: ``"ok"`` or
the cause of the refusal.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import takewhile

from services.domain.jobs import JobKind, JobState
from services.domain.rounds import RoundState, SlotOutcome
from services.domain.tasks import TaskState

OPEN = {RoundState.REQUESTING, RoundState.SCHEDULED, RoundState.COLLECTING, RoundState.AGGREGATING}
UPLOADING = {RoundState.SCHEDULED, RoundState.COLLECTING}
OVER = {TaskState.FINISHED, TaskState.FAILED, TaskState.CANCELLED}
MAX_ATTEMPTS = 3
ARRIVALS_KNOWN_AFTER_S = 1
SETTLE_S = 30
PARTS = 4


@dataclass(frozen=True)
class Terms:
    simulated: bool
    strict: bool
    waits_for_all: bool
    """The policy ``fl``, which has no deadline."""
    min_clients: int
    min_updates: int
    window_s: int
    auto_advance: bool
    rounds_that_fit: int | None
    """How many whole rounds fit before the final deadline."""
    target: float | None
    aggregation_s: int = 5
    deadline_s: int = 200
    grace_s: int = 3
    idle_s: int = 1000

    @property
    def final_deadline_s(self) -> int | None:
        return None if self.rounds_that_fit is None else self.rounds_that_fit * self.deadline_s


@dataclass
class Slot:
    opens_s: float
    closes_s: float
    outcome: SlotOutcome = SlotOutcome.PENDING
    rejections: int = 0
    elapsed_s: float | None = None
    digest: str | None = None
    arrived_at: int | None = None
    """When an update came that is not yet checked."""

    @property
    def is_settled(self) -> bool:
        return self.outcome is not SlotOutcome.PENDING

    @property
    def is_unchecked(self) -> bool:
        return self.outcome is SlotOutcome.PENDING and self.arrived_at is not None


@dataclass
class Round:
    number: int
    asked: set[str]
    opened_at: int
    active_at: int
    state: RoundState = RoundState.REQUESTING
    started_at: int | None = None
    ended_at: int | None = None
    outcome: str | None = None
    slots: dict[str, Slot] = field(default_factory=dict)

    @property
    def received(self) -> list[str]:
        """Whose updates were accepted, and not left out since."""
        return sorted(client for client, slot in self.slots.items() if slot.outcome is SlotOutcome.RECEIVED)


@dataclass
class Job:
    kind: JobKind
    state: JobState = JobState.WAITING
    attempts: int = 0
    token: int = 0
    expires_at: int | None = None


@dataclass
class Report:
    at: int
    has_data: bool


class TaskModel:
    """One task, its clients, its rounds and its jobs."""

    def __init__(self, terms: Terms, clients: set[str]) -> None:
        self.terms = terms
        self.clients = clients
        self.reports: dict[str, list[Report]] = {client: [] for client in clients}
        self.state = TaskState.INITIALIZING
        self.model_digest: str | None = None
        self.version: int | None = None
        self.scores: list[float] = []
        """Of the newest version, on the parts of the data that are done."""
        self.rounds: list[Round] = []
        self.jobs = [Job(JobKind.INITIALIZE_MODEL)]
        self.elapsed_s: float = 0
        self.first_round_at: int | None = None

    @property
    def open_round(self) -> Round | None:
        return self.rounds[-1] if self.rounds and self.rounds[-1].state in OPEN else None

    def set_model(self, digest: str) -> str:
        if self.state in OVER:
            return "TASK_OVER"
        if self.state is TaskState.RUNNING:
            return "ok" if digest == self.model_digest else "MODEL_EXISTS"
        self._cancel_jobs()
        self._take_initial_model(digest)
        return "ok"

    def _take_initial_model(self, digest: str) -> None:
        self.state, self.version, self.model_digest = TaskState.READY, 0, digest

    def open(self, now: int) -> str:
        if self.state in OVER:
            return "TASK_OVER"
        if self.state is TaskState.INITIALIZING:
            return "MODEL_NOT_READY"
        if self.open_round:
            return "ROUND_OPEN"
        if self.awaits_evaluation:
            return "EVALUATION_PENDING"
        if not self._fits_another(now):
            return "TASK_OVER"
        if self.state is TaskState.READY:
            self.state, self.first_round_at = TaskState.RUNNING, now
        self.rounds.append(Round(len(self.rounds) + 1, set(self.clients), now, now))
        return "ok"

    def schedule(self, now: int, planned: dict[str, Slot]) -> None:
        """Clients are selected; when each uploads was planned by the service itself."""
        round_ = self.rounds[-1]
        round_.started_at = round_.active_at = now
        selected = self.expected_clients()
        if len(selected) < self.terms.min_clients:
            self._end(round_, RoundState.FAILED, now, "TOO_FEW_CLIENTS")
            return
        assert set(planned) == selected
        round_.slots = planned
        round_.state = RoundState.SCHEDULED

    def expected_clients(self) -> set[str]:
        """All who were asked, are still enrolled, and have data by their newest report that counts."""
        round_ = self.rounds[-1]
        counting = {
            client: [
                report
                for report in self.reports[client]
                if not self.terms.window_s or report.at >= round_.opened_at
            ]
            for client in round_.asked & self.clients
        }
        return {client for client, reports in counting.items() if reports and reports[-1].has_data}

    @property
    def is_requesting(self) -> bool:
        return bool(self.rounds) and self.rounds[-1].state is RoundState.REQUESTING

    @property
    def is_uploading(self) -> bool:
        return bool(self.rounds) and self.rounds[-1].state in UPLOADING

    def fetch(self, client: str, now: int) -> str:
        round_ = self.rounds[-1]
        if client not in round_.slots:
            return "NOT_SELECTED"
        if round_.state is RoundState.SCHEDULED:
            round_.state = RoundState.COLLECTING
            round_.active_at = now
        if round_.state in UPLOADING and not round_.slots[client].is_settled:
            round_.active_at = now
        return "ok"

    def arrive(self, client: str, now: int) -> str:
        """An update has come to its end; it will be checked later."""
        round_ = self.rounds[-1]
        slot = round_.slots[client]
        assert round_.started_at is not None
        if slot.outcome is SlotOutcome.RECEIVED:
            return "ok"
        refusal = self._refusal(round_, slot, now - round_.started_at)
        if refusal is None:
            slot.arrived_at = now
        return refusal or "ok"

    def upload(self, client: str, now: int, told_s: float, digest: str, arrived_at: int | None = None) -> str:
        round_ = self.rounds[-1]
        if client not in round_.slots:
            return "NOT_SELECTED"
        slot = round_.slots[client]
        if slot.outcome is SlotOutcome.RECEIVED:
            return "repeated" if slot.digest == digest else "UPDATE_EXISTS"
        assert round_.started_at is not None
        at = now if arrived_at is None else arrived_at
        elapsed_s = told_s if self.terms.simulated else at - round_.started_at
        refusal = self._refusal(round_, slot, elapsed_s)
        if refusal is None:
            slot.outcome, slot.digest, slot.elapsed_s = SlotOutcome.RECEIVED, digest, elapsed_s
            round_.active_at = max(round_.active_at, at)
            round_.state = RoundState.COLLECTING
            self._close_if_complete(round_, now)
            return "ok"
        if refusal in ("DEADLINE_PASSED", "SLOT_CLOSED"):
            self._note_late(round_, slot, elapsed_s, now)
        return refusal

    def _refusal(self, round_: Round, slot: Slot, elapsed_s: float) -> str | None:
        terms = self.terms
        if not terms.waits_for_all and elapsed_s >= terms.deadline_s - terms.aggregation_s:
            return "DEADLINE_PASSED"
        if round_.state not in UPLOADING:
            return "ROUND_NOT_COLLECTING"
        if slot.outcome is SlotOutcome.LATE:
            return "DEADLINE_PASSED"
        if slot.is_settled:
            return "ROUND_NOT_COLLECTING"
        if terms.strict and elapsed_s < slot.opens_s - terms.grace_s:
            return "SLOT_NOT_OPEN"
        if terms.strict and elapsed_s > slot.closes_s + terms.grace_s:
            return "SLOT_CLOSED"
        return None

    def _note_late(self, round_: Round, slot: Slot, elapsed_s: float, now: int) -> None:
        if slot.outcome not in (SlotOutcome.PENDING, SlotOutcome.MISSED) or slot.is_unchecked:
            return
        slot.outcome, slot.elapsed_s = SlotOutcome.LATE, elapsed_s
        if round_.state in UPLOADING:
            round_.active_at = now
            self._close_if_complete(round_, now)

    def reject(self, client: str, now: int, arrived_at: int | None = None) -> None:
        round_ = self.rounds[-1]
        slot = round_.slots.get(client)
        if slot is not None and not slot.is_settled and round_.state in UPLOADING:
            slot.rejections += 1
            if slot.arrived_at == arrived_at:
                slot.arrived_at = None
            round_.active_at = now

    def close(self, now: int) -> str:
        round_ = self.rounds[-1]
        if round_.state in UPLOADING:
            self._close(round_, now)
        elif round_.state in (RoundState.REQUESTING, RoundState.CANCELLED):
            return "ROUND_NOT_COLLECTING"
        return "ok"

    @property
    def has_wall_deadline(self) -> bool:
        return not self.terms.simulated and not self.terms.waits_for_all

    @property
    def closes_at(self) -> int:
        """When the reconciler ends collection in the newest round."""
        round_ = self.rounds[-1]
        assert round_.started_at is not None
        if self.has_wall_deadline:
            is_waiting = any(slot.is_unchecked for slot in round_.slots.values())
            after_s = SETTLE_S if is_waiting else ARRIVALS_KNOWN_AFTER_S
            return round_.started_at + self.terms.deadline_s - self.terms.aggregation_s + after_s
        return round_.active_at + self.terms.idle_s

    def keep_deadline(self, now: int) -> None:
        round_ = self.rounds[-1]
        if round_.state not in UPLOADING or now < self.closes_at:
            return
        self._close(round_, now, too_few="TOO_FEW_UPDATES" if self.has_wall_deadline else "IDLE_TIMEOUT")

    def should_advance(self, now: int) -> bool:
        """Finishes the task if it is out of time; whether the reconciler opens a round."""
        if self.state is not TaskState.RUNNING or self.open_round or self.awaits_evaluation:
            return False
        if not self._fits_another(now):
            self.state = TaskState.FINISHED
            return False
        last = self.rounds[-1]
        assert last.ended_at is not None
        failures = list(takewhile(lambda item: item.state is RoundState.FAILED, reversed(self.rounds)))
        pause_s = min(len(failures), 60)
        return self.terms.auto_advance and now >= last.ended_at + pause_s

    def cancel(self, now: int) -> str:
        if self.state is TaskState.CANCELLED:
            return "ok"
        if self.state in OVER:
            return "TASK_OVER"
        self._give_up(TaskState.CANCELLED, now)
        return "ok"

    def remove(self, client: str, now: int) -> None:
        self.clients.discard(client)
        round_ = self.open_round
        if round_ and round_.state in UPLOADING and client in round_.slots:
            slot = round_.slots[client]
            if not slot.is_settled:
                slot.outcome = SlotOutcome.MISSED
                self._close_if_complete(round_, now)

    def claim(self, job: Job, now: int, lease_s: int) -> bool:
        if job.state is not JobState.WAITING:
            return False
        job.state, job.expires_at = JobState.LEASED, now + lease_s
        job.attempts += 1
        job.token += 1
        return True

    def renew(self, job: Job, token: int, now: int, lease_s: int) -> bool:
        if job.state is not JobState.LEASED or job.token != token:
            return False
        job.expires_at = now + lease_s
        return True

    def hand_back(self, job: Job, token: int) -> bool:
        if job.state is not JobState.LEASED or job.token != token:
            return False
        job.state = JobState.WAITING
        job.attempts -= 1
        return True

    def finish(
        self, job: Job, token: int, now: int, digest: str, accuracy: float, left_out: Collection[str]
    ) -> bool:
        if job.state is not JobState.LEASED or job.token != token:
            return False
        job.state = JobState.DONE
        if job.kind is JobKind.INITIALIZE_MODEL:
            self._take_initial_model(digest)
        elif job.kind is JobKind.AGGREGATE_ROUND:
            self._aggregate(self.rounds[-1], left_out, now)
        else:
            self._score(accuracy, now)
        return True

    def _aggregate(self, round_: Round, left_out: Collection[str], now: int) -> None:
        for client in left_out:
            round_.slots[client].outcome = SlotOutcome.REJECTED
        if len(round_.received) < self.terms.min_updates:
            self._end(round_, RoundState.FAILED, now, "TOO_FEW_UPDATES")
            return
        assert self.version is not None
        self.version += 1
        self.scores = []
        if self.terms.target is not None:
            self.jobs += [Job(JobKind.EVALUATE_MODEL) for _ in range(PARTS)]
        self._end(round_, RoundState.AGGREGATED, now)

    def _score(self, accuracy: float, now: int) -> None:
        self.scores.append(accuracy)
        if len(self.scores) < PARTS or self.state is not TaskState.RUNNING:
            return
        if sum(self.scores) / PARTS >= (self.terms.target or 2):
            self._cancel_round(now)
            self.state = TaskState.FINISHED

    def fail(self, job: Job, token: int, now: int, *, permanent: bool = False) -> bool:
        if job.state is not JobState.LEASED or job.token != token:
            return False
        if job.attempts < MAX_ATTEMPTS and not permanent:
            job.state = JobState.WAITING
            return True
        job.state = JobState.FAILED
        if job.kind is JobKind.AGGREGATE_ROUND:
            self._end(self.rounds[-1], RoundState.FAILED, now, "AGGREGATION_FAILED")
        elif self.state not in OVER:
            self._give_up(TaskState.FAILED, now)
        return True

    @property
    def awaits_evaluation(self) -> bool:
        return self.terms.target is not None and bool(self.version) and len(self.scores) < PARTS

    def _fits_another(self, now: int) -> bool:
        if self.terms.final_deadline_s is None:
            return True
        elapsed_s = self.elapsed_s
        if not self.terms.simulated and self.first_round_at is not None:
            elapsed_s = now - self.first_round_at
        needed_s = 0 if self.terms.waits_for_all else self.terms.deadline_s
        return elapsed_s + needed_s <= self.terms.final_deadline_s

    def _close_if_complete(self, round_: Round, now: int) -> None:
        if all(slot.is_settled for slot in round_.slots.values()):
            self._close(round_, now)

    def _close(self, round_: Round, now: int, too_few: str = "TOO_FEW_UPDATES") -> None:
        self._settle(round_)
        if len(round_.received) < self.terms.min_updates:
            self._end(round_, RoundState.FAILED, now, too_few)
        else:
            round_.state = RoundState.AGGREGATING
            self.jobs.append(Job(JobKind.AGGREGATE_ROUND))

    def _settle(self, round_: Round) -> None:
        for slot in round_.slots.values():
            if not slot.is_settled:
                slot.outcome = SlotOutcome.REJECTED if slot.rejections else SlotOutcome.MISSED

    def _end(self, round_: Round, state: RoundState, now: int, outcome: str | None = None) -> None:
        round_.state, round_.outcome, round_.ended_at = state, outcome, now
        if not self.terms.simulated:
            assert self.first_round_at is not None
            self.elapsed_s = now - self.first_round_at
        elif self.terms.waits_for_all:
            ends = [slot.elapsed_s for slot in round_.slots.values() if slot.elapsed_s is not None]
            self.elapsed_s += max(ends, default=0) + self.terms.aggregation_s
        else:
            self.elapsed_s += self.terms.deadline_s
        if not self._fits_another(now):
            self.state = TaskState.FINISHED

    def _cancel_round(self, now: int) -> None:
        if round_ := self.open_round:
            self._settle(round_)
            round_.state, round_.ended_at = RoundState.CANCELLED, now

    def _give_up(self, state: TaskState, now: int) -> None:
        self._cancel_round(now)
        self._cancel_jobs()
        self.state = state

    def _cancel_jobs(self) -> None:
        for job in self.jobs:
            if job.state in (JobState.WAITING, JobState.LEASED):
                job.state = JobState.CANCELLED
