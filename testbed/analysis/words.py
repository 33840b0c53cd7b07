"""What is seen in the data, in sentences: every number in them is computed from the records."""

from __future__ import annotations

import re
from collections.abc import Sequence

from testbed.analysis.series import Group, rate_label
from testbed.analysis.stats import Estimate, interval_in_words


def together(text: str) -> str:
    """Return a text whose numbers keep their units on the same line."""
    return re.sub(
        r"(?<=\d) (?=%|ms\b|s\b|min\b|h\b|[kMG]?bit/s|nodes?\b)", "\N{NO-BREAK SPACE}", text
    )


def number(value: float) -> str:
    """Return two or three digits that count: 0.41, 2.1, 17.9, 1240."""
    if value == 0:
        return "0"
    size = abs(value)
    if size >= 100:
        return f"{value:.0f}"
    if size >= 10:
        return f"{value:.1f}"
    return f"{value:.2g}" if size < 0.1 else f"{value:.2f}"


def seconds(value: float) -> str:
    """Return a time as people say it: 4.1 ms, 17.9 s, 12.5 min, 3.20 h."""
    if value < 0.1:
        return f"{number(1000 * value)} ms"
    if value < 600:
        return f"{number(value)} s"
    if value < 36_000:
        return f"{number(value / 60)} min"
    return f"{number(value / 3600)} h"


def count(nodes: int) -> str:
    """Return "one node", "4 nodes"."""
    return "one node" if nodes == 1 else f"{nodes} nodes"


def with_interval(found: Estimate) -> str:
    """Return ``3.4 s (3.3 to 3.6)``: median and interval."""
    if found.low is None or found.high is None:
        return f"{seconds(found.median)} (one trial)"
    return f"{seconds(found.median)} ({number(found.low)} to {seconds(found.high)})"


def listed(parts: Sequence[str]) -> str:
    """Return ``a``, ``a and b``, ``a, b and c``."""
    if len(parts) < 2:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def against_one(group: Group, nodes: int, rate_bps: int | None) -> str:
    """Return how a setup compares with one node, as far as the trials allow to say."""
    one, many = group.time(1), group.time(nodes, rate_bps)
    ratio = group.relative_time(nodes, rate_bps)
    if one is None or many is None or ratio is None:
        return ""
    subject, other, verb = count(nodes), "one", "take"
    if group.scaling == "weak":
        step_one, step_many = group.step(1), group.step(nodes, rate_bps)
        if step_one is None or step_many is None:
            return ""
        one, many = step_one, step_many
        subject = f"a step of {count(nodes)}, with {nodes} times the work,"
        other, verb = "one node's", "takes"
    times = f"({seconds(many.median)} against {seconds(one.median)})"
    verdict = many.below(one)
    if verdict == "no difference shown":
        return f"{subject} {verb} as long as {other} within the intervals {times}"
    told = f"{subject} {verb} {number(ratio.median)} times as long as {other} {times}"
    if verdict == "too few trials":
        return f"{told}, from too few trials to call it a difference"
    return told


def extremes(group: Group) -> list[int | None]:
    """Return the slowest and the fastest rate: enough to say what the rate does."""
    rates = group.rates
    return rates if len(rates) < 2 else [rates[0], rates[-1]]


def at_rate(rate_bps: int | None) -> str:
    """Return "at 10 Mbit/s", "with unlimited links"."""
    return "with unlimited links" if rate_bps is None else f"at {rate_label(rate_bps)}"


def capital(text: str) -> str:
    """Return the text with its first letter large, the rest as it is."""
    return text[:1].upper() + text[1:]


def setting(group: Group) -> str:
    """Return in which mode and with what this was measured, as one sentence."""
    has = group.conditions
    where = [f"{group.mode} mode"]
    if "backend" in has:
        where.append(f"{has['backend']} backend")
    if "cores per node" in has:
        where.append(f"{has['cores per node']} core per node")
    elif group.shares_host:
        where.append("the nodes compete for the host's cores")
    what = has.get("model") if has.get("workload") != "script" else None
    work = f"{what} on {has.get('workload')}" if what else has.get("workload", "")
    batch = [f"{name} {has[name]}" for name in ("global batch", "batch per node") if name in has]
    parts = [*where, work, f"{group.scaling} scaling", *batch]
    if "steps" in has:
        parts.append(f"{has['steps']} steps")
    return capital(", ".join(part for part in parts if part)) + "."


def trials(found: Sequence[Estimate]) -> str:
    """Return what points, bars and their number mean, as one sentence."""
    if not found:
        return ""
    words = interval_in_words([one.n for one in found])
    return f"Median, 95 % bootstrap interval and single trials; {words}."


def instability(named: Sequence[tuple[str, Estimate]]) -> str:
    """Return which estimates are not to be relied on, and why; empty if all are."""
    shaky = [
        f"{name} ({one.remark.removeprefix('unstable: ')})" for name, one in named if one.unstable
    ]
    if not shaky:
        return ""
    if len(shaky) > 4:
        return f"Unstable: {len(shaky)} of {len(named)} points; the report lists them."
    return f"Unstable: {listed(shaky)}."


def setup_name(nodes: int, rate_bps: int | None) -> str:
    """Return "4 nodes at 10 Mbit/s"; one node has no link."""
    return count(nodes) if nodes == 1 else f"{count(nodes)} {at_rate(rate_bps)}"


def joined(*sentences: str) -> str:
    """Return the sentences that say something, with a space between."""
    return " ".join(sentence for sentence in sentences if sentence)
