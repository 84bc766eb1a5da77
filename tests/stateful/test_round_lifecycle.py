"""The round's life on a real database, driven at random and held against a model of it."""

import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import ClassVar, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import insert, select

from services.contract.tasks import TaskRequest
from services.domain import jobs as stored_jobs
from services.domain.cells import DEFAULT_CELL
from services.domain.clipping import AggregationRecord
from services.domain.jobs import JobKind, JobState
from services.domain.nanoseconds import to_seconds
from services.domain.rounds import RoundState
from services.domain.tasks import Clock, Score, SlotEnforcement
from services.errors import (
    ConflictError,
    DeadlinePassedError,
    FedCSError,
    SlotClosedError,
)
from services.protocol.aggregation import close_if_overdue, close_round, drop_client, finish_aggregation
from services.protocol.distribution import begin_collection, get_round_model, record_model_fetched
from services.protocol.evaluation import finish_evaluation
from services.protocol.initialization import finish_initialization, set_initial_model, start_task
from services.protocol.jobs import claim_job, fail_job, hand_back_job, renew_job
from services.protocol.resource_request import advance_task, end_report_window, open_round
from services.protocol.task_management import cancel_task
from services.protocol.upload import (
    ReceivedUpdate,
    UploadTiming,
    accept_updates,
    admit_upload,
    record_arrivals,
    record_late,
    record_rejection,
)
from services.storage.database import Database, Store, UnitOfWork
from services.storage.migration import migrate
from services.storage.model_store import Blob
from services.storage.sql import as_dataclass
from services.storage.tables import jobs, resource_reports
from tests.databases import new_database
from tests.stateful.consistency import check_consistency
from tests.stateful.round_model import SETTLE_S, Job, Report, Slot, TaskModel, Terms

_T = TypeVar("_T")

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
CLIENTS = 4
LEASE_S = 20
LEASE = timedelta(seconds=LEASE_S)
SETTLE = timedelta(seconds=SETTLE_S)

terms = st.builds(
    Terms,
    simulated=st.booleans(),
    strict=st.booleans(),
    waits_for_all=st.sampled_from([False, False, True]),
    min_clients=st.integers(1, 2),
    min_updates=st.integers(1, 3),
    window_s=st.sampled_from([0, 0, 20]),
    auto_advance=st.booleans(),
    rounds_that_fit=st.sampled_from([None, None, 1, 2]),
    target=st.sampled_from([None, 0.5]),
)
client_numbers = st.integers(0, CLIENTS - 1)
files = st.sampled_from([Blob("a" * 64, 1000), Blob("b" * 64, 1000)])
accuracies = st.sampled_from([0.1, 0.9])
left_out = st.sampled_from([0, 0, 1, 2, CLIENTS])
"""How many of the updates received a worker leaves out, if there are so many."""
waits_s = st.sampled_from([0, 1, 5, 20, 30, 60, 200, 1000])


def to_request(terms: Terms, labels: dict[str, str]) -> TaskRequest:
    """Each of four clients takes 5 s to train and 10 s to upload: all fit into a round."""
    return TaskRequest(
        round_deadline_s=float(terms.deadline_s),
        final_deadline_s=None if terms.final_deadline_s is None else float(terms.final_deadline_s),
        aggregation_s=float(terms.aggregation_s),
        request_fraction=1.0,
        policy="fl" if terms.waits_for_all else "fedcs",
        clock=Clock.SIMULATED if terms.simulated else Clock.WALL,
        slot_enforcement=SlotEnforcement.STRICT if terms.strict else SlotEnforcement.DEADLINE,
        slot_grace_s=float(terms.grace_s),
        min_clients=terms.min_clients,
        min_updates=terms.min_updates,
        report_window_s=float(terms.window_s),
        report_max_age_s=1e9,
        auto_advance=terms.auto_advance,
        target_accuracy=terms.target,
        dataset=None if terms.target is None else "generated",
        idle_timeout_s=float(terms.idle_s),
        model_size_bytes=1_250_000,
        labels=labels,
        seed=0,
    )


