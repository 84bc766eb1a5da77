"""The errors a caller can do something about.

::

    FedCSError
    ├── SettingsError          the process cannot start with these settings
    ├── ServiceStartError      a service that was to be started did not come up
    ├── PlanFileError          a file of resource reports cannot be used
    └── ScheduleTooLongError   the selected clients would not be done within a lifetime

``cause`` is the machine-readable name. What it means in HTTP is for the API to say.
"""

from typing import ClassVar


class FedCSError(Exception):
    """Anything the service refuses, said in a sentence for the caller."""

    cause: ClassVar[str]


class SettingsError(FedCSError):
    """The process cannot start with these settings."""

    cause: ClassVar[str] = "BAD_SETTINGS"


class ServiceStartError(FedCSError):
    """A service that was to be started did not come up."""

    cause: ClassVar[str] = "SERVICE_NOT_STARTED"


class PlanFileError(FedCSError):
    """A file of resource reports cannot be used."""

    cause: ClassVar[str] = "BAD_PLAN_FILE"


class ScheduleTooLongError(FedCSError):
    """The selected clients would not be done within a lifetime."""

    cause: ClassVar[str] = "SCHEDULE_TOO_LONG"
