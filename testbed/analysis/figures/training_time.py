"""Training time: against the number of nodes, and against the rate of the links."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator

from testbed.analysis import words
from testbed.analysis.figures import drawing
from testbed.analysis.series import Group, by_rate, rate_label, value_at
from testbed.analysis.stats import Estimate
from testbed.bounds import break_even_bps, payload_fraction

Cells = dict[tuple[int, int | None], Estimate]


def against_nodes(group: Group) -> drawing.Drawn | str:
    """Draw training time over nodes, a line per rate; one node is drawn across."""
    cells = _cells(group)
    if not cells:
        return "Not drawn: no trial has a training time that may be shown."
    page = drawing.canvas(drawing.SINGLE_MM, 66)
    axes = page.subplots()
    nodes = sorted({count for count, _ in cells})
    drawing.node_axis(axes, nodes, margin=0.0)
    drawing.value_axis(axes, _extent(cells))
    axes.set_ylabel("Training time (s)")
    one = cells.get((1, None))
    if one is not None:
        _across(axes, one)
        drawing.points(axes, 1, one, drawing.BLACK, "o")
    names: list[drawing.LineName] = []
    for index, rate_bps in enumerate(group.rates):
        colour, marker, line = drawing.look(index)
        own = [
            (count, cells[count, rate_bps])
            for count in nodes
            if count > 1 and (count, rate_bps) in cells
        ]
        path = ([(1, one)] if one is not None else []) + own
        axes.plot(
            [count for count, _ in path],
            [found.median for _, found in path],
            line,
            color=colour,
            zorder=2,
        )
        for count, found in own:
            drawing.points(axes, count, found, colour, marker)
        names.append(
            drawing.LineName(
                x=own[-1][0],
                y=own[-1][1].median,
                text=rate_label(rate_bps),
                colour=colour,
                marker=marker,
                line=line,
            )
        )
    if one is not None:
        names.append(_name_across(max(nodes), one))
    drawing.name_lines(axes, names)
    return drawing.Drawn(page, _nodes_caption(group, cells))


def _cells(group: Group) -> Cells:
    found = {}
    for nodes, rate_bps in group.setups():
        time = group.time(nodes, rate_bps)
        if time is not None:
            found[nodes, rate_bps] = time
    return found


def _extent(cells: Cells) -> list[float]:
    return [value for found in cells.values() for value in found.values]


def _across(axes: Axes, one: Estimate) -> None:
    if one.low is not None and one.high is not None:
        axes.axhspan(one.low, one.high, color=drawing.BAND, alpha=0.6, linewidth=0, zorder=0.5)
    axes.axhline(one.median, color=drawing.BLACK, linestyle=(0, (4, 2)), linewidth=0.9, zorder=1.5)


def _name_across(x: float, one: Estimate) -> drawing.LineName:
    return drawing.LineName(
        x=x, y=one.median, text="one node", colour=drawing.BLACK, line=(0, (4, 2))
    )


def _common(group: Group, cells: Cells) -> str:
    named = [(words.setup_name(*setup), found) for setup, found in cells.items()]
    return words.joined(
        words.trials(list(cells.values())), words.instability(named), words.setting(group)
    )


def _nodes_caption(group: Group, cells: Cells) -> str:
    seen = []
    for rate_bps in words.extremes(group):
        most = max(count for count, rate in cells if count > 1 and rate == rate_bps)
        compared = words.against_one(group, most, rate_bps)
        if compared:
            seen.append(f"{words.at_rate(rate_bps)} {compared}")
    if (1, None) not in cells:
        seen.append("there is no trial of one node to compare with")
    elif len(cells) == 1:
        seen.append(f"only one node was measured: {words.seconds(cells[1, None].median)}")
    across = "The dashed line is one node." if (1, None) in cells else ""
    return words.joined(
        f"Training time against the number of nodes. {words.capital('; '.join(seen))}.",
        across,
        _common(group, cells),
    )


def against_rate(group: Group) -> drawing.Drawn | str:
    """Draw training time over the rate on log axes, a line per number of nodes.

    One node has no link and is drawn across. The break-even rate is computed from its step.
    Unlimited links have no place on a scale: they stand apart, at its right end.
    """
    cells = {setup: time for setup, time in _cells(group).items() if setup[0] > 1}
    if all(rate_bps is None for _, rate_bps in cells):
        return "Not drawn: no trial of several nodes over links of a known rate may be shown."
    one = group.time(1)
    page = drawing.canvas(drawing.SINGLE_MM, 66)
    axes = page.subplots()
    even_bps = break_even_rate_bps(group)
    places = _places(group.rates)
    _rate_axis(axes, places, even_bps)
    values = [*_extent(cells), *(one.values if one is not None else ())]
    drawing.value_axis(axes, values, log=True)
    axes.set_ylabel("Training time (s)")
    names: list[drawing.LineName] = []
    for index, nodes in enumerate(sorted({count for count, _ in cells})):
        colour, marker, line = drawing.look(index)
        own = [(rate, cells[nodes, rate]) for rate in group.rates if (nodes, rate) in cells]
        axes.plot(
            [places[rate] for rate, _ in own if rate is not None],
            [found.median for rate, found in own if rate is not None],
            line,
            color=colour,
            zorder=2,
        )
        for rate, found in own:
            drawing.points(axes, places[rate], found, colour, marker)
        names.append(
            drawing.LineName(
                x=places[own[-1][0]],
                y=own[-1][1].median,
                text=words.count(nodes),
                colour=colour,
                marker=marker,
                line=line,
            )
        )
    if one is not None:
        _across(axes, one)
        names.append(_name_across(max(places.values()), one))
    drawing.name_lines(axes, names)
    return drawing.Drawn(page, _rate_caption(group, cells, even_bps))


def _places(rates: Sequence[int | None]) -> dict[int | None, float]:
    """Return where each rate is drawn, in Mbit/s; unlimited beyond the others."""
    found: dict[int | None, float] = {rate: rate / 1e6 for rate in rates if rate is not None}
    if None in rates:
        found[None] = max(found.values()) * _gap(found.values())
    return found


def _gap(places: Iterable[float]) -> float:
    """Return the factor from the largest rate to where unlimited stands: a fifth of the axis."""
    shown = list(places)
    return max(2.0, math.sqrt(math.sqrt(max(shown) / min(shown))))


def _in_view(places: Mapping[int | None, float], even_bps: float | None) -> bool:
    """Whether the break-even rate lies near enough to the measured ones to be drawn."""
    if even_bps is None:
        return False
    return min(places.values()) / 4 < even_bps / 1e6 < max(places.values()) * 4


def _rate_axis(axes: Axes, places: Mapping[int | None, float], even_bps: float | None) -> None:
    """Put a tick at every rate that was measured, and a dotted line at the break-even rate."""
    even_bps = even_bps if _in_view(places, even_bps) else None
    shown = [*places.values()] + ([even_bps / 1e6] if even_bps is not None else [])
    axes.set_xscale("log")
    room = max(1.35, math.pow(max(shown) / min(shown), 0.08))
    axes.set_xlim(min(shown) / room, max(shown) * room)
    axes.xaxis.set_major_locator(FixedLocator([*places.values()]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(
        FixedFormatter(["unlimited" if rate is None else f"{rate / 1e6:g}" for rate in places])
    )
    axes.set_xlabel("Rate of every link (Mbit/s)")
    if None in places:
        edge = places[None] / _gap(place for rate, place in places.items() if rate) ** 0.5
        axes.axvline(edge, color=drawing.BAND, linewidth=0.8, zorder=0)
    if even_bps is None:
        return
    axes.axvline(even_bps / 1e6, color=drawing.GREY, linestyle=(0, (1, 1.5)), linewidth=0.9)
    axes.annotate(
        f"break-even bound {words.number(even_bps / 1e6)}",
        xy=(even_bps / 1e6, 1.0),
        xycoords=("data", "axes fraction"),
        xytext=(0, 2),
        textcoords="offset points",
        ha="center",
        va="bottom",
        fontsize=7,
        color=drawing.GREY,
    )


def break_even_rate_bps(group: Group) -> float | None:
    """Return the rate of a link above which several nodes can beat one; None if unknown.

    Strong scaling without overlap: goodput 2 S / T_1 (docs/method.md, Bounds).
    """
    gradients = {value_at(record, "work.gradient_bytes") for record in group.timed} - {None}
    step = group.step(1)
    if step is None or len(gradients) != 1 or group.scaling == "weak" or group.shares_host:
        return None
    return float(break_even_bps(gradients.pop(), step.median) / payload_fraction())


def _rate_caption(group: Group, cells: Cells, even_bps: float | None) -> str:
    seen = []
    for nodes in sorted({count for count, _ in cells}):
        own = sorted((rate for count, rate in cells if count == nodes), key=by_rate)
        if len(own) > 1:
            slow, fast = cells[nodes, own[0]], cells[nodes, own[-1]]
            seen.append(
                f"{words.count(nodes)} take {words.seconds(slow.median)} {words.at_rate(own[0])} "
                f"and {words.seconds(fast.median)} {words.at_rate(own[-1])}"
            )
    even = ""
    if even_bps is not None:
        drawn = _in_view(_places(group.rates), even_bps)
        where = "Left of the dotted line" if drawn else "Below a rate that lies outside this figure"
        even = (
            f"{where} (break-even, computed and not measured: goodput 2S/T1, here "
            f"{words.number(even_bps / 1e6)} Mbit/s) no number of nodes can beat one by "
            "synchronous data parallelism without overlap."
        )
    across = "The dashed line is one node, which has no link." if group.time(1) else ""
    if None in group.rates:
        across += " Unlimited links stand apart from the scale: their goodput is not limited."
    told = f" {words.capital('; '.join(seen))}." if seen else ""
    return words.joined(
        f"Training time against the rate of every link.{told}", across, even, _common(group, cells)
    )
