"""Starts ``python -m MODULE ...`` as a process of its own, without importing the same packages each time.

A server process imports what the commands need, once, and forks at each start. The forked process gets the
standard streams, environment, working directory and arguments it would have been started with, and becomes a
child of the process that asked for it, so that ``subprocess.Popen`` waits for it as for any other.

What a package reads from the environment when it is imported, it reads in the server.
"""

import atexit
import ctypes
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any, AnyStr

_SERVICE = (
    "operator_api.server",
    "anyio._backends._asyncio",
    "celery.worker",
    "kombu.transport.redis",
    "uvloop",
)
_PRELOADED = {
    "serve": _SERVICE,
    "up": ("operator_api.up", *_SERVICE),
    "plan": ("operator_api.plan_command", "operator_api.planning", "rich.table"),
    "worker": (
        "trainer_worker.app",
        "trainer_worker.commands",
        "celery.apps.worker",
        "kombu.transport.redis",
    ),
    "simulate": ("client_sim.simulation",),
    "demo": ("client_sim.simulation",),
    "loadtest": ("client_sim.load_test",),
    "reproduce": ("client_sim.reproduction.campaign",),
}
"""What to import before the fork, by the first argument."""

_PR_SET_CHILD_SUBREAPER = 36
_MAX_REQUEST_BYTES = 1024 * 1024
_STREAMS = ("stdin", "stdout", "stderr")


class _Client:
    """The server's other end; the server ends with it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._socket, its_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._socket, its_end):
            end.setblocking(True)  # whatever a test has made of the default timeout
        command = [sys.executable, "-m", "tests.fork_server", str(its_end.fileno())]
        # As `fedcs worker` sets it before it loads torch.
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        with its_end:
            self._server = subprocess.Popen(command, env=environment, pass_fds=[its_end.fileno()])

    def start(self, request: dict[str, Any], streams: list[int]) -> int:
        """The id of a new process, which is a child of this one."""
        with self._lock:
            self._adopt_orphans(True)
            try:
                socket.send_fds(self._socket, [json.dumps(request).encode()], streams)
                answer = self._socket.recv(100)
            finally:
                self._adopt_orphans(False)
        assert answer, "the fork server has ended"
        return int(answer)

    def _adopt_orphans(self, adopt: bool) -> None:
        """Whether a process below this one whose parent ends becomes a child of this one."""
        assert self._libc.prctl(_PR_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0) == 0


_clients: dict[int, _Client] = {}


class ModulePopen(subprocess.Popen[AnyStr]):
    """``subprocess.Popen`` of ``[sys.executable, "-m", MODULE, ...]`` by the fork server.

    Not by it where coverage is measured, which begins before the first import, and not on other systems.
    """

    def _execute_child(self, args: list[str], *rest: Any) -> None:
        assert args[:2] == [sys.executable, "-m"], args
        (_, _, _, _, cwd, env, _, _, _, *pipes, _, _, _, _, _, start_new_session, _) = rest
        p2cread, _, _, c2pwrite, _, errwrite = pipes
        environment = dict(os.environ if env is None else env)
        if sys.platform != "linux" or "COVERAGE_PROCESS_CONFIG" in environment:
            super()._execute_child(args, *rest)  # type: ignore[misc]
            return
        client = _clients.get(os.getpid()) or _clients.setdefault(os.getpid(), _Client())
        request = {
            "module": args[2],
            "arguments": args[3:],
            "directory": os.fspath(cwd or Path.cwd()),
            "environment": environment,
            "new_session": start_new_session,
            "ignores_interrupt": signal.getsignal(signal.SIGINT) is signal.SIG_IGN,
            "parent": os.getpid(),
        }
        try:
            streams = [
                own if given == -1 else given for own, given in enumerate((p2cread, c2pwrite, errwrite))
            ]
            self.pid = client.start(request, streams)
            self._child_created = True
        finally:
            self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


def run_module(
    *arguments: str, stdin: str = "", timeout: float = 120, **given: Any
) -> subprocess.CompletedProcess[str]:
    """``subprocess.run`` of a module with these arguments; what it writes is kept as text."""
    command = [sys.executable, "-m", *arguments]
    pipe = subprocess.PIPE
    with ModulePopen[str](command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, **given) as process:
        try:
            stdout, stderr = process.communicate(stdin, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def _serve(requests: socket.socket) -> dict[str, Any] | None:
    """Fork at each request; in a forked process, its request, and in the server None at the end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        message, streams, _, _ = socket.recv_fds(requests, _MAX_REQUEST_BYTES, 3)
        if not message:
            return None
        request: dict[str, Any] = json.loads(message)
        for name in _PRELOADED.get(next(iter(request["arguments"]), ""), ()):
            import_module(name)
        gc.collect()
        gc.freeze()
        between = os.fork()
        if not between:
            if os.fork():
                os._exit(0)
            while os.getppid() != request["parent"]:
                time.sleep(0.0005)
            requests.send(str(os.getpid()).encode())
            _open_streams(streams)
            return request
        os.waitpid(between, 0)
        for stream in streams:
            os.close(stream)


def _open_streams(streams: list[int]) -> None:
    """Make these the standard streams; as Python remembers what kind of files the old ones were, anew."""
    for number, (name, mode, stream) in enumerate(zip(_STREAMS, "rww", streams, strict=True)):
        os.dup2(stream, number)
        os.close(stream)
        buffering, errors = (1, "backslashreplace") if name == "stderr" else (-1, getattr(sys, name).errors)
        opened = os.fdopen(number, mode, buffering, errors=errors, closefd=False)
        setattr(sys, name, opened)
        setattr(sys, f"__{name}__", opened)


def _run(request: dict[str, Any]) -> None:
    if not request["ignores_interrupt"]:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if request["new_session"]:
        os.setsid()
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    further = request["environment"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:1] = [request["directory"], *filter(None, further)]
    sys.argv = [request["module"], *request["arguments"]]
    code = 0
    try:
        runpy.run_module(request["module"], run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        if not isinstance(ended.code, int | None):
            raise
        code = ended.code or 0
    # Not as the interpreter ends: it would take every imported module apart, and copy its memory to do so.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _main() -> dict[str, Any] | None:
    with socket.socket(fileno=int(sys.argv[1])) as requests:
        return _serve(requests)


if __name__ == "__main__" and (request := _main()) is not None:
    _run(request)
