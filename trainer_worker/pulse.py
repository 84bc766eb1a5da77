"""The pulse of a worker: a file that is touched as long as the worker takes messages from the broker."""

from pathlib import Path
from typing import Any

from celery import Celery, bootsteps

_BEAT_EVERY_S = 5.0
_LONGEST_SILENCE_S = 30.0


def give_pulse(app: Celery, file: Path) -> None:
    """Have the loop in which the worker takes messages touch the file, too."""

    class Pulse(bootsteps.StartStopStep):  # type: ignore[misc]
        # Of the consumer: Celery starts it with each connection to the broker, and clears its timer after.
        requires = ("celery.worker.consumer:Connection",)

        def start(self, consumer: Any) -> None:
            file.touch()
            consumer.timer.call_repeatedly(_BEAT_EVERY_S, file.touch)

    app.steps["consumer"].add(Pulse)


def has_pulse(file: Path, now_s: float) -> bool:
    """Whether the file was touched lately."""
    try:
        return now_s - file.stat().st_mtime < _LONGEST_SILENCE_S
    except FileNotFoundError:
        return False
