# SPDX-License-Identifier: Apache-2.0
"""The demo's picture: every request's wait in scene 1, and the shares of service in scene 2."""

import math
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

from taketurns.demo.records import Served, of
from taketurns.demo.report import Run, contended, seconds, tier_shares, waits
from taketurns.demo.scenes import Burst, Tiers
from taketurns.figures import median

BLUE, ORANGE, GREY, DARK = "#0072b2", "#d55e00", "#8c8c8c", "#4d4d4d"
"""Colours that people who don't see all colours can tell apart (Okabe and Ito)."""

WAIT_S_MIN = 1e-3
"""Shorter waits are drawn as this: a logarithm has no zero, and the log counts milliseconds."""

BIN_S = 0.5
"""Shares are counted over half a second each, so that a batch more or less doesn't show."""

LEAD_S, TAIL_S = 2.0, 2.0
"""How much of scene 2 is drawn before both tenants have work, and after."""


def draw(run: Run, path: Path) -> None:
    """Draw one run into a PNG file.

    Raises:
        OSError: The file can't be written.
    """
    mpl.use("Agg")
    with mpl.rc_context({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False}):
        picture = Picture(figsize=(13, 9.5))
        picture.set_layout_engine("constrained", hspace=0.06)
        panels = picture.subplot_mosaic(
            [["fair", "shared"], ["tiers", "tiers"]], height_ratios=[1.2, 1]
        )
        fair, shared = _median_wait(run.fair), _median_wait(run.shared)
        _waits(panels["fair"], run.fair, f"With the scheduler, B waits {fair} (median)")
        _waits(
            panels["shared"],
            run.shared,
            f"In one shared queue, B waits {shared} (median)",
        )
        longest = max(request.wait_s for one in (run.fair, run.shared) for request in one.served)
        for name in ("fair", "shared"):
            panels[name].set_ylim(WAIT_S_MIN * 0.7, longest * 2)
        panels["fair"].set_ylabel("wait in the gateway's queue (seconds, log scale)")
        _shares(panels["tiers"], run)
        requests = len(of(run.fair.served, "a"))
        picture.suptitle(
            f"Two tenants share one embedding engine: A floods it with {requests:,} texts, "
            "B sends five at a time",
            fontsize=15,
            fontweight="bold",
        )
        picture.savefig(path, dpi=110)


def _median_wait(seen: Burst) -> str:
    return seconds(median(waits(seen.served, "b")))


def _waits(axes: Axes, seen: Burst, title: str) -> None:
    begin_s = of(seen.served, "a")[0].arrived_s
    for tenant, colour, size in (("a", GREY, 3), ("b", ORANGE, 42)):
        requests = of(seen.served, tenant)
        middle = seconds(median(waits(seen.served, tenant)))
        axes.scatter(
            [request.arrived_s - begin_s for request in requests],
            [max(request.wait_s, WAIT_S_MIN) for request in requests],
            s=size,
            color=colour,
            edgecolors="white" if tenant == "b" else "none",
            linewidths=0.6,
            alpha=1 if tenant == "b" else 0.35,
            zorder=3 if tenant == "b" else 2,
            label=f"a request of {tenant.upper()} (median of {len(requests):,}: {middle})",
        )
    axes.axhline(
        seen.pace.batch_s,
        color=BLUE,
        linestyle="--",
        linewidth=1.2,
        label=f"time of one batch of {seen.pace.items:.0f} texts ({seconds(seen.pace.batch_s)})",
    )
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(
        lambda value, _: f"under {value:g}" if value <= WAIT_S_MIN else f"{value:g}"
    )
    axes.set_xlabel("arrival of the request (seconds since A's first)")
    axes.set_title(title, loc="left", fontweight="bold")
    axes.grid(visible=True, axis="y", color="#e5e5e5")
    axes.set_axisbelow(True)
    # Between A's waits of seconds and B's of milliseconds there is room in both panels.
    legend = axes.legend(loc="center right", bbox_to_anchor=(1, 0.64), framealpha=0.95)
    for handle in legend.legend_handles:
        if handle is not None:
            handle.set_alpha(1)
    legend.legend_handles[0].set_sizes([20])  # type: ignore[union-attr]


def _shares(axes: Axes, run: Run) -> None:
    floor = run.floor.floor_percent
    for seen, colour, says, side, height in (
        (run.strict, DARK, "strict order: trial gets", "right", 75),
        # On the other side and lower, for the two ends can be close together.
        (run.floor, ORANGE, f"floor of {floor} %: trial gets", "left", 45),
    ):
        begin_s, end_s = _span(seen)
        edges, share = trial_share_by_time(seen.served, begin_s, end_s)
        got = 100 * tier_shares(seen)["trial"]
        axes.stairs(share, edges, color=colour, linewidth=2.4, baseline=None)
        axes.text(
            BIN_S,
            got + 3,
            f"{says} {got:.1f} %",
            color=colour,
            fontweight="bold",
            verticalalignment="bottom",
        )
        axes.plot([end_s - begin_s] * 2, [got, 100], color=colour, linewidth=1, linestyle=":")
        _note(axes, "enterprise's last\nrequest is served", end_s - begin_s, height, colour, side)
    axes.axvline(0, color=BLUE, linestyle="--", linewidth=1.2)
    _note(axes, "enterprise's first\nrequest comes", 0, 60, BLUE, "right")
    axes.set_ylim(-4, 104)
    axes.set_ylabel("trial tenant's share of service (%)")
    axes.set_xlabel("seconds since the enterprise tenant's first request")
    axes.set_title(
        "A trial tenant's flood and an enterprise tenant: strict order stops the flood, "
        "a floor lets a part of it through",
        loc="left",
        fontweight="bold",
    )
    axes.grid(visible=True, axis="y", color="#e5e5e5")
    axes.set_axisbelow(True)


def _note(axes: Axes, text: str, at_s: float, height: float, colour: str, side: str) -> None:
    """Write beside an upright line: a text with its ``side`` to the line."""
    axes.annotate(
        text,
        xy=(at_s, height),
        xytext=(-8 if side == "right" else 26, 0),
        textcoords="offset points",
        color=colour,
        horizontalalignment=side,
        verticalalignment="center",
    )


def _span(seen: Tiers) -> tuple[float, float]:
    """Return when both tenants had work: from the first span's begin to the last one's end."""
    spans = contended(seen.served)
    if not spans:
        return seen.served[0].arrived_s, seen.served[-1].arrived_s
    return spans[0][0], spans[-1][1]


def trial_share_by_time(
    served: Sequence[Served], begin_s: float, end_s: float
) -> tuple[list[float], list[float]]:
    """Return the trial tenant's share of service over time, in per cent.

    Args:
        served: All requests.
        begin_s: Where time 0 is: an edge between two spans of ``BIN_S``.
        end_s: Until when both tenants had work.

    Returns:
        The edges of the spans, and a share for each span; not a number where
        nothing was dispatched.
    """
    first, last = -round(LEAD_S / BIN_S), math.ceil((end_s - begin_s + TAIL_S) / BIN_S)
    costs = {number: [0, 0] for number in range(first, last)}
    for request in served:
        number = math.floor((request.dispatched_s - begin_s) / BIN_S)
        if number in costs:
            costs[number][0] += request.cost if request.tenant == "trial" else 0
            costs[number][1] += request.cost
    share = [100 * trial / both if both else math.nan for trial, both in costs.values()]
    return [number * BIN_S for number in range(first, last + 1)], share
