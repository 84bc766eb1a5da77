"""Becomes another program that ends when the process that started it ends, even if that one is killed.

``python -m operator_api.leash PARENT COMMAND...``, PARENT being the id of that process. Only Linux can do it;
elsewhere the program runs without a leash.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask the kernel for SIGTERM at the parent's death, which outlasts the change of program, and change."""
    parent, *command = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != int(parent):  # it died before we asked
            sys.exit(1)
    os.execv(command[0], command)  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main()
