"""Stands in for ``python -m operator_api``: its clock may be wrong, and its leases short.

FEDCS_STORM_SKEW_S says by how much its clock is ahead, in seconds; FEDCS_STORM_LEASE_S how long a lease lasts
if not as long as usual. Nothing in the service knows of this: the clock is replaced before anything of it is
loaded, and the terms of leases from outside.
"""

import datetime as dt
import os
import time
from typing import Any

_SKEW = dt.timedelta(seconds=float(os.environ.get("FEDCS_STORM_SKEW_S", "0")))
_true_datetime = dt.datetime
_true_time = time.time


class _OfAnyClock(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _true_datetime)


class SkewedDatetime(_true_datetime, metaclass=_OfAnyClock):
    @classmethod
    def now(cls, tz: dt.tzinfo | None = None) -> Any:
        return _true_datetime.now(tz) + _SKEW


def skew_clock() -> None:
    dt.datetime = SkewedDatetime  # type: ignore[misc]
    time.time = lambda: _true_time() + _SKEW.total_seconds()


def shorten_leases(lease_s: float) -> None:
    # Not before the clock is replaced.
    from operator_api import keeper  # noqa: PLC0415
    from services.protocol import job_lease  # noqa: PLC0415
    from trainer_worker import publisher  # noqa: PLC0415

    job_lease.LEASE = dt.timedelta(seconds=lease_s)
    job_lease.RENEW_EVERY_S = lease_s / 4
    keeper._LEASE = dt.timedelta(seconds=lease_s)
    publisher._PUBLISH_AGAIN = dt.timedelta(seconds=lease_s)


if __name__ == "__main__":
    if _SKEW:
        skew_clock()
    if "FEDCS_STORM_LEASE_S" in os.environ:
        shorten_leases(float(os.environ["FEDCS_STORM_LEASE_S"]))
    from operator_api.__main__ import main

    main()
