"""How numbers and moments are written on pages."""

from datetime import UTC, datetime


def as_duration(seconds: float) -> str:
    """A time in its two largest units: ``6 h 40 min``, ``3 min``, ``2.5 s``."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest_s = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (rest_s, "s")]
    first = next(place for place, (number, _) in enumerate(parts) if number)
    return " ".join(f"{number} {unit}" for number, unit in parts[first : first + 2] if number)


def as_percent(share: float) -> str:
    """A share of one: ``53.1 %``."""
    return f"{share * 100:.1f} %"


def as_moment(moment: datetime) -> str:
    """A moment, to the second."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
