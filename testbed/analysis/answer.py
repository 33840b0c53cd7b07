"""Which setup is worth it: sentences computed from medians and intervals, and what limits them.

A difference is stated only where `Estimate.below` states one. Several groups get an answer each:
what differs in more than nodes, rate and repeat is never compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from testbed.analysis import words
from testbed.analysis.figures import drawable
from testbed.analysis.series import (
    Group,
    Record,
    accuracy,
    by_rate,
    differences,
    step_or_time,
)
from testbed.analysis.stats import (
    TRIALS_FOR_A_CLAIM,
    TRIALS_FOR_A_LOOK,
    Comparison,
    Estimate,
    estimate,
)


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What one group of trials says; ``heading`` is what sets it apart from the others, or ""."""

    heading: str
    question: str
    verdict: str
    points: tuple[str, ...]
    cautions: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class _Setup:
    """Several nodes against one. ``cost`` is the time for a fixed amount of work, in seconds."""

    nodes: int
    rate_bps: int | None
    cost: Estimate
    compared: Comparison | None  # "less" is faster than one node; None: there is no such node
    ratio: float | None  # cost over that of one node

    @property
    def name(self) -> str:
        return words.setup_name(self.nodes, self.rate_bps)


def heading_of(group: Group, among: Sequence[Group]) -> str:
    """Return in what this group differs from the others, in words; "" if it is alone."""
    return ", ".join(
        f"{name} {group.conditions.get(name, 'not recorded')}" for name in differences(among)
    )


def answers(records: Iterable[Record]) -> list[Answer]:
    """Return an answer for each group with data; [] when no trial's time may be shown."""
    worth = drawable(records)
    return [_answer(group, heading_of(group, worth)) for group in worth]


def _answer(group: Group, heading: str) -> Answer:
    one = _cost(group, 1, None)
    setups = [
        _setup(group, nodes, rate_bps, one) for nodes, rate_bps in group.setups() if nodes > 1
    ]
    found = [setup for setup in setups if setup is not None]
    return Answer(
        heading=heading,
        question="What do more nodes cost?" if group.shares_host else "Which setup is worth it?",
        verdict=_verdict(group, found, one),
        points=tuple(_points(group, found)) if one is not None else (),
        cautions=tuple(caution for caution in _cautions(group) if caution),
    )


def _cost(group: Group, nodes: int, rate_bps: int | None) -> Estimate | None:
    """Return the time for the work of one node's trial; weak: for that of one node's step."""
    found = group.over(step_or_time(group.scaling), nodes, rate_bps)
    if found is None or group.scaling != "weak":
        return found
    return estimate([value / nodes for value in found.values])


def _setup(group: Group, nodes: int, rate_bps: int | None, one: Estimate | None) -> _Setup | None:
    cost = _cost(group, nodes, rate_bps)
    if cost is None:
        return None
    relative = group.relative_time(nodes, rate_bps)
    work = nodes if group.scaling == "weak" else 1
    return _Setup(
        nodes=nodes,
        rate_bps=rate_bps,
        cost=cost,
        compared=None if one is None else cost.below(one),
        ratio=None if relative is None else relative.median / work,
    )


def _verdict(group: Group, setups: Sequence[_Setup], one: Estimate | None) -> str:
    if not setups:
        alone = group.time(1)
        took = words.with_interval(alone) if alone else "without a time"
        return f"Only one node was measured: {took}. There is nothing to compare it with."
    ordered = sorted(setups, key=lambda setup: (setup.cost.median, setup.nodes))
    if one is None:
        return (
            "One node was not measured, so whether more nodes are worth it cannot be said. "
            f"{_first(group, ordered)}."
        )
    faster = [setup for setup in ordered if setup.compared == "less"]
    if faster:
        return words.joined(_fastest(group, faster[0], ordered, one), _thrifty(group, faster))
    return _none_faster(group, ordered, one)


