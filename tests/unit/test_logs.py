"""The log on a terminal."""

import os
import pty
import subprocess
import sys

PROGRAM = r"""
import logging
import structlog
from services.logs import set_up_logs

set_up_logs()
log = structlog.get_logger("ours")
log.info("request", path="/clients/\x9b2J\x1b]0;title\x07", several=["\x9b"])
logging.getLogger("theirs").warning("refused %s", "c\x9b1\x1b[31m\nforged line")
key = "value of a local variable"
try:
    raise ValueError("the client 'c\x9b1\x1b[2J' is unknown")
except ValueError:
    log.exception("failed", client_id="c\x9b1")
"""


def _on_terminal(program: str) -> str:
    """What a program writes to standard error if that is a terminal."""
    ours, its = pty.openpty()
    written = b""
    with subprocess.Popen([sys.executable, "-c", program], stderr=its):
        os.close(its)
        try:
            while chunk := os.read(ours, 65536):
                written += chunk
        except OSError:  # how Linux tells that the program has closed it
            pass
    os.close(ours)
    return written.decode()


def test_control_characters_of_callers_do_not_reach_the_terminal() -> None:
    written = _on_terminal(PROGRAM)
    assert not {"\x9b", "\x07"} & set(written)
    for sequence in ("\x1b[2J", "\x1b]0", "\x1b[31m\n", "\nforged"):
        assert sequence not in written
    for shown in (r"/clients/\x9b2J\x1b]0;title\x07", r"refused c\x9b1\x1b[31m\nforged", r"c\x9b1\x1b[2J"):
        assert shown in written, written
    assert "ValueError" in written
    assert "value of a local variable" not in written
