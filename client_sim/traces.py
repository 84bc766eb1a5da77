"""Throughput traces and phone speeds: the files that a user records or downloads.

A trace is constant between its steps and is repeated. Times and sums are whole numbers, so the end of an
upload is exact.
"""

import csv
import json
import lzma
import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from services.domain.nanoseconds import to_ns
from services.errors import FedCSError

NS_PER_S = 1_000_000_000
_NS_PER_MS = 1_000_000
_OPPORTUNITY_BITS = 8 * 1500
"""What a mahimahi file counts."""
_MAX_BPS = 1e12
_MAX_S = 30 * 24 * 3600.0
_MAX_MS = round(1000 * _MAX_S)
_MAX_TIMESTAMP_S = 1e10
"""Times may be those of the clock."""
_SPEED_HOLDS_S = 10
_SPEEDS_PER_USER = 360
"""An hour."""
_COLUMNS = ["time_s", "bps"]
_DIRECTORY_PATTERNS = ("*.up", "*.up.xz", "*.csv", "*.csv.xz")
_PHONE_SCORE = "CPU_F_AI_Score"


class TraceError(FedCSError):
    """A trace file is not valid."""

    cause: ClassVar[str] = "BAD_TRACE"


@dataclass(frozen=True)
class Trace:
    """Throughput over time. Sums of throughput are in bit·ns/s."""

    times_ns: Sequence[int]
    """The start of each step; the first is 0."""
    rates_bps: Sequence[int]
    """The throughput in each step."""
    period_ns: int
    """The end of the last step; then the trace begins again."""
    _sums: list[int] = field(init=False, repr=False, compare=False)
    """Before each step, and at the end."""

    def __post_init__(self) -> None:
        lengths_ns = (end - begin for begin, end in pairwise([*self.times_ns, self.period_ns]))
        steps = (length * rate for length, rate in zip(lengths_ns, self.rates_bps, strict=True))
        object.__setattr__(self, "_sums", list(accumulate(steps, initial=0)))

    @property
    def total(self) -> int:
        """The sum over one period."""
        return self._sums[-1]

    def sum_until(self, time_ns: int) -> int:
        """The sum from time 0; negative before it."""
        periods, in_period_ns = divmod(time_ns, self.period_ns)
        step = bisect_right(self.times_ns, in_period_ns) - 1
        in_step = self.rates_bps[step] * (in_period_ns - self.times_ns[step])
        return periods * self.total + self._sums[step] + in_step

    def time_of(self, amount: Fraction | int) -> Fraction:
        """The first time at which the sum is ``amount``, which the trace must reach."""
        periods, rest = divmod(amount, self.total)
        if rest == 0:  # it is reached in the period before
            periods, rest = periods - 1, self.total
        step = bisect_left(self._sums, rest) - 1
        return (
            periods * self.period_ns
            + self.times_ns[step]
            + Fraction(rest - self._sums[step]) / self.rates_bps[step]
        )


@lru_cache(maxsize=8)
def load_traces(paths: tuple[Path, ...], seed: int) -> list[Trace]:
    """Read uplink traces from files, and from the ``.up`` and ``.csv`` files of directories.

    ``seed`` draws the throughput of users whose file has only mean and standard deviation.
    """
    traces: list[Trace] = []
    for path in _files_of(paths):
        text, kind = _read_text(path), path.name.removesuffix(".xz").rpartition(".")[2]
        if kind == "csv":
            traces.append(_csv_trace(path, text))
        elif kind == "json":
            traces += _user_traces(path, text, np.random.default_rng([seed, len(traces)]))
        else:
            traces.append(_mahimahi_trace(path, text))
    return traces


def load_phone_speeds(path: Path) -> list[float]:
    """Read the speeds of phones, relative to the fastest."""
    phones = _read_json(path, _read_text(path))
    if not (isinstance(phones, list) and phones):
        raise TraceError(f"{path}: a list of phones is expected, with the field {_PHONE_SCORE}")
    scores = [
        _positive(path, f"phone {number}, {_PHONE_SCORE}", _value_of(phone, _PHONE_SCORE))
        for number, phone in enumerate(phones, 1)
    ]
    return [score / max(scores) for score in scores]


def _files_of(paths: Iterable[Path]) -> list[Path]:
    files: list[Path] = []
    for path in paths:
        if not path.is_dir():
            files.append(path)
            continue
        found = sorted(file for pattern in _DIRECTORY_PATTERNS for file in path.glob(pattern))
        if not found:
            raise TraceError(f"{path}: the directory has no traces ({', '.join(_DIRECTORY_PATTERNS)})")
        files += found
    return files


def _read_text(path: Path) -> str:
    try:
        content = path.read_bytes()
        return (lzma.decompress(content) if path.suffix == ".xz" else content).decode("utf-8-sig")
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from error
    except lzma.LZMAError as error:
        raise TraceError(f"{path}: not an xz file ({error})") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: not a text file ({error.reason})") from error


