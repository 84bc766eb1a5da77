"""Settings of every process, from ``FEDCS_*`` environment variables; nothing else reads the environment."""

from pathlib import Path
from typing import Annotated, Literal, TypeVar

from limits import RateLimitItem, parse
from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from services.errors import SettingsError
from services.operator_key import find_or_make_key
from services.s3_place import S3Place, parse_s3_place

_MIN_KEY_CHARACTERS = 24
_MIN_DISTINCT_CHARACTERS = 8
_DAY_S = 24 * 3600.0


def _strong_key(key: SecretStr) -> SecretStr:
    text = key.get_secret_value()
    if len(text) < _MIN_KEY_CHARACTERS or len(set(text)) < _MIN_DISTINCT_CHARACTERS:
        raise ValueError(
            f"too weak: it needs {_MIN_KEY_CHARACTERS} characters, {_MIN_DISTINCT_CHARACTERS} of them "
            "different; `openssl rand -hex 32` makes a good one"
        )
    if not (text.isascii() and text.isprintable() and " " not in text):
        raise ValueError("it may hold printable ASCII characters only, and no spaces")
    return key


def _rate(text: str) -> str:
    try:
        parse(text)
    except ValueError as error:
        raise ValueError("say a rate such as 50/second or 1000/minute") from error
    return text


def _split(value: object) -> object:
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _store_place(value: object) -> object:
    return parse_s3_place(value) if isinstance(value, str) and "://" in value else value


OperatorKey = Annotated[SecretStr, AfterValidator(_strong_key)]
Rate = Annotated[str, AfterValidator(_rate)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Bytes = Annotated[int, Field(ge=1)]


class ProcessSettings(BaseSettings):
    """What every process of the service needs to know."""

    model_config = SettingsConfigDict(env_prefix="FEDCS_", frozen=True)

    data_dir: Path = Path("fedcs-data")
    database_url: str = Field(
        default_factory=lambda settings: f"sqlite:///{settings['data_dir']}/fedcs.sqlite"
    )
    model_store: Annotated[Path | S3Place, BeforeValidator(_store_place)] = Field(
        default_factory=lambda settings: settings["data_dir"] / "models"
    )
    model_cache_bytes: Bytes = 8 * 1024**3
    """Of copies that are kept on this machine, if the model store is on S3."""
    broker_url: str | None = None
    """Where workers are woken up; without one, jobs wait until there is."""

    @property
    def model_cache(self) -> Path:
        """Where those copies are."""
        return self.data_dir / "model-cache"


class WorkerSettings(ProcessSettings):
    """What a worker needs to know."""

    broker_url: str
    datasets: Path = Field(default_factory=lambda settings: settings["data_dir"] / "datasets")
    """Where the files of data sets are."""
    device: Literal["cuda", "mps", "cpu"] | None = None
    """What to compute on; the best there is, if not said."""
    allowed_imports: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)] = ()
    """Modules and packages from which tasks may name networks and data sets of their own."""
    pulse_file: Path | None = None
    """Touched every few seconds while the worker takes messages, for health checks."""


class Settings(ProcessSettings):
    """What an API process needs to know."""

    operator_key: OperatorKey
    api_root: Annotated[str, Field(pattern=r"^(/[A-Za-z0-9._~-]+)*$")] = ""
    """Prefix of every path, e.g. ``/fedcs/v1``."""
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000

    max_json_bytes: Bytes = 64 * 1024 * 1024
    max_model_bytes: Bytes = 512 * 1024 * 1024
    """Of an initial model or an update."""
    max_connections: Annotated[int, Field(ge=1)] = 10_000
    """At a time, in this process; a client that waits for an assignment is one."""
    min_free_disk_bytes: Annotated[int, Field(ge=0)] = 256 * 1024 * 1024
    client_rate_limit: Rate = "50/second"
    operator_rate_limit: Rate = "10000/second"
    metrics_open: bool = True
    """Whether ``/metrics`` answers without a key."""

    report_retention_s: Seconds = 30 * _DAY_S
    event_retention_s: Seconds = 30 * _DAY_S
    idempotency_retention_s: Seconds = _DAY_S

    @property
    def rate_limits(self) -> tuple[RateLimitItem, RateLimitItem]:
        """What a client's key may ask for, and what an operator's."""
        return parse(self.client_rate_limit), parse(self.operator_rate_limit)


class EmbeddedSettings(Settings):
    """The settings of ``fedcs up``: with no operator key given, one is made and kept with the data."""

    operator_key: OperatorKey = Field(
        default_factory=lambda settings: SecretStr(find_or_make_key(settings["data_dir"])),
        validate_default=True,
    )


_S = TypeVar("_S", bound=ProcessSettings)


def load_settings(kind: type[_S], **given: object) -> _S:
    """Read the settings, and make the data directory.

    Those ``given`` on the command line, unless None, win over the environment.
    """
    try:
        settings = kind.model_validate({name: value for name, value in given.items() if value is not None})
        settings.data_dir.mkdir(parents=True, exist_ok=True)
    except ValidationError as error:
        problems = [
            f"FEDCS_{'_'.join(map(str, problem['loc'])).upper()}: {problem['msg']}"
            for problem in error.errors()
        ]
        raise SettingsError("; ".join(problems)) from error
    except OSError as error:
        raise SettingsError(f"FEDCS_DATA_DIR: {error.filename}: {error.strerror}") from error
    return settings
