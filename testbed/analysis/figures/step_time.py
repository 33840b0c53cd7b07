"""Step time against what it cannot beat: a share of one node's step, and the exchange."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes

from testbed.analysis import words
from testbed.analysis.figures import drawing
from testbed.analysis.series import Group, rate_label, value_at
from testbed.analysis.stats import Estimate
from testbed.bounds import allreduce_lower_bound_s, expected_goodput_bps

PANELS_A_ROW = 4
VANISHING = 12  # times smaller than the largest: no longer readable beside it


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One setup: its measured step beside compute and communication, all in seconds."""

    nodes: int
    rate_bps: int
    measured: Estimate
    compute_s: float
    communication_s: float

    @property
    def bound_s(self) -> float:
        """What a step without any overlap takes at least."""
        return self.compute_s + self.communication_s


def against_bound(group: Group) -> drawing.Drawn | str:
    """Draw, for every setup, the step's bound as two stacked parts and the measured steps on it."""
    bars = _bars(group)
    if not bars:
        return "Not drawn: it needs steps of one node, and of several over links of a known rate."
    share = "one node's step" if group.scaling == "weak" else "one node's step / N"
    panels = _panels(bars)
    rows = -(-len(panels) // PANELS_A_ROW)
    page = drawing.canvas(drawing.DOUBLE_MM, 20 + 50 * rows)
    columns = -(-len(panels) // rows)
    found = page.subplots(rows, columns, squeeze=False).flat
    for axes, panel in itertools.zip_longest(found, panels):
        if panel is None:
            axes.set_axis_off()
        else:
            _draw(axes, panel, share)
    label = "Nodes, by rate of the links" if len(panels) == 1 else "Nodes"
    for place in range(len(panels)):
        found[place].set_xlabel(label)
    for row in range(rows):
        found[row * columns].set_ylabel("Time of a step (s)")
    handles, labels = found[0].get_legend_handles_labels()
    page.legend(
        handles,
        labels,
        loc="outside upper center",
        ncols=3,
        handlelength=1.6,
        columnspacing=1.4,
    )
    return drawing.Drawn(page, _caption(group, bars, own_scales=len(panels) > 1))


def _panels(bars: list[Bar]) -> list[list[Bar]]:
    """Return the bars that share a scale: all, or those of each rate where some would vanish.

    Stacked parts can only be compared on a linear scale from zero.
    """
    tops = [max(bar.bound_s, bar.measured.median) for bar in bars]
    if max(tops) <= VANISHING * min(tops):
        return [bars]
    return [list(own) for _, own in itertools.groupby(bars, key=lambda bar: bar.rate_bps)]


def _draw(axes: Axes, bars: list[Bar], share: str) -> None:
    positions = _positions(bars)
    compute = [bar.compute_s for bar in bars]
    edge: dict[str, Any] = {"width": 0.62, "edgecolor": "#6f6f6f", "linewidth": 0.5}
    axes.bar(
        positions,
        compute,
        color="#bdbdbd",
        label=f"bound: computation, {share}",
        **edge,
    )
    axes.bar(
        positions,
        [bar.communication_s for bar in bars],
        bottom=compute,
        color="#cfe3f1",
        hatch="////",
        label="bound: exchange, 2(N-1)/N \N{MIDDLE DOT} S/B",
        **edge,
    )
    for position, bar in zip(positions, bars, strict=True):
        drawing.points(axes, position, bar.measured, drawing.COLOURS[1], "o")
    axes.plot([], [], "o", color=drawing.COLOURS[1], label="measured")
    _axes(axes, bars, positions)


def _bars(group: Group) -> list[Bar]:
    one = group.step(1)
    gradients = {value_at(record, "work.gradient_bytes") for record in group.timed} - {None}
    if one is None or len(gradients) != 1:
        return []
    found = []
    for rate_bps in group.rates:
        for nodes in group.nodes:
            step = group.step(nodes, rate_bps) if nodes > 1 else None
            if rate_bps is None or step is None:
                continue
            found.append(
                Bar(
                    nodes=nodes,
                    rate_bps=rate_bps,
                    measured=step,
                    compute_s=one.median if group.scaling == "weak" else one.median / nodes,
                    communication_s=allreduce_lower_bound_s(
                        next(iter(gradients)), nodes, expected_goodput_bps(rate_bps)
                    ),
                )
            )
    return found


def _positions(bars: list[Bar]) -> list[float]:
    """Return where the bars stand: those of one rate together, a gap between the rates."""
    positions, at = [], 0.0
    for before, bar in zip([None, *bars], bars, strict=False):
        at += 1.0 if before is None or before.rate_bps == bar.rate_bps else 1.6
        positions.append(at)
    return positions


def _axes(axes: Axes, bars: list[Bar], positions: list[float]) -> None:
    top = max(max(bar.bound_s, *bar.measured.values) for bar in bars)
    axes.set_ylim(0, top * 1.08)
    axes.set_xlim(min(positions) - 0.6, max(positions) + 0.6)
    axes.set_xticks(positions, [str(bar.nodes) for bar in bars])
    axes.tick_params(axis="x", length=0)
    for rate_bps in dict.fromkeys(bar.rate_bps for bar in bars):
        own = [at for at, bar in zip(positions, bars, strict=True) if bar.rate_bps == rate_bps]
        axes.annotate(
            rate_label(rate_bps),
            xy=(sum(own) / len(own), 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 1),
            textcoords="offset points",
            ha="center",
            va="bottom",
            fontsize=7.5,
        )


def _caption(group: Group, bars: list[Bar], *, own_scales: bool) -> str:
    shares = sorted((bar.measured.median / bar.bound_s, bar) for bar in _keyed(bars))
    nearest, farthest = shares[0], shares[-1]
    seen = f"{_name(nearest[1])} took {words.number(nearest[0])} times the bound"
    if len(bars) > 1:
        seen = f"From {words.number(nearest[0])} times the bound ({_name(nearest[1])}) to " + (
            f"{words.number(farthest[0])} times ({_name(farthest[1])})"
        )
    beats = [_name(bar) for bar in bars if bar.measured.median < bar.bound_s]
    under = (
        f"Below the sum of both: {words.listed(beats)}; computation and exchange overlap there, or "
        "short bursts pass the limits."
        if beats
        else ""
    )
    work = "the same share of work" if group.scaling == "weak" else "its N-th part"
    return words.joined(
        f"Time of a step against computation plus exchange without overlap. {seen}.",
        under,
        f"Computation is one node's measured step ({work}), the exchange is the least any "
        "all-reduce needs on links of this goodput (0.9564 of the rate). The bound is computed, "
        "the points are measured.",
        "Each rate has a scale of its own." if own_scales else "",
        words.trials([bar.measured for bar in bars]),
        words.instability([(_name(bar), bar.measured) for bar in bars]),
        words.setting(group),
    )


def _keyed(bars: list[Bar]) -> list[Bar]:
    return sorted(bars, key=lambda bar: (bar.rate_bps, bar.nodes))


def _name(bar: Bar) -> str:
    return words.setup_name(bar.nodes, bar.rate_bps)
