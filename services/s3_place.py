"""Where in an S3-compatible service model files are: ``s3://bucket/prefix``."""

import re
from dataclasses import dataclass

SCHEME = "s3://"
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PREFIX = re.compile(r"([A-Za-z0-9!_.*'()-]+(/[A-Za-z0-9!_.*'()-]+)*)?")
"""Characters that are safe in the names of objects, says S3's manual."""


@dataclass(frozen=True)
class S3Place:
    """A bucket, and what the names of our objects in it begin with; empty, or without a slash at its end."""

    bucket: str
    prefix: str

    def __str__(self) -> str:
        return f"{SCHEME}{self.bucket}/{self.prefix}".rstrip("/")


def parse_s3_place(text: str) -> S3Place:
    """Read ``s3://bucket`` or ``s3://bucket/prefix``; ``ValueError`` if it is neither."""
    bucket, _, prefix = text.removeprefix(SCHEME).partition("/")
    prefix = prefix.rstrip("/")
    if not (text.startswith(SCHEME) and _BUCKET.fullmatch(bucket) and _PREFIX.fullmatch(prefix)):
        raise ValueError("say a directory, or s3://bucket/prefix")
    return S3Place(bucket, prefix)
