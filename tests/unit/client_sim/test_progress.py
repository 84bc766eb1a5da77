from io import StringIO
from threading import Event

from rich.console import Console

from client_sim.runs import show_progress


class Lines(StringIO):
    """Tells when the second line is there."""

    def __init__(self) -> None:
        super().__init__()
        self.second = Event()

    def write(self, text: str) -> int:
        written = super().write(text)
        if self.getvalue().count("\n") >= 2:
            self.second.set()
        return written


def test_what_is_redirected_has_a_line_for_each_task_again_and_again() -> None:
    lines = Lines()
    with show_progress(Console(file=lines), every_s=0.01) as progress:
        bar = progress.add_task("fedcs", total=40, note="enrolling")
        progress.update(progress.add_task("done", total=1, note="nothing to do"), advance=1)
        progress.update(bar, advance=10, note="7 clients")
        progress.update(bar, advance=10, note="7 clients")
        assert lines.second.wait(60)
    text = lines.getvalue()
    assert "fedcs: 20/40, 7 clients" in text
    assert " left" in text
    assert "nothing to do" not in text