def _first(group: Group, ordered: Sequence[_Setup]) -> str:
    """Return which setup has the least median, and which cannot be told apart from it."""
    best = ordered[0]
    time = words.seconds(best.cost.median)
    per = " per node's share of a step" if group.scaling == "weak" else ""
    return f"{words.capital(best.name)} had the shortest median time: {time}{per}{_rivals(ordered)}"


def _rivals(ordered: Sequence[_Setup]) -> str:
    best = ordered[0]
    told = ""
    for compared, kept in (
        ("no difference shown", "cannot be told apart from it"),
        ("too few trials", "cannot be ranked against it, with too few trials"),
    ):
        equal = [one.name for one in ordered[1:] if best.cost.below(one.cost) == compared]
        if equal:
            named = words.listed(equal) if len(equal) < 4 else f"{len(equal)} other setups"
            told += f"; {named} {kept}"
    return told


def _fastest(group: Group, best: _Setup, ordered: Sequence[_Setup], one: Estimate) -> str:
    rivals = _rivals(ordered)
    least = "had the shortest median time" if rivals else "trained fastest"
    took = f"{words.seconds(best.cost.median)} against {words.seconds(one.median)} on one node"
    if group.scaling == "weak":
        least = "did the most work per second" if not rivals else "had the most work per second"
        took = (
            f"{words.seconds(best.cost.median)} for the work of one node's step, which alone takes "
            f"{words.seconds(one.median)}"
        )
    gained = group.speedup(best.nodes, best.rate_bps)
    efficient = group.efficiency(best.nodes, best.rate_bps)
    told = f", {words.number(best.ratio)} times as long" if best.ratio is not None else ""
    if gained is not None and efficient is not None:
        cores = group.conditions.get("cores per node")
        over = f"one emulated {cores}-core node" if cores else "one node"
        told = (
            f": a speed-up of {words.number(gained.median)}{_range(gained)} over {over}, at "
            f"{100 * efficient.median:.0f} % efficiency"
        )
    return f"{words.capital(best.name)} {least}, {took}{told}{rivals}."


def _range(found: Estimate) -> str:
    if found.low is None or found.high is None:
        return ""
    return f" ({words.number(found.low)} to {words.number(found.high)})"


def _thrifty(group: Group, faster: Sequence[_Setup]) -> str:
    """Return which of the faster setups makes more of its nodes than the fastest does."""
    most = group.efficiency(faster[0].nodes, faster[0].rate_bps)
    if most is None:
        return ""
    better = []
    for setup in faster[1:]:
        own = group.efficiency(setup.nodes, setup.rate_bps)
        if own is not None and setup.nodes < faster[0].nodes and own.below(most) == "more":
            better.append((own.median, setup))
    if not better:
        return ""
    efficiency, setup = max(better, key=lambda one: one[0])
    gained = group.speedup(setup.nodes, setup.rate_bps)
    also = f" with a speed-up of {words.number(gained.median)}" if gained else ""
    return (
        f"{words.capital(setup.name)} make more of each node: {100 * efficiency:.0f} % "
        f"efficiency{also}."
    )


def _none_faster(group: Group, ordered: Sequence[_Setup], one: Estimate) -> str:
    best = ordered[0]
    against = f"({words.seconds(best.cost.median)} against {words.seconds(one.median)})"
    if group.scaling == "weak":
        against = f"{against[:-1]} for the same work)"
    factor = "" if best.ratio is None else f" took {words.number(best.ratio)} times as long"
    if all(setup.compared == "more" for setup in ordered):
        which = "the setup" if len(ordered) == 1 else "the closest to it"
        return f"No setup was faster than one node; {which}, {best.name},{factor} {against}."
    if all(setup.compared == "too few trials" for setup in ordered):
        return (
            f"Too few trials to say whether any setup is faster than one node: it takes at least "
            f"{TRIALS_FOR_A_LOOK} of each. So far {best.name}{factor} as one node {against}."
        )
    same = [setup.name for setup in ordered if setup.compared == "no difference shown"]
    equal = f"{words.listed(same)} cannot be told apart from it" if len(same) < 4 else ""
    equal = equal or f"{len(same)} setups cannot be told apart from it"
    return f"No setup was shown to be faster than one node; {equal if same else best.name}."


