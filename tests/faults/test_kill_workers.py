"""Worker processes are killed and frozen at the worst moments, and the work is done as if nothing had been.

The model of a round in which that happened is, bit for bit, the one of a round in which nothing did.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from safetensors.numpy import load, save
from sqlalchemy import select

from services.domain.jobs import JobState
from services.storage.tables import model_versions
from tests.databases import new_database
from tests.e2e.hosted_cell import HostedCell, hosted_cell
from tests.faults.faulty_stack import TERMS, FaultyStack, complete, complete_round, faulty_stack
from tests.integration.cell import content_digest, open_round
from tests.stateful.consistency import check_consistency
from tests.unit.aggregators.flower_vectors import MODEL, MODELS, PARAMETERS, SAMPLES, UPDATES, assert_same


@dataclass
class Site:
    """A stack with one worker of two processes, and what its tasks come to without faults."""

    stack: FaultyStack
    peaceful_model: bytes


def start_site(kind: str, factory: pytest.TempPathFactory, postgres_url: str) -> Iterator[Site]:
    directory = factory.mktemp("stack")
    url = new_database(kind, directory, postgres_url)
    with faulty_stack(directory, url) as stack, stack.worker("--processes", "2"):
        yield Site(stack, complete_round(stack.start()))


@pytest.fixture(scope="module")
def shared_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    yield from start_site("sqlite", tmp_path_factory, "")


@pytest.fixture(scope="module")
def shared_postgresql(tmp_path_factory: pytest.TempPathFactory, postgres_url: str) -> Iterator[Site]:
    yield from start_site("postgresql", tmp_path_factory, postgres_url)


@pytest.fixture
def on_sqlite(shared_sqlite: Site) -> Iterator[Site]:
    yield shared_sqlite
    check_consistency(shared_sqlite.stack.database)


@pytest.fixture
def on_postgresql(shared_postgresql: Site) -> Iterator[Site]:
    yield shared_postgresql
    check_consistency(shared_postgresql.stack.database)


@pytest.mark.parametrize("kind", ["train_client", "aggregate_round", "evaluate_model"])
def test_a_worker_killed_at_work_is_replaced(on_sqlite: Site, kind: str) -> None:
    job_is_done_again(on_sqlite, f"{kind}.working.kill")


@pytest.mark.parametrize("kind", ["initialize_model", "train_client", "aggregate_round"])
def test_what_is_kept_but_not_committed_does_not_count(on_sqlite: Site, kind: str) -> None:
    job_is_done_again(on_sqlite, f"{kind}.kept.kill")


@pytest.mark.long
@pytest.mark.parametrize("fault", ["train_client.working.kill", "aggregate_round.kept.kill"])
def test_a_worker_is_killed_on_postgresql(on_postgresql: Site, fault: str) -> None:
    job_is_done_again(on_postgresql, fault)


def job_is_done_again(site: Site, fault: str) -> None:
    site.stack.arm(fault)
    assert complete_round(site.stack.start()) == site.peaceful_model
    job_id = site.stack.struck(fault).job_id
    job = site.stack.job(job_id)
    assert job.state is JobState.DONE
    assert job.attempts >= 2
    first, *_ = site.stack.told("job.failed", job_id)
    assert (first["attempt"], first["error"]) == (1, "the worker was not heard of in time")


def three_rounds(stack: FaultyStack, fault: str = "") -> list[bytes]:
    """The models of a task whose aggregator has a state; the fault befalls the second round."""
    cell = stack.cell()
    cell.start_task(**TERMS, aggregation="server-momentum")
    for number in (1, 2, 3):
        if fault and number == 2:
            stack.arm(fault)
        assert cell.finish_round(cell.begin_round())["state"] == "aggregated"
    if fault:
        job = stack.job(stack.struck(fault).job_id)
        assert (job.state, job.attempts) == (JobState.DONE, 2)
    return [cell.model(version) for version in (1, 2, 3)]


@pytest.mark.parametrize("fault", ["aggregate_round.working.kill", "aggregate_round.kept.kill"])
def test_another_worker_goes_on_with_the_state_of_the_aggregator(on_sqlite: Site, fault: str) -> None:
    assert three_rounds(on_sqlite.stack, fault) == three_rounds(on_sqlite.stack)
    with on_sqlite.stack.database.engine.connect() as connection:
        kept = connection.execute(select(model_versions.c.version, model_versions.c.state_digest)).all()
    assert {version for version, digest in kept if digest is not None} == {2, 3}


def test_aggregators_make_the_models_of_flower_while_a_worker_is_killed(on_sqlite: Site) -> None:
    """In the second of three rounds, at FedAdam's state; the others go on beside it."""
    stack = on_sqlite.stack
    cells = {
        name: flower_cell(stack, name) for name in ("fedadam", "fedyogi", "median", "trimmed-mean", "krum")
    }
    for number, updates in enumerate(UPDATES, 1):
        if number == 2:
            stack.arm("aggregate_round.kept.kill")
        opened = {}
        for name, cell in cells.items():
            opened[name] = open_round(stack.service, cell.task_id)
            slots = {slot["client_id"]: slot for slot in opened[name]["schedule"]["slots"]}
            for client_id, update in zip(cell.keys, updates, strict=True):
                response = cell.send(opened[name], slots[client_id], save(update))
                assert response.status_code == 201, response.text
            if number == 2 and name == "fedadam":
                struck = stack.struck("aggregate_round.kept.kill")
        for name, cell in cells.items():
            assert cell.round_over(opened[name]["round_id"])["state"] == "aggregated"
            assert_same(load(cell.model(number)), MODELS[name][number - 1])
    job = stack.job(struck.job_id)
    assert (job.state, job.attempts) == (JobState.DONE, 2)


