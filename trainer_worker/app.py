"""The Celery worker: receives messages from the broker and runs the jobs in its processes."""

import os
import secrets
import signal
import socket
from collections.abc import Sequence
from types import FrameType
from typing import Any

from billiard import current_process
from celery import Celery, signals
from celery.worker import state

from services.domain.jobs import JobKind, WorkerIdentity
from services.logs import set_up_logs
from services.settings import WorkerSettings
from services.storage.model_store import open_model_store
from trainer_worker.context import WorkerContext, bootstrap
from trainer_worker.heartbeat import Heartbeat, install_heartbeat_file
from trainer_worker.jobs import do_job
from trainer_worker.lease import StopFlag
from trainer_worker.publisher import make_app, message_name

_SETTINGS = {
    # Messages are acknowledged early and not prefetched: the database knows which jobs are not done.
    "worker_prefetch_multiplier": 1,
    "worker_disable_prefetch": True,
    "broker_connection_retry_on_startup": True,
    "broker_connection_max_retries": None,
    "worker_enable_remote_control": False,
    "worker_hijack_root_logger": False,
    "worker_redirect_stdouts": False,
}


def make_worker(settings: WorkerSettings, queues: Sequence[str], processes: int) -> Any:
    """Create a worker; its ``start()`` returns after a signal stopped it."""
    set_up_logs()
    # Reports a wrong setting at the start; each process opens its own store later.
    open_model_store(settings.model_store, settings.model_cache, settings.model_cache_bytes).check()
    app = make_app(settings.broker_url)
    app.conf.update(_SETTINGS)
    stopping = StopFlag()
    identity = WorkerIdentity(
        worker_id=f"worker-{secrets.token_hex(8)}",
        host=socket.gethostname(),
        pid=os.getpid(),
        queues=tuple(queues),
    )
    contexts: list[WorkerContext] = []
    heartbeats: list[Heartbeat] = []

    def open_context(**_: object) -> None:
        context = bootstrap(settings, identity, current_process().index, stopping)
        contexts.append(context)
        if context.process_index == 0:
            heartbeats.append(Heartbeat(context))
            heartbeats[0].start()

    def close_context(**_: object) -> None:
        for heartbeat in heartbeats:
            heartbeat.stop()
        contexts.pop().database.close()

    _register(app, contexts)
    if settings.heartbeat_file is not None:
        install_heartbeat_file(app, settings.heartbeat_file)
    signals.setup_logging.connect(lambda **_: None, weak=False)  # prevents Celery's own logging
    signals.worker_process_init.connect(open_context, weak=False)
    signals.worker_process_shutdown.connect(close_context, weak=False)
    return _stopped_by_signals(app.Worker, stopping)(
        pool="prefork",
        concurrency=processes,
        queues=list(queues),
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
        quiet=True,
        loglevel="INFO",
    )


def _register(app: Celery, contexts: list[WorkerContext]) -> None:
    for kind in JobKind:

        @app.task(name=message_name(kind))  # type: ignore[untyped-decorator]
        def do(job_id: str) -> None:
            do_job(contexts[0], job_id)


def _stopped_by_signals(worker_class: Any, stopping: StopFlag) -> Any:
    """A worker class whose handlers of SIGTERM and SIGINT set flags and return.

    Celery's own handlers take locks, so a second signal that interrupts the first would deadlock.
    """
    main_pid = os.getpid()

    def stop(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of handlers
        if os.getpid() == main_pid:  # not in a process that was just forked
            stopping.set()
            state.should_stop = 0

    class Worker(worker_class):  # type: ignore[misc]
        def install_platform_tweaks(self, worker: Any) -> None:
            super().install_platform_tweaks(worker)
            signal.signal(signal.SIGTERM, stop)
            signal.signal(signal.SIGINT, stop)

    return Worker
