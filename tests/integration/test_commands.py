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

from services.startup import Announcement, read_announcement
from tests.fork_server import ModulePopen, run_module
from tests.integration.plan_requests import cell, example
from tests.running_service import OPERATOR_KEY

CSV = """client_id,site,throughput_bps,compute_samples_per_s,data_samples
c1,north,8640000,50,200
c2,south,1400000,50,500
"""


def fedcs(*arguments: str, stdin: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    given = os.environ | {"COLUMNS": "120"} | environment
    return run_module("operator_api", *arguments, stdin=stdin, env=given)


def test_help_lists_the_commands() -> None:
    shown = fedcs("--help").stdout
    for command in ("up", "serve", "plan", "status", "worker", "simulate", "demo", "loadtest"):
        assert command in shown
        assert fedcs(command, "--help").returncode == 0


def test_unknown_command() -> None:
    failed = fedcs("fly")
    assert failed.returncode == 2
    assert "No such command" in failed.stderr


@pytest.mark.parametrize(
    ("typed", "meant"), [("simulat", "simulate"), ("stats", "status"), ("wroker", "worker")]
)
def test_a_mistyped_command_gets_a_suggestion(typed: str, meant: str) -> None:
    failed = fedcs(typed)
    assert failed.returncode == 2
    assert f"No such command '{typed}'. Did you mean '{meant}'?" in failed.stderr


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
    "content",
    [CSV, "\ufeff" + CSV, CSV.replace(",", ";"), json.dumps(example()["candidates"]), json.dumps(example())],
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
    sizes = ["--upload-size-bytes", "1000000", "--download-size-bytes", "500000"]
    smaller = json.loads(fedcs("plan", str(path), *sizes, "--json").stdout)
    assert (smaller["upload_size_bytes"], smaller["download_size_bytes"]) == (1_000_000, 500_000)
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
        (CSV.replace("1400000", "fast"), "line 3: throughput_bps: Input should be a valid number"),
        (CSV.replace("1400000", "nan"), "line 3: throughput_bps: Input should be a finite number"),
        (CSV.replace("1400000", ""), "line 3: throughput_bps: Input should be a valid number"),
        (CSV.replace("c2", "c1"), "line 3: client_id: An earlier entry has the same client_id"),
        (CSV.replace("\nc2", "\n\n\nc2").replace("1400000", "fast"), "line 5: throughput_bps: "),
        (CSV.replace(",", ";").replace("1400000", "1,4"), "line 3: throughput_bps: "),
        (CSV + "c3,west", "line 4: throughput_bps: Input should be a valid number"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("c" * 200_000, "after line 0: field larger than field limit"),
        (CSV + "c" * 200_000 + ",west,1,1,1", "after line 3: field larger than field limit"),
        ('{"policy": "best", "candidates": []}', "policy: Value error, unknown policy"),
        (
            '{"policy_parameters": {"boldness": 1}, "candidates": []}',
            "policy_parameters: boldness: ",
        ),
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


@pytest.mark.parametrize(
    ("encoding", "complaint"), [("latin-1", "line 3 has the byte 0xfc"), ("utf-16", "UTF-16")]
)
def test_plan_of_a_file_in_another_encoding(encoding: str, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "reports.csv"
    path.write_text(CSV.replace("south", "süd"), encoding=encoding)
    failed = fedcs("plan", str(path))
    assert failed.returncode == 1
    assert complaint in failed.stderr
    assert "UTF-8" in failed.stderr


@pytest.mark.parametrize("policy", ["fedcs", "optimal", "fedlim"])
def test_plan_says_which_deadline_would_fit_one_client(policy: str, tmp_path: Path) -> None:
    path = tmp_path / "reports.csv"
    path.write_text(CSV)
    terms = ("--policy", policy, "--selection-s", "1", "--aggregation-s", "0.5")
    shown = fedcs("plan", str(path), *terms, "--round-deadline-s", "5").stdout
    assert "The fastest client alone needs a deadline of more than 55.4 s." in shown
    assert "1 of 2 clients" in fedcs("plan", str(path), *terms, "--round-deadline-s", "55.4").stdout
    assert "0 of 2 clients" in fedcs("plan", str(path), *terms, "--round-deadline-s", "55.3").stdout


def test_plan_knows_no_deadline_for_clients_without_data() -> None:
    shown = fedcs("plan", "-", stdin=CSV.replace(",200", ",0").replace(",500", ",0"))
    assert shown.returncode == 0, shown.stderr
    assert "2 not selected: NO_DATA" in shown.stdout
    assert "deadline of more than" not in shown.stdout


def test_plan_of_a_missing_file() -> None:
    failed = fedcs("plan", "nowhere.csv")
    assert failed.returncode == 2
    assert "nowhere.csv" in failed.stderr


def test_plan_with_a_client_that_would_never_finish(tmp_path: Path) -> None:
    path = tmp_path / "reports.csv"
    path.write_text(CSV.replace("1400000", "1e-300"))
    shown = fedcs("plan", str(path), "--policy", "fl")
    assert shown.returncode == 0, shown.stderr
    assert "fl: 1 of 2 clients" in shown.stdout
    assert "1 not selected: TOO_SLOW" in shown.stdout


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


def test_up_prints_url_and_key_and_stops_on_a_signal(tmp_path: Path) -> None:
    first, code = _up_and_stop(tmp_path / "new", signal.SIGTERM)
    assert code == 0
    again, code = _up_and_stop(tmp_path / "new", signal.SIGINT)
    assert code == 0
    assert first.created_key is not None
    assert again.created_key == first.created_key
    assert len(first.created_key) == 64
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


def test_plan_shows_control_characters_by_their_number(tmp_path: Path) -> None:
    picture = tmp_path / "plan.html"
    done = fedcs("plan", "-", "--html", str(picture), stdin=CSV.replace("c1,", "c\x9b1\ufffe,"))
    assert done.returncode == 0, done.stderr
    assert r"c\x9b1\ufffe" in done.stdout
    assert "\x9b" not in done.stdout
    refused = fedcs("plan", "-", stdin=CSV.replace("c1,", "c\x9b1,").replace("c2,", "c\x9b1,"))
    assert refused.returncode == 1
    assert "\x9b" not in refused.stderr


def test_plan_to_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    failed = fedcs("plan", "-", "--html", str(tmp_path / "missing" / "page.html"), stdin=CSV)
    assert failed.returncode == 1
    assert failed.stderr.startswith("fedcs: [Errno 2]")


def test_up_is_quiet_and_refuses_a_second_one_on_its_directory(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "operator_api", "up", "--port", "0", "--data-dir", str(tmp_path)]
    with ModulePopen[str](command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        shown = [process.stdout.readline() for _ in range(7)]
        refused = fedcs("up", "--port", "0", "--data-dir", str(tmp_path))
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=120)
    url = shown[0].split()[-1]
    assert [line.split()[:2] for line in shown[1:3]] == [["dashboard", f"{url}/"], ["API", "docs"]]
    assert shown[4:] == [
        f"  kept in       {tmp_path}/operator.key\n",
        f"  log           {tmp_path}/up.log\n",
        "Stop with Ctrl-C.\n",
    ]
    assert refused.returncode == 1
    assert refused.stderr.splitlines()[-1] == (
        f"fedcs: another `fedcs up` uses the data directory {tmp_path}; stop it, or use another --data-dir"
    )
    assert (process.returncode, [line for line in errors.splitlines() if "chmod" not in line]) == (0, [])
    assert (tmp_path / "up.log").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "up.log").read_text() != ""


def test_status_shows_health_and_tasks(service: httpx.Client) -> None:
    url = str(service.base_url)
    created = service.post("/tasks", json={"name": "lanes\x9b", "round_deadline_s": 60})
    shown = fedcs("status", "--url", url, "--key", OPERATOR_KEY)
    assert shown.returncode == 0, shown.stderr
    assert f"{url} is " in shown.stdout.replace("\n", "")
    (row,) = [line for line in shown.stdout.splitlines() if created.json()["task_id"] in line]
    assert "initializing" in row
    assert r"lanes\x9b" in row
    refused = fedcs("status", "--url", url, "--key", "wrong")
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "401 Unauthorized" in refused.stderr


def test_status_is_shown_again_until_ctrl_c(service: httpx.Client) -> None:
    command = [sys.executable, "-m", "operator_api", "status", "--watch"]
    command += ["--url", str(service.base_url), "--key", OPERATOR_KEY]
    environment = os.environ | {"COLUMNS": "120", "FORCE_COLOR": "1"}
    with ModulePopen[str](
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        seen = ""
        while seen.count(" is ") < 2:
            seen += process.stdout.readline() or pytest.fail(seen)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=120)
        assert process.returncode == 0


def test_up_takes_the_key_from_the_environment_and_does_not_print_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDCS_OPERATOR_KEY", OPERATOR_KEY)
    announced, _ = _up_and_stop(tmp_path, signal.SIGTERM)
    assert announced.created_key is None
    assert "FEDCS_OPERATOR_KEY" in announced.text()
    assert not (tmp_path / "operator.key").exists()


def _up_and_stop(data_dir: Path, stop: signal.Signals) -> tuple[Announcement, int]:
    command = [sys.executable, "-m", "operator_api", "up", "--port", "0", "--data-dir", str(data_dir)]
    with ModulePopen[str](command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        announced = read_announcement(process.stdout)
        assert announced is not None
        assert httpx.get(f"{announced.url}/readyz", timeout=60).status_code in (200, 503)
        headers = {"Authorization": f"Bearer {announced.created_key or OPERATOR_KEY}"}
        assert (
            httpx.post(f"{announced.url}/plans", json=example(), headers=headers, timeout=60).status_code
            == 200
        )
        process.send_signal(stop)
        process.communicate(timeout=120)
        return announced, process.returncode


def test_demo_says_why_the_service_did_not_start() -> None:
    failed = fedcs("demo", FEDCS_MAX_JSON_BYTES="0")
    assert failed.returncode == 1
    assert "the service did not start" in failed.stderr
    assert "FEDCS_MAX_JSON_BYTES: " in failed.stderr
