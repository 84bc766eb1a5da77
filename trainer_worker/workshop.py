"""Everything one worker process is made of, put together in one place."""

import copy
from dataclasses import dataclass, field
from multiprocessing.synchronize import Event

import torch
from safetensors.torch import save
from torch import Tensor, nn

from services.domain.tasks import Task
from services.heap import keep_heap_filled
from services.learning.datasets import load_dataset
from services.learning.devices import choose_device
from services.learning.imports import is_import_path
from services.learning.networks import build_network, load_parameters
from services.learning.samples import DataSet
from services.learning.seeds import Purpose, derive_seed
from services.settings import WorkerSettings
from services.storage.database import Database
from services.storage.model_store import Blob, ModelStore
from services.storage.open_model_store import open_model_store
from trainer_worker.publisher import Publisher

_SHAPE_WITHOUT_DATA = ((3, 32, 32), 10)
"""Where the server has no data, our networks are built for CIFAR-10's images and classes."""


@dataclass(frozen=True)
class Workshop:
    """The parts of one worker process."""

    settings: WorkerSettings
    database: Database
    models: ModelStore
    publisher: Publisher
    device: torch.device
    stopping: Event
    """Set when this worker is to end."""
    _networks: dict[int, nn.Module] = field(default_factory=dict)
    """That of the task worked on last: to build one takes as long as a few batches."""

    def data_of(self, task: Task) -> DataSet | None:
        """The task's data set, if it has one."""
        if task.terms.dataset is None:
            return None
        return load_dataset(task.terms.dataset, self.settings.datasets, self.settings.allowed_imports)

    def new_network(self, task: Task) -> nn.Module:
        """The task's network as it is at the start; the same each time."""
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
        """The task's network with the parameters of a model; the caller's until the next call."""
        if task.serial not in self._networks:
            self._networks.clear()
            self._networks[task.serial] = self.new_network(task)
        network = self._networks[task.serial]
        if is_import_path(task.terms.model):
            network = copy.deepcopy(network)  # one's own may remember more than its parameters
        load_parameters(network, self.models.path_of(digest))
        return network

    def keep(self, tensors: dict[str, Tensor]) -> Blob:
        """Put a model into the store."""
        with self.models.receive() as incoming:
            incoming.write(save(tensors))
            return incoming.keep()


def bootstrap(settings: WorkerSettings, place: int, stopping: Event) -> Workshop:
    """Build the parts of one process; ``place`` tells which of its machine's it is."""
    # Processes share the cores among themselves; threads in each would only get in each other's way.
    torch.set_num_threads(1)
    keep_heap_filled()
    if "datasets" not in settings.model_fields_set:
        settings.datasets.mkdir(parents=True, exist_ok=True)
    return Workshop(
        settings=settings,
        database=Database(settings.database_url),
        models=open_model_store(settings.model_store, settings.model_cache, settings.model_cache_bytes),
        publisher=Publisher(settings.broker_url),
        device=choose_device(settings.device, place),
        stopping=stopping,
    )
