"""Settings of every process, from ``FEDCS_*`` environment variables; nothing else reads the environment."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from limits import RateLimitItem, parse
from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError, ValidationInfo
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from services.errors import SettingsError
from services.startup import load_or_create_key
from services.storage.model_store import S3Location, parse_s3_location

_MIN_KEY_CHARACTERS = 24
_MIN_DISTINCT_CHARACTERS = 8
_DAY_S = 24 * 3600.0


def _strong_key(key: SecretStr) -> SecretStr:
    text = key.get_secret_value()
    if len(text) < _MIN_KEY_CHARACTERS or len(set(text)) < _MIN_DISTINCT_CHARACTERS:
        raise ValueError(
            f"too weak: at least {_MIN_KEY_CHARACTERS} characters, {_MIN_DISTINCT_CHARACTERS} of them "
            "different, are required; `openssl rand -hex 32` creates a good key"
        )
    if not (text.isascii() and text.isprintable() and " " not in text):
        raise ValueError("only printable ASCII characters without spaces are allowed")
    return key


def _rate(text: str) -> str:
    try:
        parse(text)
    except ValueError as error:
        raise ValueError("must be a rate such as 50/second or 1000/minute") from error
    return text


def _split(value: object) -> object:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _store_place(value: object) -> object:
    return parse_s3_location(value) if isinstance(value, str) and "://" in value else value


def _not_below(name: str) -> AfterValidator:
    """Refuse an upper limit below the lower limit, which is the setting ``name``."""

    def check(value: float, info: ValidationInfo) -> float:
        if name in info.data and value < info.data[name]:
            raise ValueError(f"must not be below FEDCS_{name.upper()}, {info.data[name]:g}")
        return value

    return AfterValidator(check)


OperatorKey = Annotated[SecretStr, AfterValidator(_strong_key)]
Rate = Annotated[str, AfterValidator(_rate)]
Figure = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Bytes = Annotated[int, Field(ge=1)]


class ProcessSettings(BaseSettings):
    """Settings of every process."""

    model_config = SettingsConfigDict(env_prefix="FEDCS_", frozen=True)

    data_dir: Path = Path("fedcs-data")
    database_url: str = Field(
        default_factory=lambda settings: f"sqlite:///{settings['data_dir']}/fedcs.sqlite"
    )
    model_store: Annotated[Path | S3Location, BeforeValidator(_store_place)] = Field(
        default_factory=lambda settings: settings["data_dir"] / "models"
    )
    model_cache_bytes: Bytes = 8 * 1024**3
    """Size of the local cache of a model store on S3."""
    broker_url: str | None = None
    """The Celery broker; without one, jobs wait."""
    republish_after_s: Seconds = 30.0
    """A job that is still waiting this long after its publication is published again."""

    @property
    def model_cache(self) -> Path:
        """Directory of the cache of a model store on S3."""
        return self.data_dir / "model-cache"


class WorkerSettings(ProcessSettings):
    """Settings of a worker."""

    broker_url: Annotated[str, Field(min_length=1)]
    datasets: Path = Field(default_factory=lambda settings: settings["data_dir"] / "datasets")
    """Directory of the data sets."""
    device: Literal["cuda", "mps", "cpu"] | None = None
    """The device to compute on; by default the best available one."""
    allowed_imports: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)] = ()
    """Modules and packages from which tasks may import networks and data sets."""
    heartbeat_file: Path | None = None
    """Touched every few seconds while the worker consumes messages, for health checks."""
    job_lease_s: Seconds = 20.0
    """Duration of a job's lease; it is renewed four times within this time."""
    progress_timeout_s: Seconds = 600.0
    """The lease of a job without progress for this long is not renewed, and its process exits."""
    retry_pause_s: Seconds = 5.0
    """Pause before a retry after a failure of a file, the model store or the database."""
    heartbeat_s: Seconds = 10.0
    """Interval of a worker's heartbeat; after three intervals without one it counts as dead."""
    refusal_s: Seconds = 60.0
    """How long a worker does not take a job again that it has refused."""


class Settings(ProcessSettings):
    """Settings of an API process."""

    operator_key: OperatorKey
    api_root: Annotated[str, Field(pattern=r"^(/[A-Za-z0-9._~-]+)*$")] = ""
    """Prefix of every path, e.g. ``/fedcs/v1``."""
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000

    max_json_bytes: Bytes = 64 * 1024 * 1024
    max_model_bytes: Bytes = 512 * 1024 * 1024
    """Maximum size of an initial model or an update."""
    max_connections: Annotated[int, Field(ge=1)] = 10_000
    """Concurrent connections of this process, including long polls for assignments."""
    min_free_disk_bytes: Annotated[int, Field(ge=0)] = 256 * 1024 * 1024
    client_rate_limit: Rate = "50/second"
    operator_rate_limit: Rate = "10000/second"
    metrics_open: bool = True
    """Whether ``/metrics`` answers without a key."""

    report_min_throughput_bps: Figure = 100.0
    report_max_throughput_bps: Annotated[Figure, _not_below("report_min_throughput_bps")] = 100e9
    """Limits of reported throughput, stated or derived from a radio measurement."""
    report_min_compute_samples_per_s: Figure = 0.001
    report_max_compute_samples_per_s: Annotated[Figure, _not_below("report_min_compute_samples_per_s")] = 1e7
    report_max_data_samples: Annotated[int, Field(ge=1)] = 10**9

    reconciler_lease_s: Seconds = 10.0
    """Duration of the reconciler's lease, after which another API process takes over."""

    settle_s: Seconds = 30.0
    """Maximum time after its deadline that a round waits for the checks of arrived uploads."""

    report_retention_s: Seconds = 30 * _DAY_S
    event_retention_s: Seconds = 30 * _DAY_S
    allocation_retention_s: Seconds = 30 * _DAY_S
    """How long it is known which round held which resource blocks."""
    idempotency_retention_s: Seconds = _DAY_S

    @property
    def rate_limits(self) -> tuple[RateLimitItem, RateLimitItem]:
        """The rate limits of client keys and operator keys."""
        return parse(self.client_rate_limit), parse(self.operator_rate_limit)


class EmbeddedSettings(Settings):
    """Settings of ``fedcs up``, which creates an operator key if none is set."""

    operator_key: OperatorKey = Field(
        default_factory=lambda settings: SecretStr(load_or_create_key(settings["data_dir"])),
        validate_default=True,
    )


_S = TypeVar("_S", bound=ProcessSettings)


def load_settings(kind: type[_S], **given: object) -> _S:
    """Read the settings and create the data directory.

    Values ``given`` on the command line, unless None, override the environment.
    """
    try:
        settings = kind.model_validate({name: value for name, value in given.items() if value is not None})
        settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except ValidationError as error:
        raise SettingsError("; ".join(_describe(error))) from error
    except OSError as error:
        raise SettingsError(f"FEDCS_DATA_DIR: {error.filename}: {error.strerror}") from error
    return settings


def _describe(error: ValidationError) -> Iterator[str]:
    """The error of each variable, without those whose default depends on another variable."""
    for problem in error.errors():
        variable = f"FEDCS_{'_'.join(map(str, problem['loc'])).upper()}"
        if problem["type"] == "missing":
            yield f"{variable} is not set; docs/operations.md describes it"
        elif problem["type"] != "default_factory_not_called":
            yield f"{variable}: {problem['msg']}"
