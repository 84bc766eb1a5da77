"""``fedcs simulate`` and ``fedcs demo`` as a user calls them: what they leave, and how they end."""

import csv
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.fork_server import ModulePopen, run_module
from tests.integration.rounds_setup import eventually
from tests.running_service import OPERATOR_KEY
from tests.running_stack import Stack, running_stack

PICTURES = ("clients.png", "round-fedcs.png", "cell-fedcs.png", "round-fedlim.png", "cell-fedlim.png")


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running_stack(tmp_path_factory.mktemp("stack"), "--processes", "1") as found:
        yield found


def start(*arguments: str, **environment: str) -> "subprocess.Popen[str]":
    return ModulePopen[str](
        [sys.executable, "-m", "operator_api", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"COLUMNS": "120"} | environment,
    )


def simulate(url: object, *arguments: str, key: str = OPERATOR_KEY) -> tuple[int, str, str]:
    options = ("--url", str(url), "--key", key, "--no-training", "--rounds", "2", *arguments)
    with start("simulate", *options) as process:
        output, errors = process.communicate(timeout=300)
        return process.returncode, output, errors


def test_two_policies_are_compared_and_leave_results_and_pictures(stack: Stack, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "out"
    policies = ("--policy", "fedcs", "--policy", "fedlim")
    code, shown, errors = simulate(stack.service.base_url, *policies, "--out", str(out), "--clients", "50")
    assert code == 0, errors
    for expected in ("fedcs", "fedlim", "clients per round", "Results and plots"):
        assert expected in shown
    for picture in PICTURES:
        assert (out / picture).read_bytes().startswith(b"\x89PNG")
    runs = json.loads((out / "summary.json").read_text())["runs"]
    assert [(run["policy"], run["rounds"], run["scenario"]["cell"]["clients"]) for run in runs] == [
        ("fedcs", 2, 50),
        ("fedlim", 2, 50),
    ]
    rows = list(csv.DictReader((out / "rounds.csv").read_text().splitlines()))
    assert [(row["policy"], row["number"]) for row in rows] == [
        ("fedcs", "1"),
        ("fedcs", "2"),
        ("fedlim", "1"),
        ("fedlim", "2"),
    ]
    for run in runs:
        of_run = [int(row["received"]) for row in rows if row["policy"] == run["policy"]]
        assert run["clients_per_round"] == sum(of_run) / 2
    assert runs[0]["clients_per_round"] > runs[1]["clients_per_round"]
    assert _enrolled(stack.service, runs) == []


def _enrolled(service: httpx.Client, runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The clients with the labels of these runs' tasks."""
    labels = [service.get(f"/tasks/{run['task_id']}").json()["labels"] for run in runs]
    found = [service.get("/clients", params={"label": f"fleet={item['fleet']}"}).json() for item in labels]
    return [client for clients in found for client in clients]


def test_trials_and_a_sweep_are_resumed_and_nothing_is_overwritten(stack: Stack, tmp_path: Path) -> None:
    size = ("--clients", "12", "--model-bytes", "2000", "--rounds", "2")
    experiment = ("--sweep", "local_epochs=1,5", *size, "--out", str(tmp_path))
    url = stack.service.base_url
    code, _, errors = simulate(url, *experiment)
    assert code == 0, errors
    before = _runs(tmp_path)
    assert_one_line(simulate(url, *experiment), str(tmp_path), "--resume")
    assert_one_line(simulate(url, *experiment, "--rounds", "3", "--resume"), "other settings")
    assert _runs(tmp_path) == before

    code, shown, errors = simulate(url, *experiment, "--trials", "2", "--resume")
    assert code == 0, errors
    assert "±" in shown
    after = _runs(tmp_path)
    assert after[:2] == before, "they are not run again"
    assert [(run["swept"], run["seed"], run["rounds"]) for run in after] == [
        ("local_epochs=1", 0, 2),
        ("local_epochs=5", 0, 2),
        ("local_epochs=1", 1, 2),
        ("local_epochs=5", 1, 2),
    ]
    rows = list(csv.DictReader((tmp_path / "rounds.csv").read_text().splitlines()))
    assert [row["task_id"] for row in rows] == [run["task_id"] for run in after for _ in range(2)]


def _runs(out: Path) -> list[dict[str, Any]]:
    runs: list[dict[str, Any]] = json.loads((out / "summary.json").read_text())["runs"]
    return runs


def test_a_run_ends_at_its_time_and_warns_if_nobody_is_selected(stack: Stack, tmp_path: Path) -> None:
    scenario = tmp_path / "mine.toml"
    scenario.write_text(
        "name = 'mine'\nrounds = 100\n[cell]\nclients = 5\n"
        "[task]\nround_deadline_s = 0.01\nclock = 'simulated'\n"
    )
    options = ("--url", str(stack.service.base_url), "--key", OPERATOR_KEY, "--scenario", str(scenario))
    limits = ("--no-training", "--until", "0.001", "--out", str(tmp_path / "out"))
    with start("simulate", *options, *limits) as process:
        shown, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert [run["rounds"] for run in _runs(tmp_path / "out")] == [6]
    words = " ".join(shown.split())
    assert words.count("Warning: fedcs: no client was selected in 3 rounds") == 1


def test_the_clients_of_a_run_can_be_kept(stack: Stack, tmp_path: Path) -> None:
    options = ("--out", str(tmp_path), "--clients", "12", "--keep-clients")
    code, _, errors = simulate(stack.service.base_url, *options)
    assert code == 0, errors
    kept = _enrolled(stack.service, json.loads((tmp_path / "summary.json").read_text())["runs"])
    assert len(kept) == 12
    for client in kept:
        assert stack.service.delete(f"/clients/{client['client_id']}").status_code == 204


def assert_one_line(result: tuple[int, str, str], *parts: str) -> None:
    code, _, errors = result
    assert code == 1
    assert errors.startswith("fedcs: "), errors
    assert errors.count("\n") == 1, errors
    for part in parts:
        assert part in errors


def test_nobody_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    assert_one_line(simulate(f"http://127.0.0.1:{port}"), str(port), "Connection refused")


def test_what_is_no_url() -> None:
    assert_one_line(simulate("localhost:8000"), "'localhost:8000' is not the URL of a service")


def test_a_wrong_key(stack: Stack) -> None:
    assert_one_line(simulate(stack.service.base_url, key="wrong"), "401 Unauthorized")


def test_bad_scenarios(stack: Stack, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text("name = 'mine'\n[cell]\nclients = 'many'\n")
    assert_one_line(simulate(stack.service.base_url, "--scenario", str(file)), "mine.toml: cell.clients:")
    assert_one_line(simulate(stack.service.base_url, "--scenario", "huge"), "no scenario 'huge'", "small")


def test_results_that_cannot_be_written_are_found_out_before_the_run(stack: Stack, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    before = stack.service.get("/tasks").headers["x-total-count"]
    out = tmp_path / "file" / "out"
    assert_one_line(simulate(stack.service.base_url, "--out", str(out)), str(out), "Not a directory")
    assert stack.service.get("/tasks").headers["x-total-count"] == before


def test_without_a_key_it_says_which_is_missing() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "FEDCS_OPERATOR_KEY"}
    failed = run_module("operator_api", "simulate", env=environment)
    assert failed.returncode == 2
    assert "--key" in failed.stderr


@pytest.fixture(params=[signal.default_int_handler, signal.SIG_IGN], ids=["in front", "behind a shell"])
def started_by(request: pytest.FixtureRequest) -> Iterator[None]:
    """A shell starts what it puts behind itself with SIGINT ignored, and children inherit that."""
    before = signal.signal(signal.SIGINT, request.param)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("started_by")
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_no_open_task_and_no_clients(
    stop: signal.Signals, stack: Stack, tmp_path: Path
) -> None:
    arguments = ("--url", str(stack.service.base_url), "--key", OPERATOR_KEY, "--no-training")
    with start("simulate", *arguments, "--rounds", "100000", "--out", str(tmp_path / stop.name)) as process:
        task = eventually(lambda: _running_task(stack.service))
        process.send_signal(stop)
        process.communicate(timeout=300)
        assert process.returncode != 0
    assert stack.service.get(f"/tasks/{task['task_id']}").json()["state"] == "cancelled"
    assert _enrolled(stack.service, [task]) == []
    (run,) = _runs(tmp_path / stop.name)
    assert run["outcome"] is None
    assert run["rounds"] >= 2
    assert len((tmp_path / stop.name / "rounds.csv").read_text().splitlines()) == 1 + run["rounds"]


def _running_task(service: httpx.Client) -> dict[str, Any] | None:
    tasks = service.get("/tasks", params={"per_page": 1}).json()
    return next((item for item in tasks if item["state"] == "running" and item["rounds"] > 2), None)


@pytest.mark.long
def test_a_demo_that_is_kept_serves_its_dashboard_until_ctrl_c(tmp_path: Path) -> None:
    with start("demo", "--keep", "--out", str(tmp_path)) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        url = next(lines).removeprefix("Dashboard: ").strip()
        key = next(lines).removeprefix("Operator key: ").strip()
        assert next(line for line in lines if "Stop with Ctrl-C" in line)
        assert (tmp_path / "summary.json").exists()
        headers = {"Authorization": f"Bearer {key}"}
        tasks = httpx.get(f"{url}/tasks", headers=headers, timeout=60).json()
        assert [task["state"] for task in tasks] == ["finished", "finished"]
        assert httpx.get(f"{url}/dashboard/login", timeout=60).status_code == 200
        started = _descendants(process.pid)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=300)
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started) or None)


