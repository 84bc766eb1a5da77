"""The flag that stops a worker: set by a signal in the middle of being set, seen by other processes."""

import os
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from trainer_worker.lease import StopFlag


def answer_of_child(ask: Callable[[], bool]) -> bool:
    """What a process that is forked here answers."""
    child = os.fork()
    if not child:
        os._exit(ask())
    return bool(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def test_a_signal_sets_it_at_any_moment_of_its_being_set() -> None:
    flag = StopFlag()
    interrupted: list[int] = []

    def set_again(signum: int, _frame: FrameType | None) -> None:
        interrupted.append(signum)
        flag.set()

    def trace(_frame: FrameType, event: str, _argument: object) -> Any:
        if event == "line" and len(interrupted) < 1000:
            os.kill(os.getpid(), signal.SIGUSR1)
        return trace

    before = signal.signal(signal.SIGUSR1, set_again)
    sys.settrace(trace)
    try:
        flag.set()
    finally:
        sys.settrace(None)
        signal.signal(signal.SIGUSR1, before)
    assert interrupted
    assert flag.is_set()


def test_other_processes_see_it() -> None:
    flag = StopFlag()
    assert not flag.is_set()
    assert not answer_of_child(flag.is_set)
    flag.set()
    assert flag.is_set()
    assert answer_of_child(flag.is_set)


def test_a_process_whose_main_process_is_gone_stops() -> None:
    def orphan_stops() -> bool:
        reading, writing = os.pipe()
        if not os.fork():  # the main process
            flag = StopFlag()
            main = os.getpid()
            if not os.fork():  # the one that it leaves behind
                while os.getppid() == main:
                    time.sleep(0.01)
                os.write(writing, bytes([flag.is_set()]))
            os._exit(0)
        return os.read(reading, 1) == b"\1"

    assert answer_of_child(orphan_stops)


@pytest.mark.parametrize("is_set", [True, False])
def test_it_is_waited_for(is_set: bool) -> None:
    flag = StopFlag()
    if is_set:
        flag.set()
    assert flag.wait(600 if is_set else 0.01) is is_set
