"""The service on several hosts: each process has files of its own, and shares PostgreSQL, Redis and S3."""

from pathlib import Path
from typing import Any
from uuid import uuid4

from services.storage.model_store import S3Location
from tests.databases import new_database
from tests.s3_server import BUCKET


def scaled_out_settings(directory: Path, postgres_url: str) -> dict[str, Any]:
    """What makes a stack of these: two API processes, an empty database, an empty store on S3."""
    return {
        "api_processes": 2,
        "database_url": new_database("postgresql", directory, postgres_url),
        "model_store": str(S3Location(BUCKET, uuid4().hex)),
    }


def host(directory: Path, name: str) -> dict[str, str]:
    """The settings of a worker on a host of its own."""
    return {"data_dir": str(directory / name)}