def flower_cell(stack: FaultyStack, aggregation: str) -> HostedCell:
    """A cell with a task that begins with the model of the Flower vectors."""
    cell = hosted_cell(stack.service, SAMPLES)
    cell.start_task(
        dataset=None,
        aggregation=aggregation,
        aggregation_parameters=PARAMETERS[aggregation],
        update_clip_factor=None,
        min_updates=len(SAMPLES),
        request_fraction=1.0,
    )
    model = save(MODEL)
    path = f"/tasks/{cell.task_id}/models/0"
    stack.service.put(path, content=model, headers=content_digest(model)).raise_for_status()
    return cell


@pytest.mark.parametrize("kind", ["initialize_model", "train_client", "aggregate_round", "evaluate_model"])
def test_what_is_committed_is_not_done_again(on_sqlite: Site, kind: str) -> None:
    fault = f"{kind}.committed.kill"
    on_sqlite.stack.arm(fault)
    assert complete_round(on_sqlite.stack.start()) == on_sqlite.peaceful_model
    job_id = on_sqlite.stack.struck(fault).job_id
    assert [started["attempt"] for started in on_sqlite.stack.told("job.started", job_id)] == [1]
    assert on_sqlite.stack.job(job_id).state is JobState.DONE


@pytest.mark.parametrize("fault", ["train_client.working.freeze", "aggregate_round.kept.freeze"])
def test_a_worker_that_wakes_up_too_late_changes_nothing(on_sqlite: Site, fault: str) -> None:
    late_worker_changes_nothing(on_sqlite, fault)


@pytest.mark.long
def test_a_worker_that_wakes_up_too_late_changes_nothing_on_postgresql(on_postgresql: Site) -> None:
    late_worker_changes_nothing(on_postgresql, "aggregate_round.kept.freeze")


def late_worker_changes_nothing(site: Site, fault: str) -> None:
    site.stack.arm(fault)
    cell = site.stack.start()
    assert complete_round(cell) == site.peaceful_model
    before = site.stack.everything()
    frozen = site.stack.struck(fault)
    frozen.release()
    site.stack.logged(frozen.job_id, "job stopped", "result discarded")
    assert site.stack.everything() == before
    assert cell.model(1) == site.peaceful_model


def test_a_worker_that_wakes_up_while_another_does_its_job_changes_nothing(on_sqlite: Site) -> None:
    stack = on_sqlite.stack
    cell = stack.start()
    opened = open_round(stack.service, cell.task_id)
    stack.arm("train_client.kept.freeze")
    training_id = cell.ask_training(opened["round_id"], opened["schedule"]["slots"][0]["client_id"])
    frozen = stack.struck("train_client.kept.freeze")
    stack.arm("train_client.working.linger")
    lingering = stack.struck("train_client.working.linger")
    assert lingering.job_id == frozen.job_id
    frozen.release()
    stack.logged(frozen.job_id, "result discarded")
    assert stack.job(frozen.job_id).state is JobState.LEASED
    assert stack.service.get(f"/trainings/{training_id}").json()["state"] == "waiting"
    lingering.release()
    assert complete(cell, opened) == on_sqlite.peaceful_model


def test_what_kills_its_worker_each_time_is_given_up(on_sqlite: Site) -> None:
    """All three at once, for each takes three leases."""
    stack = on_sqlite.stack
    training, aggregating, initializing = stack.start(), stack.start(), stack.cell()
    to_aggregate = aggregating.begin_round()
    slots = to_aggregate["schedule"]["slots"]
    updates = [aggregating.trained(to_aggregate["round_id"], slot["client_id"]) for slot in slots]
    for kind in ("initialize_model", "train_client", "aggregate_round"):
        stack.arm(f"{kind}.working.kill", times=3)

    for slot, update in zip(slots, updates, strict=True):
        response = aggregating.send(to_aggregate, slot, update)
        assert response.status_code == 201, response.text
    to_train = open_round(stack.service, training.task_id)
    client_id = to_train["schedule"]["slots"][0]["client_id"]
    training_id = training.ask_training(to_train["round_id"], client_id)

    failed = initializing.start_task(**TERMS)
    assert failed["state"] == "failed"
    assert failed["outcome"] == "INITIALIZATION_FAILED"
    assert failed["detail"] == "the worker was not heard of in time"
    over = aggregating.round_over(to_aggregate["round_id"])
    assert (over["state"], over["outcome"]) == ("failed", "AGGREGATION_FAILED")
    assert aggregating.task_in("running")["model_version"] == 0
    failure = training.training_over(training_id)
    assert (failure["state"], failure["error"]) == ("failed", "the worker was not heard of in time")


@pytest.mark.parametrize("how", ["cancelled", "closed"])
def test_who_trains_for_nothing_stops(on_sqlite: Site, how: str) -> None:
    stack = on_sqlite.stack
    stack.arm("train_client.working.linger")
    cell = stack.start()
    opened = cell.begin_round()
    lingering = stack.struck("train_client.working.linger")
    path = f"/tasks/{cell.task_id}/cancel" if how == "cancelled" else f"/rounds/{opened['round_id']}/close"
    stack.service.post(path).raise_for_status()
    stack.logged(lingering.job_id, "job stopped")
    assert stack.job(lingering.job_id).state is JobState.CANCELLED
    training_id = stack.job(lingering.job_id).subject["training_id"]
    assert stack.service.get(f"/trainings/{training_id}").json()["state"] == "cancelled"
