"""The context of a worker process: settings, database, model store, data sets and networks."""

import copy
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import nn

from services.domain.builtins import is_import_path
from services.domain.jobs import WorkerIdentity
from services.domain.tasks import Task
from services.errors import DataSetUnavailableError, DeviceError, SettingsError
from services.learning.datasets import DataSet, Purpose, derive_seed, load_dataset
from services.learning.devices import choose_device
from services.learning.networks import build_network, load_parameters
from services.settings import WorkerSettings
from services.storage.database import Database
from services.storage.model_store import Blob, ModelStore, open_model_store
from trainer_worker.lease import StopFlag
from trainer_worker.publisher import Publisher

_SHAPE_WITHOUT_DATA = ((3, 32, 32), 10)
"""Input shape and classes of CIFAR-10, for tasks without a data set."""


@dataclass(frozen=True)
class WorkerContext:
    """The parts of one worker process."""

    settings: WorkerSettings
    database: Database
    models: ModelStore
    publisher: Publisher
    identity: WorkerIdentity
    process_index: int
    """Index of this process within its worker, from 0."""
    stopping: StopFlag
    """Set when the worker must stop."""
    _unavailable: dict[str, tuple[DataSetUnavailableError, float]] = field(default_factory=dict)
    """Data sets that could not be read, and when to try again: an attempt may take minutes."""
    _networks: dict[int, nn.Module] = field(default_factory=dict)
    """The network of the last task: building one takes as long as a few batches."""

    @cached_property
    def device(self) -> torch.device:
        """The device of this process."""
        try:
            return choose_device(self.settings.device, self.process_index)
        except SettingsError as error:
            raise DeviceError(str(error)) from error

    def data_of(self, task: Task) -> DataSet | None:
        """The task's data set, if it has one."""
        name = task.terms.dataset
        if name is None:
            return None
        known, until = self._unavailable.get(name, (None, 0.0))
        if known is not None and time.monotonic() < until:
            raise known
        try:
            return load_dataset(name, self.settings.datasets, self.settings.allowed_imports)
        except DataSetUnavailableError as error:
            self._unavailable[name] = (error, time.monotonic() + self.settings.refusal_s)
            raise

    def new_network(self, task: Task) -> nn.Module:
        """The task's network with its initial parameters; the same for every call."""
        data = self.data_of(task)
        shape, classes = (data.input_shape, data.classes) if data else _SHAPE_WITHOUT_DATA
        return build_network(
            task.terms.model,
            shape,
            classes,
            seed=derive_seed(task.terms.seed, Purpose.MODEL),
            allowed_imports=self.settings.allowed_imports,
        )

    def network_with(self, task: Task, digest: str) -> nn.Module:
        """The task's network with the parameters of a model; valid until the next call."""
        if task.serial not in self._networks:
            self._networks.clear()
            self._networks[task.serial] = self.new_network(task)
        network = self._networks[task.serial]
        if is_import_path(task.terms.model):
            network = copy.deepcopy(network)  # a user-defined network may have state besides its parameters
        load_parameters(network, self.models.path_of(digest))
        return network

    def save_blob(self, content: Iterable[bytes | memoryview]) -> Blob:
        """Write a file to the model store."""
        with self.models.receive() as incoming:
            for chunk in content:
                incoming.write(chunk)
            return incoming.save()


def bootstrap(
    settings: WorkerSettings, identity: WorkerIdentity, process_index: int, stopping: StopFlag
) -> WorkerContext:
    """Build the context of one worker process."""
    # One process per core: more threads would compete for the cores.
    torch.set_num_threads(1)
    if "datasets" not in settings.model_fields_set:
        settings.datasets.mkdir(parents=True, exist_ok=True)
    return WorkerContext(
        settings=settings,
        database=Database(settings.database_url),
        models=open_model_store(settings.model_store, settings.model_cache, settings.model_cache_bytes),
        publisher=Publisher(settings),
        identity=identity,
        process_index=process_index,
        stopping=stopping,
    )
