"""Progress with the time left: bars on a terminal; elsewhere a line for every task every 10 seconds."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

_LINE_EVERY_S = 10.0


@contextmanager
def show_progress(console: Console, every_s: float = _LINE_EVERY_S) -> Iterator[Progress]:
    """Show the tasks that are added to the progress; each has a field ``note``."""
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )
    ended = Event()

    def print_lines() -> None:
        while not ended.wait(every_s):
            for task in progress.tasks:
                if not task.finished:
                    console.print(_line(task), soft_wrap=True, highlight=False)

    thread = Thread(target=print_lines, name="progress lines", daemon=True)
    with progress:
        if not console.is_terminal:
            thread.start()
        try:
            yield progress
        finally:
            ended.set()
            if thread.ident is not None:
                thread.join()


def _line(task: Task) -> str:
    done = f"{task.completed:g}" if task.total is None else f"{task.completed:g}/{task.total:g}"
    left = task.time_remaining
    parts = [
        f"{task.description}: {done}",
        task.fields["note"],
        "" if left is None else f"{_time(left)} left",
    ]
    return ", ".join(part for part in parts if part)


def _time(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"
