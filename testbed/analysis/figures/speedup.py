"""What more nodes are worth: speed-up and efficiency, or relative time where nodes share a host."""

from __future__ import annotations

from collections.abc import Callable

from matplotlib.axes import Axes

from testbed.analysis import words
from testbed.analysis.figures import drawing
from testbed.analysis.series import Group, rate_label
from testbed.analysis.stats import Estimate

Cells = dict[tuple[int, int | None], Estimate]
NOTHING = "Not drawn: it needs trials of one node and of several, from the same repeats."


def against_nodes(group: Group) -> drawing.Drawn | str:
    """Draw speed-up and efficiency over nodes, a line per rate, each with its ideal line."""
    gained = _cells(group, group.speedup)
    if not gained:
        return NOTHING
    efficient = _cells(group, group.efficiency)
    page = drawing.canvas(drawing.DOUBLE_MM, 66)
    left, right = page.subplots(1, 2)
    most = max(nodes for nodes, _ in gained)
    _lines(left, group, gained, start=1.0)
    # Both axes linear or both logarithmic: the ideal stays a straight line.
    left.plot([1, most], [1, most], color=drawing.GREY, linestyle=(0, (1, 1.5)), linewidth=0.9)
    log = drawing.doubling([most])
    drawing.value_axis(left, [*_extent(gained), 1.0, float(most)], log=log)
    left.set_ylabel("Speed-up over one node")
    _lines(right, group, efficient, start=1.0)
    right.axhline(1, color=drawing.GREY, linestyle=(0, (1, 1.5)), linewidth=0.9)
    drawing.value_axis(right, [*_extent(efficient), 1.0], log=False)
    right.set_ylabel("Efficiency (speed-up per node)")
    drawing.name_lines(left, [*_names(group, gained), _ideal(most, float(most))])
    drawing.name_lines(right, [*_names(group, efficient), _ideal(most, 1.0)])
    return drawing.Drawn(page, _caption(group, gained))


def relative_time(group: Group) -> drawing.Drawn | str:
    """Draw T_N / T_1 over nodes: what sharing one host costs, never called a speed-up."""
    found = _cells(group, group.relative_time)
    if not found:
        return NOTHING
    page = drawing.canvas(drawing.SINGLE_MM, 66)
    axes = page.subplots()
    _lines(axes, group, found, start=1.0)
    axes.axhline(1, color=drawing.BLACK, linestyle=(0, (4, 2)), linewidth=0.9)
    drawing.value_axis(axes, [*_extent(found), 1.0])
    axes.set_ylabel("Training time relative to one node")
    most = max(nodes for nodes, _ in found)
    one = drawing.LineName(x=most, y=1.0, text="one node", colour=drawing.BLACK, line=(0, (4, 2)))
    drawing.name_lines(axes, [*_names(group, found), one])
    seen = [
        f"{words.at_rate(rate_bps)} {told}"
        for rate_bps in words.extremes(group)
        if (told := words.against_one(group, _most(found, rate_bps), rate_bps))
    ]
    return drawing.Drawn(
        page,
        words.joined(
            f"Training time relative to one node. {words.capital('; '.join(seen))}.",
            "All nodes compete for the cores of one host, so this is what dividing the work costs "
            "there, not what nodes with processors of their own would gain.",
            words.trials(list(found.values())),
            words.setting(group),
        ),
    )


def _cells(group: Group, measure: Callable[[int, int | None], Estimate | None]) -> Cells:
    return {
        setup: found
        for setup in group.setups()
        if setup[0] > 1 and (found := measure(*setup)) is not None
    }


def _lines(axes: Axes, group: Group, cells: Cells, *, start: float) -> None:
    nodes = sorted({1, *(count for count, _ in cells)})
    drawing.node_axis(axes, nodes)
    for index, rate_bps in enumerate(group.rates):
        own = [(count, cells[count, rate_bps]) for count in nodes if (count, rate_bps) in cells]
        if not own:
            continue
        colour, marker, line = drawing.look(index)
        axes.plot(
            [1, *(count for count, _ in own)],
            [start, *(found.median for _, found in own)],
            line,
            color=colour,
            zorder=2,
        )
        for count, found in own:
            drawing.points(axes, count, found, colour, marker)


def _names(group: Group, cells: Cells) -> list[drawing.LineName]:
    names = []
    for index, rate_bps in enumerate(group.rates):
        counts = [count for count, rate in cells if rate == rate_bps]
        if counts:
            colour, marker, line = drawing.look(index)
            names.append(
                drawing.LineName(
                    x=max(counts),
                    y=cells[max(counts), rate_bps].median,
                    text=rate_label(rate_bps),
                    colour=colour,
                    marker=marker,
                    line=line,
                )
            )
    return names


def _ideal(x: float, y: float) -> drawing.LineName:
    return drawing.LineName(x=x, y=y, text="ideal", colour=drawing.GREY, marker="", line=":")


def _extent(cells: Cells) -> list[float]:
    return [value for found in cells.values() for value in found.values]


def _most(cells: Cells, rate_bps: int | None) -> int:
    return max(count for count, rate in cells if rate == rate_bps)


def _caption(group: Group, gained: Cells) -> str:
    seen = []
    for rate_bps in words.extremes(group):
        most = _most(gained, rate_bps)
        found = gained[most, rate_bps]
        seen.append(
            f"{words.at_rate(rate_bps)} {words.count(most)} reach a speed-up of "
            f"{words.number(found.median)} (efficiency {words.number(found.median / most)})"
        )
    over = "one emulated node"
    if "cores per node" in group.conditions:
        over = f"one emulated {group.conditions['cores per node']}-core node"
    what = "Work done per second" if group.scaling == "weak" else "Training speed"
    return words.joined(
        f"{what} relative to {over}, and that per node. {words.capital('; '.join(seen))}.",
        "Below 1, more nodes are slower than one. Ratios are taken within each repeat.",
        "N nodes do N times the work in a step; the report shows the accuracy they reach with it."
        if group.scaling == "weak"
        else "",
        words.trials(list(gained.values())),
        _instability(gained),
        words.setting(group),
    )


def _instability(gained: Cells) -> str:
    """Return which ratios are not to be relied on; the report's table has those of times."""
    named = [(words.setup_name(*setup), one) for setup, one in gained.items()]
    return words.instability(named).replace("; the report lists them", "")
