"""Requested against verified rate: the goodput of every link that was measured."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from testbed.analysis import words
from testbed.analysis.figures import drawing
from testbed.analysis.series import Group, Record, rate_label, value_at
from testbed.analysis.stats import estimate
from testbed.bounds import expected_goodput_bps

TESTS = (("pair", "links alone (pairs)", 0), ("ring", "all links at once (ring)", 1))
CROWD = 100  # measurements of one kind at one rate, from which they are drawn fainter
Measured = dict[tuple[str, int], list[dict[str, Any]]]  # by test and rate


def requested_and_verified(group: Group) -> drawing.Drawn | str:
    """Draw goodput over requested rate, and beside it the deviation with its tolerance."""
    found = _measured(group.timed)
    rates = sorted({rate_bps for _, rate_bps in found})
    if not rates:
        return "Not drawn: no link with a rate was measured."
    page = drawing.canvas(drawing.DOUBLE_MM, 68)
    left, right = page.subplots(1, 2)
    low, high = min(rates) / 1e6, max(rates) / 1e6
    span = [low / 1.6, high * 1.6]
    left.plot(span, [expected_goodput_bps(rate) for rate in span], color=drawing.GREY, lw=0.9)
    for test, label, look in TESTS:
        colour, marker, _ = drawing.look(look)
        own = [
            (rate, link)
            for (kind, rate), links in sorted(found.items())
            for link in links
            if kind == test
        ]
        left.plot(
            [rate / 1e6 for rate, _ in own],
            [link["measured_bps"] / 1e6 for _, link in own],
            linestyle="none",
            marker=marker,
            markersize=3,
            markerfacecolor="none",
            markeredgecolor=colour,
            markeredgewidth=0.6,
            label=label,
        )
    left.set_xscale("log")
    left.set_yscale("log")
    left.set_xlim(*span)
    ticks = [*span]
    left.set_ylim(ticks[0] * 0.9, ticks[1])
    left.xaxis.set_major_locator(FixedLocator([rate / 1e6 for rate in rates]))
    left.xaxis.set_minor_locator(NullLocator())
    left.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    drawing.plain_log_ticks(left, "y", *span)
    left.set_xlabel("Requested rate (Mbit/s)")
    left.set_ylabel("Verified goodput (Mbit/s)")
    middle = (span[0] * span[1]) ** 0.5
    left.annotate(
        "0.9564 of the rate",
        xy=(middle, expected_goodput_bps(middle)),
        xytext=(8, -6),
        textcoords="offset points",
        ha="left",
        va="top",
        fontsize=7.5,
        color=drawing.GREY,
    )
    _deviations(right, found, rates)
    page.legend(
        *left.get_legend_handles_labels(), loc="outside upper center", ncols=2, handletextpad=0.4
    )
    return drawing.Drawn(page, _caption(group, found))


def _measured(records: Iterable[Record]) -> Measured:
    """Return the last measurement of every flow of every gate: what the verdict was made from."""
    found: Measured = defaultdict(list)
    for record in records:
        rate_bps = record.get("rate_bps")
        last: dict[tuple[str, ...], dict[str, Any]] = {}
        for link in record.get("verdict", {}).get("links", ()):
            key = (link["when"], link["test"], link["sender"], link["receiver"])
            last[key] = link
        for link in last.values():
            if rate_bps is not None and "measured_bps" in link and "deviation" in link:
                found[link["test"], rate_bps].append(link)
    return dict(found)


def _deviations(axes: Axes, found: Measured, rates: list[int]) -> None:
    """Draw every deviation in per cent, by rate, in the band of its tolerance."""
    axes.axhline(0, color=drawing.GREY, linewidth=0.9)
    for place, rate_bps in enumerate(rates):
        for test, _, look in TESTS:
            links = found.get((test, rate_bps), [])
            if not links:
                continue
            colour, marker, _ = drawing.look(look)
            at = place + (-0.2 if look == 0 else 0.2)
            below, above = links[0]["tolerance"]
            axes.fill_between(
                [at - 0.16, at + 0.16],
                [100 * below] * 2,
                [100 * above] * 2,
                color=drawing.BAND,
                alpha=0.55,
                linewidth=0,
                zorder=0.5,
            )
            # Spread sideways in the order of measurement, so that equal values stay visible.
            step = 0.24 / max(1, len(links) - 1)
            axes.plot(
                [at - 0.12 + step * index for index in range(len(links))],
                [100 * link["deviation"] for link in links],
                linestyle="none",
                marker=marker,
                markersize=2.6,
                markerfacecolor="none",
                markeredgecolor=colour,
                markeredgewidth=0.5 if len(links) < CROWD else 0.25,
                alpha=1.0 if len(links) < CROWD else 0.6,
            )
    axes.set_xticks(range(len(rates)), [rate_label(rate) for rate in rates])
    axes.tick_params(axis="x", length=0)
    axes.set_xlim(-0.5, len(rates) - 0.5)
    axes.set_xlabel("Requested rate")
    axes.set_ylabel("Deviation from expected goodput (%)")


def _caption(group: Group, found: Measured) -> str:
    seen = []
    for test, label, _ in TESTS:
        links = [link for (kind, _), own in found.items() if kind == test for link in own]
        if not links:
            continue
        deviation = estimate([100 * link["deviation"] for link in links])
        seen.append(
            f"{label}: median {deviation.median:+.1f} %, from {min(deviation.values):+.1f} to "
            f"{max(deviation.values):+.1f} % (n = {deviation.n})"
        )
    datapath = group.conditions.get("datapath")
    over = f" over {group.conditions.get('switch', 'a switch')}" + (
        f" ({datapath})" if datapath and datapath != "bridge" else ""
    )
    failed = sum(value_at(record, "verdict.status") == "fail" for record in group.records)
    invalid = {0: "none was", 1: "one was"}.get(failed, f"{failed} were")
    return words.joined(
        f"TCP goodput at the receiver of every link{over}, before and after each trial, against "
        f"what the requested rate allows. {words.capital('; '.join(seen))}.",
        f"Grey bands are the tolerances; a trial with a link outside is invalid and in no figure "
        f"({invalid}). In the ring, acknowledgements share each link.",
        _unlimited(group.timed),
        words.setting(group),
    )


def _unlimited(records: Iterable[Record]) -> str:
    """Return what links without a queue were measured at: recorded, and not gated."""
    found = [
        link["measured_bps"] / 1e6
        for record in records
        if record["nodes"] > 1 and record.get("rate_bps") is None
        for link in value_at(record, "verdict.links") or ()
        if "measured_bps" in link
    ]
    if not found:
        return ""
    return f"Unlimited links (not gated) measured {words.number(estimate(found).median)} Mbit/s."
