"""How many files this process may have open; every connection is one."""

import resource
from typing import ClassVar

from services.errors import FedCSError


class OpenFilesError(FedCSError):
    """The system does not allow as many connections as are needed."""

    cause: ClassVar[str] = "TOO_FEW_OPEN_FILES"


def allow_open_files(needed: int) -> None:
    """Raise this process's own limit as far as needed, if the system allows so many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    except (ValueError, OSError) as error:
        raise OpenFilesError(
            f"so many clients may need {needed} open files, and the system allows {hard}: "
            "raise the limit (ulimit -Hn), or take fewer clients"
        ) from error
