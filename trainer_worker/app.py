"""The Celery worker: takes messages from the broker, and has its processes do the jobs they tell of."""

from collections.abc import Sequence
from multiprocessing import get_context
from typing import Any

from billiard import current_process
from celery import Celery, signals

from services.domain.jobs import JobKind
from services.logs import set_up_logs
from services.settings import WorkerSettings
from services.storage.open_model_store import open_model_store
from trainer_worker.jobs import do_job
from trainer_worker.publisher import make_app, message_name
from trainer_worker.pulse import give_pulse
from trainer_worker.workshop import Workshop, bootstrap

_SETTINGS = {
    # A message is acknowledged as it comes, and none is taken ahead: the database knows what is not done.
    "worker_prefetch_multiplier": 1,
    "worker_disable_prefetch": True,
    "broker_connection_retry_on_startup": True,
    "broker_connection_max_retries": None,
    "worker_enable_remote_control": False,
    "worker_hijack_root_logger": False,
    "worker_redirect_stdouts": False,
}


def make_worker(settings: WorkerSettings, queues: Sequence[str], processes: int) -> Any:
    """A worker that has not started yet; ``start()`` returns when a signal has ended it."""
    set_up_logs()
    # Here, where a wrong setting can still be told of: the processes have stores of their own.
    open_model_store(settings.model_store, settings.model_cache, settings.model_cache_bytes).check()
    app = make_app(settings.broker_url)
    app.conf.update(_SETTINGS)
    stopping = get_context("fork").Event()
    workshops: list[Workshop] = []

    def open_workshop(**_: object) -> None:
        workshops.append(bootstrap(settings, current_process().index, stopping))

    def close_workshop(**_: object) -> None:
        workshops.pop().database.close()

    def stop_jobs(**_: object) -> None:
        stopping.set()

    _register(app, workshops)
    if settings.pulse_file is not None:
        give_pulse(app, settings.pulse_file)
    signals.setup_logging.connect(lambda **_: None, weak=False)  # else Celery sets up its own
    signals.worker_process_init.connect(open_workshop, weak=False)
    signals.worker_process_shutdown.connect(close_workshop, weak=False)
    signals.worker_shutting_down.connect(stop_jobs, weak=False)
    return app.Worker(
        pool="prefork",
        concurrency=processes,
        queues=list(queues),
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
        quiet=True,
        loglevel="INFO",
    )


def _register(app: Celery, workshops: list[Workshop]) -> None:
    for kind in JobKind:

        @app.task(name=message_name(kind))  # type: ignore[untyped-decorator]
        def do(job_id: str) -> None:
            do_job(workshops[0], job_id)