@pytest.mark.parametrize(
    ("moment", "stop"),
    [("starting", signal.SIGINT), ("running", signal.SIGTERM), ("running", signal.SIGKILL)],
)
def test_an_interrupted_demo_leaves_no_process(stop: signal.Signals, moment: str, tmp_path: Path) -> None:
    with start("demo", "--out", str(tmp_path)) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        if moment == "running":
            next(line for line in lines if "Dashboard:" in line)
        else:
            eventually(lambda: len(_descendants(process.pid)) > 0 or None)
        time.sleep(0.5)
        started = _descendants(process.pid)
        assert started
        process.send_signal(stop)
        process.communicate(timeout=300)
        assert process.returncode != 0
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in started) or None)


def _descendants(pid: int) -> list[int]:
    """All processes that this one has started, and those that they have."""
    children = [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in _children(task)]
    return [item for child in children for item in (child, *_descendants(child))]


def _children(task: Path) -> list[str]:
    try:
        return (task / "children").read_text().split()
    except OSError:
        return []


@pytest.mark.parametrize(
    ("options", "complaint"),
    [(("--sweep", "round_deadlin_s=1"), "did you mean round_deadline_s"), (("--sweep", "a"), "--sweep a: ")],
)
def test_a_sweep_that_makes_no_sense(options: tuple[str, ...], complaint: str, stack: Stack) -> None:
    assert_one_line(simulate(stack.service.base_url, *options), complaint)


