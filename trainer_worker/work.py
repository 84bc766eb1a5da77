"""The four kinds of work: read what is needed, compute, and commit the result under the job's lease.

Nothing is locked while computing. Whoever has lost the lease meanwhile commits nothing; a file it wrote is
swept up later.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from services.domain.evaluation import PARTS
from services.domain.jobs import Job, JobKind
from services.errors import DataSetError
from services.learning.aggregation import Contribution, aggregate
from services.learning.evaluation import evaluate
from services.learning.local_update import Recipe, update_locally
from services.learning.networks import parameters_of
from services.learning.partition import draw_partition
from services.learning.rules import RULES
from services.learning.seeds import Purpose, derive_seed
from services.protocol.aggregation import finish_aggregation
from services.protocol.evaluation import finish_evaluation
from services.protocol.hosted_training import finish_training
from services.protocol.initialization import finish_initialization
from trainer_worker.workshop import Workshop

Progress: TypeAlias = Callable[[float], None]
"""Told which part of the work is done; raises when the work is to end."""


def initialize_model(workshop: Workshop, job: Job, progress: Progress) -> bool:
    """Initialization: make the first global model, and see that the data set can be read."""
    with workshop.database.reading() as store:
        task = store.tasks.get(job.subject["task_id"])
    network = workshop.new_network(task)
    progress(1.0)
    blob = workshop.keep(parameters_of(network))
    with workshop.database.unit_of_work() as uow:
        done = finish_initialization(uow, job, blob, workshop.database.now())
        uow.commit()
    return done


def train_client(workshop: Workshop, job: Job, progress: Progress) -> bool:
    """Update: train in a simulated client's place, on its part of the task's data."""
    with workshop.database.reading() as store:
        training = store.trainings.get(job.subject["training_id"])
        round_ = store.rounds.get(training.round_id)
        task = store.tasks.get(round_.task_id)
        slot = store.rounds.slot(round_.serial, training.client_id)
        model = store.models.get(task.serial, round_.model_version)
    assert slot is not None, "only selected clients train"
    terms = task.terms
    data = workshop.data_of(task)
    if data is None:
        raise DataSetError("the task has no data set that simulated clients could train on; name one in it")
    places = draw_partition(
        data.training.labels,
        data.classes,
        terms.partition_scheme,
        samples=slot.data_samples,
        task_seed=terms.seed,
        partition=training.partition,
    )
    network = workshop.network_with(task, model.digest)
    update_locally(
        network,
        data.prepare(data.training.inputs[places], workshop.device),
        data.training.labels[places].to(workshop.device),
        Recipe(
            terms.local_epochs,
            terms.batch_size,
            terms.learning_rate * terms.learning_rate_decay ** (round_.number - 1),
        ),
        seed=derive_seed(terms.seed, Purpose.TRAINING, round_.number, training.partition),
        after_batch=progress,
    )
    blob = workshop.keep(parameters_of(network))
    with workshop.database.unit_of_work() as uow:
        done = finish_training(uow, job, training, blob, workshop.database.now())
        uow.commit()
    return done


def aggregate_round(workshop: Workshop, job: Job, progress: Progress) -> bool:
    """Aggregation: make the next global model out of a round's updates."""
    with workshop.database.reading() as store:
        round_ = store.rounds.get(job.subject["round_id"])
        task = store.tasks.get(round_.task_id)
        model = store.models.get(task.serial, round_.model_version)
        updates = store.updates.of_round(round_.serial)
    with workshop.models.hold({model.digest, *(update.digest for update in updates)}) as paths:
        aggregated = aggregate(
            paths[model.digest],
            [Contribution(update.client_id, paths[update.digest], update.data_samples) for update in updates],
            RULES[task.terms.aggregation],
            max_norm=task.terms.max_update_norm,
            progress=progress,
        )
    blob = None if aggregated.tensors is None else workshop.keep(aggregated.tensors)
    with workshop.database.unit_of_work() as uow:
        done = finish_aggregation(uow, job, blob, aggregated.left_out, workshop.database.now())
        uow.commit()
    return done


def evaluate_model(workshop: Workshop, job: Job, progress: Progress) -> bool:
    """Evaluation: measure a version of the model on a part of the task's validation data."""
    with workshop.database.reading() as store:
        task = store.tasks.get(job.subject["task_id"])
        model = store.models.get(task.serial, int(job.subject["version"]))
    data = workshop.data_of(task)
    assert data is not None, "only tasks with a data set are evaluated"
    network = workshop.network_with(task, model.digest)
    part = int(job.subject["part"])
    score = evaluate(network, data, part=part, parts=PARTS, device=workshop.device, after_batch=progress)
    with workshop.database.unit_of_work() as uow:
        done = finish_evaluation(uow, job, score, workshop.database.now())
        uow.commit()
    return done


WORK: Mapping[JobKind, Callable[[Workshop, Job, Progress], bool]] = {
    JobKind.INITIALIZE_MODEL: initialize_model,
    JobKind.TRAIN_CLIENT: train_client,
    JobKind.AGGREGATE_ROUND: aggregate_round,
    JobKind.EVALUATE_MODEL: evaluate_model,
}