class RoundLifecycle(RuleBasedStateMachine):
    """Each rule does something to the service and to the model, and compares what they say of it."""

    database: ClassVar[Database]

    def __init__(self) -> None:
        super().__init__()
        self.passed_s = 0
        self.claims: list[tuple[Job, stored_jobs.Job]] = []
        self.accepted: dict[tuple[str, str], str] = {}
        self.arrived: list[tuple[str, str, Blob, int]] = []
        """Updates of the newest round that are not yet checked: round, client, file, when it came."""
        self.tokens: dict[str, int] = {}

    @initialize(
        terms=terms,
        reported=st.sampled_from([range(4), range(3), range(2), range(0)]),
        begun=st.sampled_from(["round", "round", "round", "model", ""]),
    )
    def create_task(self, terms: Terms, reported: range, begun: str) -> None:
        labels = {"example": uuid.uuid4().hex}
        self.client_ids = [f"{labels['example']}-{number}" for number in range(CLIENTS)]
        with self.database.unit_of_work() as uow:
            self.serials = uow.clients.add(dict.fromkeys(self.client_ids, labels), self.now)
            self.task_id = start_task(uow, to_request(terms, labels).terms(), self.now).task_id
            uow.commit()
        self.model = TaskModel(terms, set(self.client_ids))
        for number in reported:
            self.report(number, has_data=True)
        if begun:
            self.operator_sets_the_model(Blob("a" * 64, 1000))
        if begun == "round":
            self.operator_opens_a_round()

    @property
    def now(self) -> datetime:
        return BEGAN + timedelta(seconds=self.passed_s)

    @property
    def round_id(self) -> str:
        """Of the newest round."""
        return self.look(lambda store: store.rounds.of_task(self.task_serial)[-1].round_id)

    @property
    def task_serial(self) -> int:
        return self.look(lambda store: store.tasks.get(self.task_id).serial)

    def look(self, at: Callable[[Store], _T]) -> _T:
        with self.database.reading() as store:
            return at(store)

    def act(self, act: Callable[[UnitOfWork], object]) -> str:
        """Do it in a transaction; what came of it."""
        try:
            with self.database.unit_of_work() as uow:
                done = act(uow)
                uow.commit()
        except FedCSError as error:
            return error.cause
        return "repeated" if done is False else "ok"

    @rule(seconds=waits_s)
    def time_passes(self, seconds: int) -> None:
        self.passed_s += seconds

    @rule(number=client_numbers, has_data=st.sampled_from([True, True, True, False]))
    def report(self, number: int, has_data: bool) -> None:
        client_id = self.client_ids[number]
        if client_id not in self.model.clients:
            return
        row = {
            "client_serial": self.serials[client_id],
            "task_serial": None,
            "throughput_bps": 1e6,
            "compute_samples_per_s": 100.0,
            "data_samples": 100 if has_data else 0,
            "report_resource_blocks": 10,
            "observed_at": self.now,
            "received_at": self.now,
            "radio": None,
        }
        assert self.act(lambda uow: uow._connection.execute(insert(resource_reports), row)) == "ok"
        self.model.reports[client_id].append(Report(self.passed_s, has_data))

    @precondition(lambda self: self.passed_s < 30 or self.model.rounds)
    @rule(file=files)
    def operator_sets_the_model(self, file: Blob) -> None:
        done = self.act(lambda uow: set_initial_model(uow, self.task_id, file, self.now))
        assert done == self.model.set_model(file.digest)

    @precondition(lambda self: self.passed_s < 30 or not self.model.open_round)
    @rule()
    def operator_opens_a_round(self) -> None:
        done = self.act(lambda uow: open_round(uow, self.task_id, self.now))
        assert done == self.model.open(self.passed_s)
        if done == "ok" and not self.model.terms.window_s:
            self.model.schedule(self.passed_s, self.planned())

    def planned(self) -> dict[str, Slot]:
        """The slots as the service has planned them."""
        found = self.look(lambda store: store.rounds.slots(store.rounds.get(self.round_id).serial))
        return {
            slot.client_id: Slot(to_seconds(slot.window_start_ns), to_seconds(slot.window_end_ns))
            for slot in found
        }

    @precondition(lambda self: self.model.is_requesting)
    @rule(more=st.sets(client_numbers))
    def reconciler_ends_the_report_window(self, more: set[int]) -> None:
        for number in more:
            self.report(number, has_data=True)
        self.passed_s = max(self.passed_s, self.model.rounds[-1].opened_at + self.model.terms.window_s)
        assert self.act(lambda uow: end_report_window(uow, self.round_id, self.now)) == "ok"
        self.model.schedule(self.passed_s, self.planned())

    @precondition(lambda self: self.model.rounds)
    @rule(number=client_numbers)
    def client_fetches_the_model(self, number: int) -> None:
        client_id = self.client_ids[number]

        def fetch(uow: UnitOfWork) -> None:
            _, begins = get_round_model(uow, self.round_id, client_id)
            if begins:
                begin_collection(uow, self.round_id, self.now)
            record_model_fetched(uow, self.round_id, client_id, self.now)

        assert self.act(fetch) == self.model.fetch(client_id, self.passed_s)

    @precondition(lambda self: self.model.rounds)
    @rule(
        number=client_numbers, file=files, told_s=st.sampled_from([0.0, 20.0, 30.0, 45.0, 90.0, 194.0, 195.0])
    )
    def client_uploads(self, number: int, file: Blob, told_s: float) -> None:
        self.upload(self.client_ids[number], file, told_s)

    @precondition(lambda self: self.model.rounds and self.model.rounds[-1].slots)
    @rule(file=files, data=st.data())
    def client_uploads_in_its_slot(self, file: Blob, data: st.DataObject) -> None:
        slots = self.model.rounds[-1].slots
        client_id = data.draw(st.sampled_from(self.client_ids).filter(slots.__contains__))
        started_at = self.model.rounds[-1].started_at
        assert started_at is not None
        if not self.model.terms.simulated:
            self.passed_s = max(self.passed_s, started_at + round(slots[client_id].closes_s))
        self.upload(client_id, file, slots[client_id].closes_s)

    @precondition(lambda self: self.model.is_uploading)
    @rule(file=files)
    def all_clients_upload_in_their_slots(self, file: Blob) -> None:
        round_ = self.model.rounds[-1]
        assert round_.started_at is not None
        for client_id, slot in sorted(round_.slots.items(), key=lambda item: item[1].closes_s):
            if not self.model.terms.simulated:
                self.passed_s = max(self.passed_s, round_.started_at + round(slot.closes_s))
            self.upload(client_id, file, slot.closes_s)

    @precondition(lambda self: self.model.has_wall_deadline and self.model.is_uploading)
    @rule(file=files, data=st.data())
    def update_arrives_and_is_not_yet_checked(self, file: Blob, data: st.DataObject) -> None:
        client_id = data.draw(st.sampled_from(sorted(self.model.rounds[-1].slots)))
        round_id, arrival = self.round_id, UploadTiming(self.now)

        def arrive(uow: UnitOfWork) -> None:
            admit_upload(uow, round_id, client_id, arrival)
            record_arrivals(uow, round_id, {client_id: self.now}, self.now)

        done = self.act(arrive)
        assert done == self.model.arrive(client_id, self.passed_s)
        if done == "ok":
            self.arrived.append((round_id, client_id, file, self.passed_s))

    @precondition(lambda self: self.arrived)
    @rule(data=st.data(), is_good=st.booleans())
    def update_that_has_arrived_is_checked(self, data: st.DataObject, *, is_good: bool) -> None:
        arrived = data.draw(st.sampled_from(self.arrived))
        self.arrived.remove(arrived)
        round_id, client_id, file, at_s = arrived
        if round_id != self.round_id:
            return
        at = BEGAN + timedelta(seconds=at_s)
        if not is_good:
            self.act(
                lambda uow: record_rejection(uow, round_id, client_id, "not finite", self.now, arrived_at=at)
            )
            self.model.reject(client_id, self.passed_s, at_s)
            return

        def accept(uow: UnitOfWork) -> bool:
            received = ReceivedUpdate(client_id, file, 100, UploadTiming(at), at)
            (outcome,) = accept_updates(uow, round_id, [received], self.now)
            if isinstance(outcome, ConflictError):
                raise outcome
            return outcome

        done = self.act(accept)
        assert done == self.model.upload(client_id, self.passed_s, 0.0, file.digest, arrived_at=at_s)
        if done == "ok":
            self.accepted[round_id, client_id] = file.digest

    def upload(self, client_id: str, file: Blob, told_s: float) -> None:
        """As the API does it: look, receive, record."""
        round_id = self.round_id
        arrival = UploadTiming(self.now, told_s if self.model.terms.simulated else None)

        def send(uow: UnitOfWork) -> bool:
            admit_upload(uow, round_id, client_id, arrival)
            received = ReceivedUpdate(client_id, file, 100, arrival, self.now)
            (outcome,) = accept_updates(uow, round_id, [received], self.now)
            if isinstance(outcome, ConflictError):
                raise outcome
            return outcome

        done = self.act(send)
        if done in (DeadlinePassedError.cause, SlotClosedError.cause):
            noted = self.act(lambda uow: record_late(uow, round_id, client_id, arrival, self.now))
            assert noted == "ok"
        assert done == self.model.upload(client_id, self.passed_s, told_s, file.digest)
        if done == "ok":
            self.accepted[round_id, client_id] = file.digest

    @precondition(lambda self: self.model.rounds)
    @rule(number=client_numbers)
    def client_sends_what_is_no_update(self, number: int) -> None:
        client_id = self.client_ids[number]
        self.act(lambda uow: record_rejection(uow, self.round_id, client_id, "not finite", self.now))
        self.model.reject(client_id, self.passed_s)

    @precondition(lambda self: self.accepted or self.passed_s > 60)
    @precondition(lambda self: self.model.rounds)
    @rule()
    def operator_closes_the_round(self) -> None:
        done = self.act(lambda uow: close_round(uow, self.round_id, self.now))
        assert done == self.model.close(self.passed_s)

    @precondition(lambda self: self.model.is_uploading)
    @rule(missing_s=st.sampled_from([0, 1, 1]))
    def reconciler_closes_overdue_rounds(self, missing_s: int) -> None:
        """When its time has come, or a second before it."""
        self.passed_s = max(self.passed_s, self.model.closes_at - missing_s)
        assert self.act(lambda uow: close_if_overdue(uow, self.round_id, self.now, SETTLE)) == "ok"
        self.model.keep_deadline(self.passed_s)

    @precondition(lambda self: self.model.rounds and not self.model.open_round)
    @rule()
    def reconciler_advances_the_task(self) -> None:
        assert self.act(lambda uow: advance_task(uow, self.task_id, self.now)) == "ok"
        if self.model.should_advance(self.passed_s):
            assert self.model.open(self.passed_s) == "ok"
            if not self.model.terms.window_s:
                self.model.schedule(self.passed_s, self.planned())

    @precondition(lambda self: len(self.model.rounds) > 3 or self.passed_s > 1500)
    @rule()
    def operator_cancels_the_task(self) -> None:
        done = self.act(lambda uow: cancel_task(uow, self.task_id, self.now))
        assert done == self.model.cancel(self.passed_s)

    @precondition(lambda self: len(self.model.clients) > 2 and self.passed_s > 20)
    @rule(number=client_numbers)
    def operator_removes_a_client(self, number: int) -> None:
        client_id = self.client_ids[number]
        if client_id not in self.model.clients:
            return

        def remove(uow: UnitOfWork) -> None:
            for round_ in uow.rounds.open_for(client_id):
                drop_client(uow, client_id, round_.round_id, self.now)
            uow.clients.remove(client_id)

        assert self.act(remove) == "ok"
        self.model.remove(client_id, self.passed_s)

    @rule(data=st.data())
    def worker_claims_a_job(self, data: st.DataObject) -> None:
        numbers = range(len(self.model.jobs))
        waiting = [number for number in numbers if self.model.jobs[number].state is JobState.WAITING]
        number = data.draw(st.sampled_from(waiting or numbers))
        stored = self.stored_jobs()[number]
        with self.database.unit_of_work() as uow:
            claimed = claim_job(uow, stored.job_id, self.now, LEASE)
            uow.commit()
        assert self.model.claim(self.model.jobs[number], self.passed_s, LEASE_S) == (claimed is not None)
        if claimed is not None:
            self.claims.append((self.model.jobs[number], claimed))

    @precondition(lambda self: any(job.state is JobState.WAITING for job in self.model.jobs))
    @rule(data=st.data(), file=files, accuracy=accuracies, left_out=left_out)
    def worker_does_a_job(self, data: st.DataObject, file: Blob, accuracy: float, left_out: int) -> None:
        self.worker_claims_a_job(data)
        self.finish(*self.claims[-1], file, accuracy, left_out)

    @precondition(lambda self: self.model.is_uploading)
    @rule(file=files, left_out=left_out, data=st.data())
    def round_goes_by(self, file: Blob, left_out: int, data: st.DataObject) -> None:
        """Else few examples come to the end of a round."""
        self.all_clients_upload_in_their_slots(file)
        if self.model.rounds[-1].state is RoundState.AGGREGATING:
            self.worker_does_a_job(data, file, 0.9, left_out)

    @precondition(lambda self: self.model.awaits_evaluation)
    @rule(data=st.data(), file=files, accuracy=accuracies)
    def workers_do_all_that_waits(self, data: st.DataObject, file: Blob, accuracy: float) -> None:
        """Else the parts of an evaluation are hardly ever all done."""
        while any(job.state is JobState.WAITING for job in self.model.jobs):
            self.worker_does_a_job(data, file, accuracy, 0)

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), file=files, accuracy=accuracies, left_out=left_out)
    def worker_finishes_what_it_claimed(
        self, data: st.DataObject, file: Blob, accuracy: float, left_out: int
    ) -> None:
        self.finish(*data.draw(st.sampled_from(self.claims[-3:])), file, accuracy, left_out)

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def worker_renews_what_it_claimed(self, data: st.DataObject) -> None:
        job, claimed = data.draw(st.sampled_from(self.claims[-3:]))
        done = self.act(lambda uow: renew_job(uow, claimed, 0.5, self.now, LEASE))
        assert (done == "ok") == self.model.renew(job, claimed.token, self.passed_s, LEASE_S)

    @precondition(lambda self: self.claims)
    @rule(data=st.data())
    def worker_hands_back_what_it_claimed(self, data: st.DataObject) -> None:
        job, claimed = data.draw(st.sampled_from(self.claims[-3:]))
        done = self.act(lambda uow: hand_back_job(uow, claimed, self.now))
        assert (done == "ok") == self.model.hand_back(job, claimed.token)

    @precondition(lambda self: any(job.state is JobState.WAITING for job in self.model.jobs))
    @rule(data=st.data(), file=files)
    def worker_comes_back_after_another_took_its_job(self, data: st.DataObject, file: Blob) -> None:
        self.worker_claims_a_job(data)
        job, first_claim = self.claims[-1]
        self.passed_s += LEASE_S
        self.reconciler_expires_leases()
        if job.state is JobState.WAITING:
            self.worker_claims_a_job(data)
        self.finish(job, first_claim, file, 0.1, left_out=1)

    def finish(self, job: Job, claimed: stored_jobs.Job, file: Blob, accuracy: float, left_out: int) -> None:
        """As a worker does it; under an older lease nothing comes of it."""
        received = self.model.rounds[-1].received if self.model.rounds else []
        poisoned = received[:left_out]
        aggregated = file if len(poisoned) < len(received) else None

        def finish(uow: UnitOfWork) -> bool:
            if claimed.kind is JobKind.INITIALIZE_MODEL:
                return finish_initialization(uow, claimed, file, self.now)
            if claimed.kind is JobKind.AGGREGATE_ROUND:
                reasons = dict.fromkeys(poisoned, "outlier")
                return finish_aggregation(
                    uow, claimed, aggregated, AggregationRecord(outliers=reasons), self.now
                )
            return finish_evaluation(uow, claimed, Score(100, round(100 * accuracy), 100.0), self.now)

        done = self.act(finish)
        expected = self.model.finish(job, claimed.token, self.passed_s, file.digest, accuracy, poisoned)
        assert (done == "ok") == expected

    @precondition(lambda self: self.claims)
    @rule(data=st.data(), permanent=st.sampled_from([False, False, True]))
    def worker_fails_at_what_it_claimed(self, data: st.DataObject, permanent: bool) -> None:
        job, claimed = data.draw(st.sampled_from(self.claims[-3:]))
        failed = self.model.fail(job, claimed.token, self.passed_s, permanent=permanent)
        assert self.give_up(claimed, permanent=permanent) == failed

    def give_up(self, job: stored_jobs.Job, *, permanent: bool = False) -> bool:
        """Say that an attempt failed; whether it was still the one that counts."""
        return (
            self.act(lambda uow: fail_job(uow, self.task_id, job, "no memory", self.now, permanent=permanent))
            == "ok"
        )

    @precondition(lambda self: self.claims)
    @rule()
    def reconciler_expires_leases(self) -> None:
        expired = {job.job_id for job in self.look(lambda store: store.jobs.expired(self.now))}
        for stored, job in zip(self.stored_jobs(), list(self.model.jobs), strict=True):
            if stored.job_id in expired:  # with one given up, others may be cancelled
                assert self.give_up(stored) == self.model.fail(job, stored.token, self.passed_s)
            assert job.state is not JobState.LEASED or (job.expires_at or 0) > self.passed_s

    def stored_jobs(self) -> list[stored_jobs.Job]:
        """In the order they were asked for, as in the model."""
        of_task = select(jobs).where(jobs.c.task_serial == self.task_serial).order_by(jobs.c.serial)
        with self.database.engine.connect() as connection:
            return [as_dataclass(stored_jobs.Job, row) for row in connection.execute(of_task)]

    @invariant()
    def the_database_is_consistent(self) -> None:
        check_consistency(self.database, self.task_id)

    @invariant()
    def the_service_is_where_the_model_is(self) -> None:
        with self.database.reading() as store:
            task = store.tasks.get(self.task_id)
            assert task.state is self.model.state
            assert task.model_version == self.model.version
            assert task.elapsed_s == pytest.approx(self.model.elapsed_s)
            rounds = store.rounds.of_task(task.serial)
            assert [(entry.state, entry.outcome) for entry in rounds] == [
                (entry.state, entry.outcome) for entry in self.model.rounds
            ]
            for stored, expected in zip(rounds, self.model.rounds, strict=True):
                outcomes = {slot.client_id: slot.outcome for slot in store.rounds.slots(stored.serial)}
                assert outcomes == {name: slot.outcome for name, slot in expected.slots.items()}
                kept = {update.client_id: update.digest for update in store.updates.of_round(stored.serial)}
                for (round_id, client_id), digest in self.accepted.items():
                    assert round_id != stored.round_id or kept[client_id] == digest

    @invariant()
    def tokens_only_rise(self) -> None:
        found = self.stored_jobs()
        assert [(job.state, job.attempts, job.token) for job in found] == [
            (job.state, job.attempts, job.token) for job in self.model.jobs
        ]
        for job in found:
            assert job.token >= self.tokens.get(job.job_id, 0)
            self.tokens[job.job_id] = job.token


@pytest.mark.parametrize(
    ("kind", "examples"),
    [("sqlite", 20), ("postgresql", 5), pytest.param("sqlite", 150, marks=pytest.mark.long)],
)
def test_rounds_follow_the_model(
    kind: str, examples: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    postgres_url = request.getfixturevalue("postgres_url") if kind == "postgresql" else ""
    RoundLifecycle.database = Database(new_database(kind, tmp_path, postgres_url))
    migrate(RoundLifecycle.database)
    with RoundLifecycle.database.unit_of_work() as uow:  # rounds of earlier examples stay open
        uow.cells.change(DEFAULT_CELL, resource_blocks=10_000)
        uow.commit()
    run_state_machine_as_test(
        RoundLifecycle,
        settings=settings(
            max_examples=examples,
            stateful_step_count=50,
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    RoundLifecycle.database.close()
