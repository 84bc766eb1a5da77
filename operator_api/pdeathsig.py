"""Runs a program that ends when its parent process ends, even if the parent is killed (PR_SET_PDEATHSIG).

``python -m operator_api.pdeathsig PARENT_PID COMMAND...``. Linux only; elsewhere the program runs without it.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask the kernel for SIGTERM when the parent dies, then execute the program."""
    parent, *command = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != int(parent):  # it died before we asked
            sys.exit(1)
    os.execv(command[0], command)  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main()
