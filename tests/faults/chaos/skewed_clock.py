"""Stands in for ``python -m operator_api``: its clock may be wrong.

FEDCS_TEST_SKEW_S says by how much its clock is ahead, in seconds. Nothing in the service knows of this: the
clock is replaced from outside, also in modules that the fork server has imported before.
"""

import datetime as dt
import os
import sys
import time
from typing import Any

_SKEW = dt.timedelta(seconds=float(os.environ.get("FEDCS_TEST_SKEW_S", "0")))
_true_datetime = dt.datetime
_true_time = time.time
_OURS = ("services.", "operator_api.", "trainer_worker.")


class _OfAnyClock(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _true_datetime)


class SkewedDatetime(_true_datetime, metaclass=_OfAnyClock):
    @classmethod
    def now(cls, tz: dt.tzinfo | None = None) -> Any:
        return _true_datetime.now(tz) + _SKEW


def skew_clock() -> None:
    dt.datetime = SkewedDatetime  # type: ignore[misc]
    for name, module in list(sys.modules.items()):
        if name.startswith(_OURS) and getattr(module, "datetime", None) is _true_datetime:
            module.datetime = SkewedDatetime  # type: ignore[attr-defined]
    time.time = lambda: _true_time() + _SKEW.total_seconds()


if __name__ == "__main__":
    if _SKEW:
        skew_clock()
    from operator_api.__main__ import main
    from services.storage import coordination

    assert (vars(coordination)["datetime"] is SkewedDatetime) == bool(_SKEW), (
        "the service goes by another clock"
    )
    main()
