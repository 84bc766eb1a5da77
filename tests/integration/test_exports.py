"""``fedcs simulate`` exports to MLflow and TensorBoard, read with their packages if these are installed."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.test_up import without
from tests.running_service import OPERATOR_KEY
from tests.running_stack import Stack, running_stack


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running_stack(tmp_path_factory.mktemp("stack"), "--processes", "1") as found:
        yield found


def export(stack: Stack, out: Path, *options: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "operator_api", "simulate", "--url", str(stack.service.base_url)]
    command += ["--key", OPERATOR_KEY, "--rounds", "3", "--clients", "10", "--out", str(out), *options]
    return subprocess.run(
        command,
        cwd=stack.directory,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )


@pytest.mark.parametrize(
    ("option", "package"),
    [("--mlflow", "mlflow"), ("--tensorboard", "tensorboard")],
    ids=["mlflow", "tensorboard"],
)
def test_without_its_package_an_export_names_the_extra(
    option: str, package: str, stack: Stack, tmp_path: Path
) -> None:
    before = stack.service.get("/tasks").headers["x-total-count"]
    paths = without(package, tmp_path / "path")
    failed = export(stack, tmp_path / "out", option, str(tmp_path / "export"), PYTHONPATH=paths)
    assert failed.returncode == 1
    assert failed.stderr == (
        f"fedcs: {option} needs {package!r}; install it: pip install 'fedcs-operator[{package}]'\n"
    )
    assert stack.service.get("/tasks").headers["x-total-count"] == before


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of MLflow's own use of SQLAlchemy
def test_mlflow_has_parameters_figures_of_each_round_and_plots(stack: Stack, tmp_path: Path) -> None:
    tracking = pytest.importorskip("mlflow.tracking", reason="the extra mlflow is not installed")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    done = export(stack, tmp_path / "out", "--mlflow", uri, "--sweep", "local_epochs=1,2")
    assert done.returncode == 0, done.stderr
    client = tracking.MlflowClient(tracking_uri=uri)
    runs = client.search_runs([client.get_experiment_by_name("small").experiment_id])
    assert {run.info.run_name for run in runs} == {"fedcs, local_epochs=1", "fedcs, local_epochs=2"}
    for run in runs:
        assert run.info.status == "FINISHED"
        assert run.data.params["cell.clients"] == "10"
        assert run.info.run_name == f"fedcs, local_epochs={run.data.params['task.local_epochs']}"
        rounds = client.get_metric_history(run.info.run_id, "accuracy")
        metrics = stack.service.get(f"/tasks/{run.data.tags['task_id']}/metrics").json()
        known = metrics["rounds"]
        assert {metric.step: metric.value for metric in rounds} == {0: metrics["initial_accuracy"]} | {
            item["number"]: item["accuracy"] for item in known
        }
        assert len(known) == 3
        received = client.get_metric_history(run.info.run_id, "received")
        assert [metric.value for metric in received] == [item["received"] for item in known]
        assert {"accuracy.png", "clients.png"} <= {
            file.path for file in client.list_artifacts(run.info.run_id)
        }


@pytest.mark.long
def test_an_mlflow_that_does_not_answer_is_found_out_before_the_run(stack: Stack, tmp_path: Path) -> None:
    pytest.importorskip("mlflow.tracking", reason="the extra mlflow is not installed")
    before = stack.service.get("/tasks").headers["x-total-count"]
    uri = f"sqlite:///{tmp_path}/missing/mlflow.db"
    (tmp_path / "missing").write_text("")
    failed = export(stack, tmp_path / "out", "--mlflow", uri)
    assert failed.returncode == 1
    assert f"fedcs: --mlflow {uri}: " in failed.stderr
    assert stack.service.get("/tasks").headers["x-total-count"] == before


@pytest.mark.long
def test_the_reader_of_tensorboard_finds_the_figures_of_each_round(stack: Stack, tmp_path: Path) -> None:
    reader = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="the extra tensorboard is not installed",
    )
    done = export(stack, tmp_path / "out", "--tensorboard", str(tmp_path / "board"))
    assert done.returncode == 0, done.stderr
    (directory,) = (tmp_path / "board").iterdir()
    events = reader.EventAccumulator(str(directory))
    events.Reload()
    task_id = directory.name.removeprefix("fedcs-")
    known = stack.service.get(f"/tasks/{task_id}/metrics").json()["rounds"]
    for name in ("accuracy", "loss", "received", "selected"):
        found = [(event.step, event.value) for event in events.Scalars(name) if event.step]
        assert found == [(item["number"], pytest.approx(item[name], rel=1e-6)) for item in known]