def _points(group: Group, setups: Sequence[_Setup]) -> Iterable[str]:
    """Yield, for each number of nodes, at which rates it is faster than one and where not."""
    for nodes in sorted({setup.nodes for setup in setups}):
        own = sorted(
            (setup for setup in setups if setup.nodes == nodes),
            key=lambda setup: by_rate(setup.rate_bps),
        )
        parts = []
        for compared, told in (
            ("less", "faster than one node"),
            ("no difference shown", "not told apart from one node"),
            ("more", "slower than one node"),
            ("too few trials", "too few trials to compare"),
        ):
            alike = [setup for setup in own if setup.compared == compared]
            if alike:
                where = words.listed([_where(group, setup) for setup in alike])
                parts.append(f"{told} {where}")
        yield f"{words.capital(words.count(nodes))}: {'; '.join(parts)}."


def _where(group: Group, setup: _Setup) -> str:
    place = words.at_rate(setup.rate_bps)
    if setup.ratio is None:
        return place
    gained = group.speedup(setup.nodes, setup.rate_bps)
    if setup.compared == "less" and gained is not None:
        return f"{place} (speed-up {words.number(gained.median)})"
    for_what = " for the same work" if group.scaling == "weak" else ""
    return f"{place} ({words.number(setup.ratio)} times as long{for_what})"


def _cautions(group: Group) -> Iterable[str]:
    """Yield what a reader must know before relying on the answer."""
    if group.shares_host:
        yield (
            "The nodes competed for the cores of one host (mode shared): these times show overhead "
            "only, and say nothing about separate machines."
        )
    if group.conditions.get("workload") == "script":
        yield (
            "The work is a script of the user's own: whether several nodes share the work of one, "
            "or each do all of it, is up to the script."
        )
    elif group.scaling == "weak":
        yield (
            "Weak scaling: each node keeps its share of the batch, so N nodes do N times the work "
            "in a step. Work per second is compared; look at the accuracy too."
        )
    named = [
        (words.setup_name(*setup), found)
        for setup in group.setups()
        if (found := _of(group, setup))
    ]
    fewest = min((found.n for _, found in named), default=0)
    if fewest < TRIALS_FOR_A_CLAIM:
        worth = "enough for a look" if fewest >= TRIALS_FOR_A_LOOK else "too few to compare"
        trials = "1 trial" if fewest == 1 else f"{fewest} trials"
        all_alike = all(found.n == fewest for _, found in named)
        least = f"{trials} of each setup" if all_alike else f"Some setups have only {trials}"
        yield (
            f"{least}: {worth}. A claim takes {TRIALS_FOR_A_CLAIM}; add repeats, and the finished "
            "trials are kept."
        )
    yield words.instability(named).replace("the report lists them", "see the table of setups")
    yield _accuracies(group)


def _of(group: Group, setup: tuple[int, int | None]) -> Estimate | None:
    return _cost(group, *setup)


def _accuracies(group: Group) -> str:
    """Return whether time was bought with accuracy."""
    found = {setup: group.over(accuracy, *setup) for setup in group.setups()}
    known = {setup: one for setup, one in found.items() if one is not None}
    if len(known) < 2:
        return ""
    medians = [one.median for one in known.values()]
    told = f"Accuracy at the end: {min(medians):.3f} to {max(medians):.3f} (medians of the setups)."
    base = known.get((1, None))
    if base is None:
        return told
    worse = [words.setup_name(*at) for at, one in known.items() if one.below(base) == "less"]
    better = [words.setup_name(*at) for at, one in known.items() if one.below(base) == "more"]
    return words.joined(
        told,
        f"Lower than with one node: {words.listed(worse)}." if worse else "",
        f"Higher than with one node: {words.listed(better)}." if better else "",
    )
