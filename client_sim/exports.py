"""Exports of runs to MLflow and TensorBoard, each with its own package; round by round, beside the run."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, Protocol

from client_sim.results import RoundRecord, RunRecord
from client_sim.scenario import Scenario
from services.errors import FedCSError

_MAX_PARAMETERS = 100
"""That MLflow takes in one request."""


class ExportError(FedCSError):
    """The runs cannot be exported."""

    cause: ClassVar[str] = "EXPORT_FAILED"


class Exporter(Protocol):
    """Receives the runs of an experiment; a run is named by its title."""

    def begin(self, title: str, scenario: Scenario, task_id: str) -> None:
        """A run has begun."""

    def add_round(self, title: str, round_: RoundRecord) -> None:
        """A round has ended."""

    def end(self, title: str, run: RunRecord) -> None:
        """A run has ended."""

    def close(self, pictures: Sequence[Path]) -> None:
        """The experiment has ended, or was interrupted."""


def make_exporters(experiment: str, mlflow_uri: str | None, tensorboard_dir: Path | None) -> list[Exporter]:
    """The exporters that were asked for; raise `ExportError` if one cannot work."""
    exporters: list[Exporter] = []
    if mlflow_uri is not None:
        exporters.append(MlflowExporter(mlflow_uri, experiment))
    if tensorboard_dir is not None:
        exporters.append(TensorBoardExporter(tensorboard_dir))
    return exporters


def _metrics(round_: RoundRecord) -> Iterator[tuple[str, float]]:
    """The figures of a round that are known."""
    for name, value in asdict(round_).items():
        if value is not None and name != "number":
            yield name, float(value)


def _parameters(scenario: Scenario) -> dict[str, str]:
    """The settings of a run by their keys in the scenario."""
    found: dict[str, str] = {}
    for name, value in scenario.model_dump(mode="json").items():
        inner = value if isinstance(value, dict) else {"": value}
        found |= {f"{name}.{key}".rstrip("."): str(setting) for key, setting in inner.items()}
    return found


class MlflowExporter:
    """An MLflow run for each run. Requests are sent by a thread, so that the simulation does not wait."""

    def __init__(self, uri: str, experiment: str) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        try:
            from mlflow.entities import Metric, Param  # noqa: PLC0415 - an optional package
            from mlflow.exceptions import MlflowException  # noqa: PLC0415
            from mlflow.tracking import MlflowClient  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise ExportError(
                "--mlflow needs 'mlflow'; install it: pip install 'fedcs-operator[mlflow]'"
            ) from error
        self._metric, self._parameter = Metric, Param
        try:
            self._client = MlflowClient(tracking_uri=uri)
            known = self._client.get_experiment_by_name(experiment)
            self._experiment_id = known.experiment_id if known else self._client.create_experiment(experiment)
        except (MlflowException, OSError) as error:
            raise ExportError(f"--mlflow {uri}: {error}") from error
        self._titles: list[str] = []
        self._run_ids: dict[str, str] = {}
        self._ended: set[str] = set()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="mlflow")
        self._sent: list[Future[None]] = []

    def begin(self, title: str, scenario: Scenario, task_id: str) -> None:
        """Start an MLflow run with the settings as its parameters."""

        def send() -> None:
            tags = {"task_id": task_id, "policy": scenario.task.policy}
            run = self._client.create_run(self._experiment_id, run_name=title, tags=tags)
            self._run_ids[title] = run.info.run_id
            items = list(_parameters(scenario).items())
            for first in range(0, len(items), _MAX_PARAMETERS):
                part = [self._parameter(*item) for item in items[first : first + _MAX_PARAMETERS]]
                self._client.log_batch(run.info.run_id, params=part)

        self._titles.append(title)
        self._send(send)

    def add_round(self, title: str, round_: RoundRecord) -> None:
        """Log the figures of a round; the step is its number."""
        self._log(title, dict(_metrics(round_)), round_.number)

    def end(self, title: str, run: RunRecord) -> None:
        """Log the accuracy of version 0, and end the MLflow run."""
        if run.initial_accuracy is not None:
            self._log(title, {"accuracy": run.initial_accuracy}, 0)
        self._ended.add(title)

    def close(self, pictures: Sequence[Path]) -> None:
        """Add the plots to every run and wait until all is sent; raise `ExportError` if a request failed."""
        for title in self._titles:
            self._send(self._ending(title, pictures))
        self._thread.shutdown(wait=True)
        failed = [error for sent in self._sent if (error := sent.exception()) is not None]
        if failed:
            raise ExportError(f"{len(failed)} requests to MLflow failed: {failed[0]}") from failed[0]

    def _ending(self, title: str, pictures: Sequence[Path]) -> Callable[[], None]:
        def send() -> None:
            run_id = self._run_ids[title]
            for picture in pictures:
                self._client.log_artifact(run_id, str(picture))
            self._client.set_terminated(run_id, "FINISHED" if title in self._ended else "KILLED")

        return send

    def _log(self, title: str, values: dict[str, float], step: int) -> None:
        at_ms = int(time.time() * 1000)

        def send() -> None:
            metrics = [self._metric(name, value, at_ms, step) for name, value in values.items()]
            self._client.log_batch(self._run_ids[title], metrics=metrics)

        self._send(send)

    def _send(self, request: Callable[[], None]) -> None:
        self._sent.append(self._thread.submit(request))


class TensorBoardExporter:
    """A directory with an event file for each run; the tags are the figures of a round."""

    def __init__(self, directory: Path) -> None:
        try:
            from tensorboard.compat.proto.event_pb2 import Event  # noqa: PLC0415 - an optional package
            from tensorboard.compat.proto.summary_pb2 import Summary  # noqa: PLC0415
            from tensorboard.summary.writer.event_file_writer import EventFileWriter  # noqa: PLC0415
        except ModuleNotFoundError as error:
            raise ExportError(
                "--tensorboard needs 'tensorboard'; install it: pip install 'fedcs-operator[tensorboard]'"
            ) from error
        self._event, self._summary, self._writer = Event, Summary, EventFileWriter
        self._directory = directory
        self._writers: dict[str, Any] = {}

    def begin(self, title: str, scenario: Scenario, task_id: str) -> None:  # noqa: ARG002 - not shown
        """Create the event file of a run."""
        name = f"{title} {task_id}".replace("/", "_").replace(", ", "-").replace(" ", "-")
        self._writers[title] = self._writer(str(self._directory / name))

    def add_round(self, title: str, round_: RoundRecord) -> None:
        """Write the figures of a round; the step is its number."""
        self._write(title, dict(_metrics(round_)), round_.number)

    def end(self, title: str, run: RunRecord) -> None:
        """Write the accuracy of version 0, and close the event file."""
        if run.initial_accuracy is not None:
            self._write(title, {"accuracy": run.initial_accuracy}, 0)
        self._writers.pop(title).close()

    def close(self, pictures: Sequence[Path]) -> None:  # noqa: ARG002 - scalars only
        """Close the event files of runs that were interrupted."""
        for writer in self._writers.values():
            writer.close()

    def _write(self, title: str, values: dict[str, float], step: int) -> None:
        scalars = [self._summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        summary = self._summary(value=scalars)
        writer = self._writers[title]
        writer.add_event(self._event(wall_time=time.time(), step=step, summary=summary))
        writer.flush()
