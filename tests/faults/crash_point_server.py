"""Forks API processes that kill themselves at a given commit.

Reads one line of JSON for each start, ``{"settings": {"FEDCS_…": …}, "crash": null}``, or as ``crash`` the
kind of an event, when to die (``before`` or ``after`` the commit that tells of it), and a file: from the
moment that file exists, the process kills itself there. Nothing in the service knows of this:
``UnitOfWork.commit`` is replaced from outside, in the process that is to die.
"""

import json
import os
import signal
import sys
from pathlib import Path

from operator_api.server import run_api
from services.settings import Settings, load_settings
from services.storage.database import UnitOfWork


def main() -> None:
    for line in sys.stdin:
        process = os.fork()
        if not process:
            serve(**json.loads(line))
        _, status = os.waitpid(process, 0)
        print(f"Ended {os.waitstatus_to_exitcode(status)}", flush=True)


def serve(settings: dict[str, str], crash: dict[str, str] | None) -> None:
    os.environ.update(settings)
    sys.stdin.close()
    if crash is not None:
        die_at_commit(crash["kind"], crash["when"], Path(crash["armed"]))
    try:
        run_api(load_settings(Settings), announce=lambda url: print(f"Ready {os.getpid()} {url}", flush=True))
    finally:
        os._exit(0)


def die_at_commit(kind: str, when: str, armed: Path) -> None:
    commit = UnitOfWork.commit

    def commit_and_die(self: UnitOfWork) -> None:
        chosen = any(event.kind == kind for event in self.events._recorded) and armed.exists()
        if chosen and when == "before":
            self.events.write()
            os.kill(os.getpid(), signal.SIGKILL)
        commit(self)
        if chosen:
            os.kill(os.getpid(), signal.SIGKILL)

    UnitOfWork.commit = commit_and_die  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
