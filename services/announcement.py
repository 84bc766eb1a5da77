"""What ``fedcs up`` prints when it is ready, and how a program that started it reads that again."""

from collections.abc import Iterable
from dataclasses import dataclass

_READY = "FedCS Operator is ready at "
_KEY = "  operator key  "


@dataclass(frozen=True)
class Announcement:
    """Where the service is, and the key to it."""

    url: str
    operator_key: str

    def text(self) -> str:
        """What a person reads, and ``read_announcement``."""
        docs = f"  API docs      {self.url}/docs"
        return f"{_READY}{self.url}\n{_KEY}{self.operator_key}\n{docs}\nStop with Ctrl-C."


def read_announcement(lines: Iterable[str]) -> Announcement | None:
    """Read on until the service is ready; none if it ends before."""
    url = ""
    for line in lines:
        if line.startswith(_READY):
            url = line.removeprefix(_READY).strip()
        elif line.startswith(_KEY):
            return Announcement(url, line.removeprefix(_KEY).strip())
    return None
