"""How a version of a model travels: the encoded file that clients download, and the scheduled sizes."""

from dataclasses import dataclass

from services.domain.tasks import TaskTerms
from services.storage.model_store import Blob, ModelStore
from services.tensors.encoded_files import encode_file
from services.tensors.encodings import make_encoding, scheduled_size
from services.tensors.encodings.float32 import Float32
from services.tensors.layout import read_layout


@dataclass(frozen=True)
class Transfer:
    """How a version travels; without anything, as it is."""

    encoded: Blob | None = None
    """The file that clients download, if the model travels encoded."""
    upload_size_bytes: int | None = None
    """What is scheduled for an update, if updates travel encoded."""
    download_size_bytes: int | None = None
    """What is scheduled for the download, if the model travels encoded."""


def prepare_transfer(models: ModelStore, terms: TaskTerms, model: Blob) -> Transfer:
    """Make and keep the file that clients will download, and find the sizes that are to be scheduled.

    The rounding depends on the model only, so that the file is the same each time.
    """
    upload_size_bytes = download_size_bytes = encoded = None
    update_encoding = make_encoding(terms.update_encoding, terms.topk_fraction)
    if update_encoding.name != Float32.name:
        upload_size_bytes = update_encoding.encoded_size(read_layout(models.path_of(model.digest)))
    model_encoding = make_encoding(terms.model_encoding, terms.topk_fraction)
    if model_encoding.name != Float32.name:
        content = models.path_of(model.digest).read_bytes()
        with models.receive() as incoming:
            for piece in encode_file(model_encoding, content, seed=int(model.digest[:15], 16)):
                incoming.write(piece)
            encoded = incoming.save()
        download_size_bytes = encoded.size_bytes
    if terms.model_size_bytes is not None:
        upload_size_bytes = scheduled_size(update_encoding, terms.model_size_bytes)
        download_size_bytes = scheduled_size(model_encoding, terms.model_size_bytes)
    return Transfer(encoded, upload_size_bytes, download_size_bytes)
