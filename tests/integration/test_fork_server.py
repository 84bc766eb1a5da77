"""What the fork server starts is as if the interpreter had been started anew."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fork_server import ModulePopen, run_module

PROBE = "tests.integration.process_probe"


@pytest.mark.parametrize(("given", "code"), [("0", 0), ("3", 3), ("text", 1)])
def test_streams_and_exit_codes(given: str, code: int) -> None:
    done = run_module(PROBE, "exit", given)
    assert (done.returncode, done.stdout) == (code, "left\n")
    assert ("text" in done.stderr) == (given == "text")


def test_it_gets_its_environment_directory_and_arguments_only(tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), "ONLY": "this"}
    done = run_module(PROBE, "tell", env=environment, cwd=tmp_path)
    told = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert told["directory"] == str(tmp_path)
    assert told["environment"] == ",".join(sorted(environment))
    assert told["open"] == "0,1,2"
    assert told["parent"] == str(os.getpid())


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_signals_do_what_they_do_to_any_process(sent: signal.Signals) -> None:
    command = [sys.executable, "-m", PROBE, "wait"]
    with ModulePopen[str](
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        assert (process.poll(), os.getpgid(process.pid)) == (None, process.pid)
        process.send_signal(sent)
        assert process.wait(60) == -sent
        assert not Path(f"/proc/{process.pid}").exists(), "nobody else has to wait for it"
