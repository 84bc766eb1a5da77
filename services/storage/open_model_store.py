"""The model store that the settings name."""

from pathlib import Path

from services.errors import SettingsError
from services.s3_place import S3Place
from services.storage.model_store import LocalModelStore, ModelStore


def open_model_store(place: Path | S3Place, cache: Path, cache_bytes: int) -> ModelStore:
    """The store in this directory or on S3; then what is read is also kept in the cache, up to so much."""
    if isinstance(place, Path):
        return LocalModelStore(place)
    try:
        # Only here: it takes as long to import as the rest of the API, and is not installed everywhere.
        from services.storage.s3_model_store import S3ModelStore  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if error.name not in ("boto3", "botocore"):
            raise
        raise SettingsError(
            f"FEDCS_MODEL_STORE: {place} needs a package: pip install 'fedcs-operator[s3]'"
        ) from error
    return S3ModelStore(place, cache, cache_bytes)