def _mahimahi_trace(path: Path, text: str) -> Trace:
    """One line for each opportunity to send 1,500 bytes: its millisecond."""
    at_ms: list[int] = []
    for line, word in enumerate(map(str.strip, text.splitlines()), 1):
        if not (word.isascii() and word.isdigit()):
            raise TraceError(f"{path}, line {line}: {word[:40]!r} is not a number of milliseconds")
        at_ms.append(int(word) if len(word) < 20 else 10**20)
        if at_ms[-1] > _MAX_MS:
            raise TraceError(f"{path}, line {line}: the trace may last {_MAX_S:g} s at most")
        if line > 1 and at_ms[-1] < at_ms[-2]:
            raise TraceError(f"{path}, line {line}: {word} is before {at_ms[-2]} in the line above")
    if not at_ms:
        raise TraceError(f"{path}: the file is empty")
    times_ns, rates_bps, end_ms = [], [], 0
    for ms, opportunities in Counter(at_ms).items():
        if ms > end_ms:
            times_ns.append(end_ms * _NS_PER_MS)
            rates_bps.append(0)
        times_ns.append(ms * _NS_PER_MS)
        rates_bps.append(opportunities * _OPPORTUNITY_BITS * 1000)
        end_ms = ms + 1
    return Trace(times_ns, rates_bps, end_ms * _NS_PER_MS)


def _csv_trace(path: Path, text: str) -> Trace:
    """Rows of ``time_s, bps``: a throughput holds until the next row, the last as long as the one before."""
    rows = csv.reader(text.splitlines(), skipinitialspace=True)
    times_s: list[float] = []
    times_ns: list[int] = []
    rates_bps: list[int] = []
    try:
        if [name.strip() for name in next(rows, [])] != _COLUMNS:
            raise TraceError(f"{path}, line 1: the columns must be {', '.join(_COLUMNS)}")
        for row in rows:
            where = f"line {rows.line_num}"
            if len(row) != len(_COLUMNS):
                raise TraceError(f"{path}, {where}: two values are expected, not {len(row)}")
            times_s.append(_number(path, f"{where}, time_s", row[0], 0, _MAX_TIMESTAMP_S))
            times_ns.append(to_ns(times_s[-1] - times_s[0]))
            rates_bps.append(round(_number(path, f"{where}, bps", row[1], 0, _MAX_BPS)))
            if len(times_ns) > 1 and times_ns[-1] <= times_ns[-2]:
                raise TraceError(f"{path}, {where}: the time {row[0]} is not after the one in the row above")
            if times_ns[-1] > to_ns(_MAX_S):
                raise TraceError(f"{path}, {where}: the trace may last {_MAX_S:g} s at most")
    except csv.Error as error:
        raise TraceError(f"{path}, line {rows.line_num}: {error}") from error
    if len(times_ns) < 2:
        raise TraceError(f"{path}: two rows are needed at least")
    if not any(rates_bps):
        raise TraceError(f"{path}: the throughput is 0 throughout")
    return Trace(times_ns, rates_bps, 2 * times_ns[-1] - times_ns[-2])


def _user_traces(path: Path, text: str, rng: np.random.Generator) -> list[Trace]:
    """A trace for each user: throughput drawn anew every ten seconds, for an hour."""
    users = _read_json(path, text)
    if not (isinstance(users, dict) and users):
        raise TraceError(f"{path}: an object of users is expected, with the fields up_u and up_sigma")
    traces = []
    for name, user in users.items():
        mean_kbps = _positive(path, f"{name}, up_u", _value_of(user, "up_u"))
        deviation = _number(path, f"{name}, up_sigma", _value_of(user, "up_sigma"), 0, _MAX_BPS / 1000)
        drawn = np.maximum(rng.normal(1000 * mean_kbps, 1000 * deviation, _SPEEDS_PER_USER), 0.0)
        step_ns = _SPEED_HOLDS_S * NS_PER_S
        rates_bps = [max(round(rate), 1) for rate in drawn.tolist()]
        traces.append(
            Trace([step_ns * step for step in range(len(rates_bps))], rates_bps, step_ns * len(rates_bps))
        )
    return traces


def _read_json(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise TraceError(f"{path}, line {error.lineno}: not JSON: {error.msg}") from error
    except (RecursionError, ValueError) as error:
        raise TraceError(f"{path}: not JSON: {error}") from error


def _value_of(entry: object, name: str) -> object:
    return entry.get(name) if isinstance(entry, dict) else None


def _positive(path: Path, where: str, value: object) -> float:
    number = _number(path, where, value, 0, _MAX_BPS / 1000)
    if number == 0:
        raise TraceError(f"{path}, {where}: it must be above 0")
    return number


def _number(path: Path, where: str, value: object, least: float, most: float) -> float:
    """A number, or one written as text, within these limits."""
    try:
        number = float(value) if isinstance(value, str | int | float) else math.nan
    except (ValueError, OverflowError):
        number = math.nan
    if not least <= number <= most:
        raise TraceError(f"{path}, {where}: {value!r:.40} is not a number from {least:g} to {most:g}")
    return number
