"""The map of a cell: where its devices are, how fast their radio is, and whom a round selected."""

from collections.abc import Collection

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from matplotlib.ticker import LogLocator

from client_sim.fleet import Fleet
from client_sim.plots import to_png

_MANY = 2_000
_DIRECTIONS = 0x6D6170
"""Keeps these dice apart from those that drew the distances: else the devices would lie on a spiral."""


def draw_cell(fleet: Fleet, radius_m: float, selected: Collection[str], title: str) -> bytes:
    """The devices around the base station, those of these client ids marked, as PNG.

    Only the distance is part of the model; the direction is drawn at random, the same each time.
    """
    angles = np.random.default_rng(_DIRECTIONS).uniform(0.0, 2.0 * np.pi, len(fleet))
    east_km, north_km = (fleet.distances_m / 1000 * turned for turned in (np.cos(angles), np.sin(angles)))
    figure = Figure(figsize=(7.4, 6.4), dpi=120, layout="constrained")
    axes: Axes = figure.subplots()
    devices = axes.scatter(
        east_km,
        north_km,
        c=fleet.reports.throughput_bps / 1e6,
        cmap="viridis_r",
        norm=LogNorm(),
        s=24 if len(fleet) <= _MANY else 3,
        edgecolors="grey",
        linewidths=0.4 if len(fleet) <= _MANY else 0,
    )
    ticks = LogLocator(subs=(1.0, 3.0))
    scale = figure.colorbar(
        devices, ax=axes, label="throughput (Mbit/s)", shrink=0.8, ticks=ticks, format="%g"
    )
    scale.minorticks_off()
    numbers = [fleet.number(client_id) for client_id in selected]
    axes.scatter(
        east_km[numbers],
        north_km[numbers],
        s=110,
        facecolors="none",
        edgecolors="black",
        linewidths=1.4,
        label=f"selected ({len(numbers)})",
    )
    axes.plot(0, 0, marker="^", markersize=10, color="black", linestyle="none", label="base station")
    _frame(axes, radius_m / 1000, title)
    figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return to_png(figure)


def _frame(axes: Axes, radius_km: float, title: str) -> None:
    axes.add_patch(Circle((0.0, 0.0), radius_km, fill=False, color="grey", linestyle=":"))
    axes.set_aspect("equal")
    axes.set_xlim(-1.05 * radius_km, 1.05 * radius_km)
    axes.set_ylim(-1.05 * radius_km, 1.05 * radius_km)
    axes.set_xlabel("km")
    axes.set_ylabel("km")
    axes.set_title(title, loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