def test_training_needs_a_data_set(stack: Stack, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        "name = 'mine'\nrounds = 1\n[cell]\nclients = 2\n[task]\nround_deadline_s = 60\nclock = 'simulated'\n"
    )
    options = ("--url", str(stack.service.base_url), "--key", OPERATOR_KEY, "--scenario", str(file))
    with start("simulate", *options, "--out", str(tmp_path / "out")) as process:
        output, errors = process.communicate(timeout=300)
    assert_one_line(
        (process.returncode, output, errors), "task.dataset: required for training", "--no-training"
    )
    assert stack.service.get("/clients").json() == []


def load(url: object, *arguments: str) -> "subprocess.Popen[str]":
    return start("loadtest", "--url", str(url), "--key", OPERATOR_KEY, "--long-polls", "0", *arguments)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [(("--clients", "0"), "clients is 0"), (("--duration-s", "1"), "too short for a round")],
)
def test_a_load_that_makes_no_sense(options: tuple[str, ...], complaint: str, stack: Stack) -> None:
    with load(stack.service.base_url, *options) as process:
        output, errors = process.communicate(timeout=300)
    assert_one_line((process.returncode, output, errors), complaint)


def test_an_interrupted_load_test_still_reports(stack: Stack, tmp_path: Path) -> None:
    out = tmp_path / "load.json"
    with load(
        stack.service.base_url, "--clients", "20", "--report-every-s", "1", "--out", str(out)
    ) as process:
        assert process.stdout is not None
        progress = next(line for line in process.stdout if "answers" in line)
        eventually(lambda: _load_task(stack.service))
        process.send_signal(signal.SIGTERM)
        output, errors = process.communicate(timeout=300)
    assert process.returncode == 1, errors
    assert re.match(r"seconds of load: \d+/120, under load, \d+ answers, \d+ errors, .* left$", progress)
    assert "ended early" in output
    assert json.loads(out.read_text())["ended_early"] is True
    assert stack.service.get("/tasks", params={"per_page": 1}).json()[0]["state"] == "cancelled"


def _load_task(service: httpx.Client) -> dict[str, Any] | None:
    tasks = service.get("/tasks", params={"per_page": 1}).json()
    return next((item for item in tasks if item["name"] == "load test" and item["rounds"] > 0), None)
