"""The ``fedcs`` command as a user calls it: in a process of its own."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from services.announcement import Announcement, read_announcement
from tests.integration.plan_requests import cell, example
from tests.running_service import OPERATOR_KEY

CSV = """client_id,site,throughput_bps,compute_samples_per_s,data_samples
c1,north,8640000,50,200
c2,south,1400000,50,500
"""


def fedcs(*arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "operator_api", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"COLUMNS": "120"} | environment,
        timeout=120,
    )


def test_help_lists_the_commands() -> None:
    shown = fedcs("--help").stdout
    for command in ("up", "serve", "plan", "worker", "simulate", "demo", "loadtest"):
        assert command in shown
        assert fedcs(command, "--help").returncode == 0


def test_unknown_command() -> None:
    failed = fedcs("fly")
    assert failed.returncode == 2
    assert "No such command" in failed.stderr


def test_plan_shows_a_table_and_a_gantt_chart(tmp_path: Path) -> None:
    (tmp_path / "reports.csv").write_text(CSV)
    shown = fedcs("plan", str(tmp_path / "reports.csv"))
    assert shown.returncode == 0, shown.stderr
    assert "fedcs: 1 of 2 clients" in shown.stdout
    assert "36.9-53.9" in shown.stdout
    assert "40000+33889" in shown.stdout
    assert "░" in shown.stdout
    assert "█" in shown.stdout
    assert "1 not selected: DEADLINE" in shown.stdout


@pytest.mark.parametrize(
    "content", [CSV, "\ufeff" + CSV, json.dumps(example()["candidates"]), json.dumps(example())]
)
def test_plan_gives_what_the_api_gives(content: str, service: httpx.Client, tmp_path: Path) -> None:
    path = tmp_path / "reports"
    path.write_text(content, encoding="utf-8")
    planned = fedcs("plan", str(path), "--json")
    assert json.loads(planned.stdout) == service.post("/plans", json=example()).json()


def test_plan_reads_standard_input_and_writes_every_format(tmp_path: Path) -> None:
    page, picture, data = tmp_path / "plan.html", tmp_path / "plan.png", tmp_path / "plan.json"
    done = fedcs("plan", "-", "--html", str(page), "--png", str(picture), "--json", str(data), stdin=CSV)
    assert done.returncode == 0, done.stderr
    assert "1 of 2 clients" in done.stdout
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "<svg" in page.read_text(encoding="utf-8")
    assert json.loads(data.read_text())["slots"][0]["client_id"] == "c1"


def test_plan_options_win_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "request.json"
    path.write_text(json.dumps(cell(300, policy="fl", round_deadline_s=1)))
    planned = json.loads(
        fedcs("plan", str(path), "--policy", "optimal", "--round-deadline-s", "600", "--json").stdout
    )
    assert planned["policy"] == "optimal"
    assert planned["total_s"] < 600
    assert len(planned["slots"]) > 10


def test_plan_of_many_clients_is_cut_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "request.json"
    path.write_text(json.dumps(cell(300, round_deadline_s=100_000)))
    shown = fedcs("plan", str(path), "--html", str(tmp_path / "page.html")).stdout
    assert "more; --json and --html have them all" in shown
    assert "the first 150 shown" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_plan_escapes_names(tmp_path: Path) -> None:
    name = "<script>alert(1)</script>[bold]$x_1$"
    path = tmp_path / "reports.csv"
    path.write_text(CSV.replace("c1", name))
    shown = fedcs(
        "plan", str(path), "--html", str(tmp_path / "page.html"), "--png", str(tmp_path / "chart.png")
    )
    assert shown.returncode == 0, shown.stderr
    assert "<script>alert" in shown.stdout
    assert "<script" not in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("", "the CSV header has no client_id, throughput_bps"),
        ("client_id,throughput_bps\nc1,5\n", "no compute_samples_per_s, data_samples"),
        (CSV.split("\n", maxsplit=1)[0], "candidates: List should have at least 1 item"),
        (CSV.replace("1400000", "fast"), "row 2: throughput_bps: Input should be a valid number"),
        (CSV.replace("1400000", "nan"), "row 2: throughput_bps: Input should be a finite number"),
        (CSV.replace("1400000", ""), "row 2: throughput_bps: Input should be a valid number"),
        (CSV.replace("c2", "c1"), "row 2: client_id: An earlier candidate has the same"),
        (CSV + "c3,west", "row 3: throughput_bps: Input should be a valid number"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("c" * 200_000, "after line 0: field larger than field limit"),
        (CSV + "c" * 200_000 + ",west,1,1,1", "after line 3: field larger than field limit"),
        ('{"policy": "best", "candidates": []}', "policy: Value error, unknown policy"),
        ('[{"client_id": "a"}]', "candidate 1: throughput_bps: Field required"),
        ('["a"]', "candidate 1: Input should be an object"),
        (
            CSV.split("\n", maxsplit=1)[0] + "\n" + "".join(f"c{n},x,0,1,1\n" for n in range(9)),
            "and 4 more",
        ),
    ],
)
def test_plan_names_what_is_wrong_with_a_file(content: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "reports"
    path.write_text(content)
    failed = fedcs("plan", str(path))
    assert failed.returncode == 1
    assert complaint in failed.stderr
    assert "Traceback" not in failed.stderr
    assert failed.stdout == ""


def test_plan_of_a_file_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(b"\x89PNG\xff\xfe")
    failed = fedcs("plan", str(path))
    assert failed.returncode == 1
    assert "not a text file" in failed.stderr


def test_plan_of_a_missing_file() -> None:
    failed = fedcs("plan", "nowhere.csv")
    assert failed.returncode == 2
    assert "nowhere.csv" in failed.stderr


def test_plan_that_never_ends(tmp_path: Path) -> None:
    path = tmp_path / "reports.csv"
    path.write_text(CSV.replace("1400000", "1e-300"))
    failed = fedcs("plan", str(path), "--policy", "fl")
    assert failed.returncode == 1
    assert "years" in failed.stderr


@pytest.mark.parametrize(
    "key", ["", "short", "a" * 64, "spaces are not allowed in it", "ключ-ключ-ключ-ключ-ключ"]
)
def test_serve_refuses_a_weak_key(key: str) -> None:
    failed = fedcs("serve", FEDCS_OPERATOR_KEY=key)
    assert failed.returncode == 1
    assert failed.stderr.startswith("fedcs: FEDCS_OPERATOR_KEY: ")
    assert key == "" or key not in failed.stderr


def test_serve_refuses_bad_settings() -> None:
    failed = fedcs("serve", FEDCS_OPERATOR_KEY=OPERATOR_KEY, FEDCS_PORT="many", FEDCS_API_ROOT="v1")
    assert failed.returncode == 1
    assert "FEDCS_PORT" in failed.stderr
    assert "FEDCS_API_ROOT" in failed.stderr


def test_a_port_in_use_is_one_clear_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        failed = fedcs("up", "--port", port, "--data-dir", str(tmp_path))
    assert failed.returncode == 1
    assert failed.stderr == f"fedcs: cannot listen on 127.0.0.1:{port}: Address already in use\n"


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
def test_up_prints_url_and_key_and_stops_on_a_signal(stop: signal.Signals, tmp_path: Path) -> None:
    first, code = _up_and_stop(tmp_path / "new", stop)
    assert code == 0
    again, _ = _up_and_stop(tmp_path / "new", stop)
    assert again.operator_key == first.operator_key
    assert len(first.operator_key) == 64
    assert (tmp_path / "new" / "operator.key").stat().st_mode & 0o777 == 0o600


def test_up_refuses_a_damaged_key_file(tmp_path: Path) -> None:
    (tmp_path / "operator.key").write_text("")
    failed = fedcs("up", "--port", "0", "--data-dir", str(tmp_path))
    assert failed.returncode == 1
    assert "FEDCS_OPERATOR_KEY: Value error, too weak" in failed.stderr


@pytest.mark.parametrize("command", ["up", "serve"])
def test_a_data_directory_that_cannot_be_made_is_one_clear_line(command: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    place = str(tmp_path / "file" / "data")
    failed = fedcs(command, FEDCS_DATA_DIR=place, FEDCS_OPERATOR_KEY=OPERATOR_KEY)
    assert failed.returncode == 1
    assert failed.stderr == f"fedcs: FEDCS_DATA_DIR: {place}: Not a directory\n"


def test_plan_to_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    failed = fedcs("plan", "-", "--html", str(tmp_path / "missing" / "page.html"), stdin=CSV)
    assert failed.returncode == 1
    assert failed.stderr.startswith("fedcs: [Errno 2]")


def test_up_takes_the_key_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDCS_OPERATOR_KEY", OPERATOR_KEY)
    announced, _ = _up_and_stop(tmp_path, signal.SIGTERM)
    assert announced.operator_key == OPERATOR_KEY
    assert not (tmp_path / "operator.key").exists()


def _up_and_stop(data_dir: Path, stop: signal.Signals) -> tuple[Announcement, int]:
    command = [sys.executable, "-m", "operator_api", "up", "--port", "0", "--data-dir", str(data_dir)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        announced = read_announcement(process.stdout)
        assert announced is not None
        assert httpx.get(f"{announced.url}/readyz", timeout=60).status_code in (200, 503)
        headers = {"Authorization": f"Bearer {announced.operator_key}"}
        assert (
            httpx.post(f"{announced.url}/plans", json=example(), headers=headers, timeout=60).status_code
            == 200
        )
        process.send_signal(stop)
        process.communicate(timeout=20)
        return announced, process.returncode


def test_demo_says_why_the_service_did_not_start() -> None:
    failed = fedcs("demo", FEDCS_OPERATOR_KEY="weak")
    assert failed.returncode == 1
    assert "the service did not start" in failed.stderr
    assert "too weak" in failed.stderr
