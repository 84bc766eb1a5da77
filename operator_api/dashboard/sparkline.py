"""A line as small as a word: how a task's accuracy went."""

from collections.abc import Sequence

WIDTH, HEIGHT = 120, 28
_MARGIN = 2


def polyline(shares: Sequence[float]) -> str:
    """The ``points`` of an SVG line from left to right, 0 at the bottom and 1 at the top."""
    steps = max(len(shares) - 1, 1)
    across, up = WIDTH - 2 * _MARGIN, HEIGHT - 2 * _MARGIN
    points = [
        (_MARGIN + across * place / steps, _MARGIN + up * (1 - share)) for place, share in enumerate(shares)
    ]
    if len(points) == 1:
        points *= 2  # a line to itself is a dot; a point alone is not drawn
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
