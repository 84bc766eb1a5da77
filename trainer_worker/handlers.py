"""Handlers of the four job kinds: read the inputs, compute, and commit the result under the job's lease.

No lock is held during the computation. A handler that lost its lease commits nothing; the garbage collector
deletes the file that it wrote.
"""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from safetensors.numpy import load_file
from safetensors.numpy import save as save_arrays
from safetensors.torch import save

from services.aggregators import make_aggregator
from services.aggregators.aggregation import ReceivedUpdate, aggregate_updates
from services.aggregators.updates import ReceivedModel
from services.domain.clipping import ClipTerms
from services.domain.jobs import Job, JobKind
from services.domain.tasks import PARTS
from services.errors import DataSetError
from services.learning.datasets import Purpose, derive_seed, draw_partition
from services.learning.evaluation import evaluate
from services.learning.local_update import Hyperparameters, update_locally
from services.learning.networks import parameters_of
from services.protocol.aggregation import finish_aggregation
from services.protocol.evaluation import finish_evaluation
from services.protocol.initialization import finish_initialization
from services.protocol.jobs import finish_training
from services.storage.models import prepare_transfer
from services.tensors.encoded_files import encode_file
from services.tensors.encodings import make_encoding
from trainer_worker.context import WorkerContext

Progress: TypeAlias = Callable[[float], None]
"""Called with the fraction that is done; raises when the job must stop."""


def initialize_model(context: WorkerContext, job: Job, progress: Progress) -> bool:
    """Initialization: create the first global model, and check that the data set can be read."""
    with context.database.reading() as store:
        task = store.tasks.get(job.subject["task_id"])
    network = context.new_network(task)
    progress(1.0)
    blob = context.save_blob([save(parameters_of(network))])
    transfer = prepare_transfer(context.models, task.terms, blob)
    with context.database.unit_of_work() as uow:
        done = finish_initialization(uow, job, blob, context.database.now(), transfer)
        uow.commit()
    return done


def train_client(context: WorkerContext, job: Job, progress: Progress) -> bool:
    """Update: train for a simulated client on its partition of the task's data set."""
    with context.database.reading() as store:
        training = store.trainings.get(job.subject["training_id"])
        round_ = store.rounds.get(training.round_id)
        task = store.tasks.get(round_.task_id)
        slot = store.rounds.slot(round_.serial, training.client_id)
        model = store.models.get(task.serial, round_.model_version)
    assert slot is not None, "only selected clients train"
    terms = task.terms
    data = context.data_of(task)
    if data is None:
        raise DataSetError("the task has no data set for simulated clients; create a task with a data set")
    indices = draw_partition(
        data.training.labels,
        data.classes,
        terms.partition_scheme,
        samples=slot.data_samples,
        task_seed=terms.seed,
        partition=training.partition,
    )
    received = model.download.digest
    network = context.network_with(task, received)
    update_locally(
        network,
        data.prepare(data.training.inputs[indices], context.device),
        data.training.labels[indices].to(context.device),
        Hyperparameters(
            terms.local_epochs,
            terms.batch_size,
            round_.learning_rate(terms),
            gradient_clip_norm=terms.gradient_clip_norm,
            local_momentum=terms.local_momentum,
            weight_decay=terms.weight_decay,
            proximal_mu=terms.proximal_mu,
            calibrated_loss=terms.calibrated_loss,
        ),
        seed=derive_seed(terms.seed, Purpose.TRAINING, round_.number, training.partition),
        after_batch=progress,
    )
    encoded = encode_file(
        make_encoding(round_.terms.update_encoding, round_.terms.topk_fraction),
        save(parameters_of(network)),
        seed=derive_seed(terms.seed, Purpose.ENCODING, round_.number, training.partition),
        received=context.models.path_of(received).read_bytes(),
    )
    blob = context.save_blob(encoded)
    with context.database.unit_of_work() as uow:
        done = finish_training(uow, job, training, blob, context.database.now())
        uow.commit()
    return done


def aggregate_round(context: WorkerContext, job: Job, progress: Progress) -> bool:
    """Aggregation: compute the next global model from a round's updates."""
    with context.database.reading() as store:
        round_ = store.rounds.get(job.subject["round_id"])
        task = store.tasks.get(round_.task_id)
        model = store.models.get(task.serial, round_.model_version)
        updates = store.updates.of_round(round_.serial)
        slots = store.rounds.slots_of(round_.serial, [update.client_id for update in updates])
        past = store.rounds.past_norms(round_)
        before = store.models.get(task.serial, model.version - 1) if model.version else None
    terms = task.terms
    travelled = model.download.digest
    digests = {model.digest, travelled, *(update.digest for update in updates)}
    if model.state_digest is not None:
        digests.add(model.state_digest)
    if before is not None:
        digests.add(before.digest)
    with context.models.pinned(digests) as paths:
        aggregated = aggregate_updates(
            paths[model.digest],
            [
                ReceivedUpdate(update.client_id, paths[update.digest], slots[update.client_id].data_samples)
                for update in updates
            ],
            make_aggregator(terms.aggregation, terms.aggregation_parameters),
            state=None if model.state_digest is None else load_file(paths[model.state_digest]),
            clipping=ClipTerms(terms.update_clip_factor, terms.max_update_norm, past),
            received=ReceivedModel(
                paths[travelled], make_encoding(round_.terms.model_encoding, round_.terms.topk_fraction)
            ),
            previous=None if before is None else paths[before.digest],
            encoding=make_encoding(round_.terms.update_encoding, round_.terms.topk_fraction),
            progress=progress,
        )
    blob = None if aggregated.model is None else context.save_blob(aggregated.model.content())
    transfer = None if blob is None else prepare_transfer(context.models, terms, blob)
    state = None if aggregated.state is None else context.save_blob([save_arrays(dict(aggregated.state))])
    with context.database.unit_of_work() as uow:
        now = context.database.now()
        done = finish_aggregation(uow, job, blob, aggregated.record, now, state=state, transfer=transfer)
        uow.commit()
    return done


def evaluate_model(context: WorkerContext, job: Job, progress: Progress) -> bool:
    """Evaluation: evaluate a model version on one part of the task's validation data."""
    with context.database.reading() as store:
        task = store.tasks.get(job.subject["task_id"])
        model = store.models.get(task.serial, int(job.subject["version"]))
    data = context.data_of(task)
    assert data is not None, "only tasks with a data set are evaluated"
    network = context.network_with(task, model.digest)
    part = int(job.subject["part"])
    score = evaluate(network, data, part=part, parts=PARTS, device=context.device, after_batch=progress)
    with context.database.unit_of_work() as uow:
        done = finish_evaluation(uow, job, score, context.database.now())
        uow.commit()
    return done


HANDLERS: Mapping[JobKind, Callable[[WorkerContext, Job, Progress], bool]] = {
    JobKind.INITIALIZE_MODEL: initialize_model,
    JobKind.TRAIN_CLIENT: train_client,
    JobKind.AGGREGATE_ROUND: aggregate_round,
    JobKind.EVALUATE_MODEL: evaluate_model,
}
