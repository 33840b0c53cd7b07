"""The report's tables: rows of text computed from the records."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from testbed.analysis import words
from testbed.analysis.series import (
    Group,
    Record,
    accuracy,
    by_rate,
    is_timed,
    rate_label,
    step_time_s,
    train_time_s,
    value_at,
)
from testbed.analysis.stats import Estimate
from testbed.bounds import allreduce_lower_bound_s, expected_goodput_bps
from testbed.units import format_delay, format_loss

NOTHING = "\N{EN DASH}"  # not measured, or without meaning for this row

PHASES = (  # in the order in which they happen
    *("provision", "shape", "verify_before", "connect", "push", "start"),
    *("evaluate", "verify_after", "collect", "teardown"),
)
MACHINE = {
    "cpu_model": "CPU",
    "host_cores": "Cores",
    "memory_bytes": "Memory",
    "architecture": "Architecture",
    "virtualisation": "Virtualisation",
    "distribution": "Distribution",
    "kernel": "Kernel",
    "testbed": "Testbed",
    "git_commit": "Git commit",
    "python": "Python",
    "tensorflow": "TensorFlow",
    "keras": "Keras",
    "ovs": "Open vSwitch",
    "lxc": "LXC",
    "iproute2": "iproute2",
    "iperf3": "iperf3",
}
STATUS_WORDS = {
    "ok": "ok",
    "failed": "failed",
    "invalid": "invalid",
    "non_converged": "did not converge",
}
VERDICT_WORDS = {
    "pass": "verified",
    "fail": "not as ordered",
    "not_applicable": "no link",
    "not_gated": "unlimited, not gated",
}


class Cell(NamedTuple):
    """What stands in a table: a text, and below it, smaller, what qualifies it."""

    text: str
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Table:
    """Columns with their explanation, and rows; the first ``texts`` columns are not numbers."""

    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[Cell, ...], ...]
    texts: int = 0


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attempt at a trial as a row, with why it is no data."""

    status: str
    status_words: str
    cells: tuple[Cell, ...]
    reasons: tuple[str, ...]
    name: str  # ID-aN, of its record and of its logs' folder


def estimated(found: Estimate | None, write: Callable[[float], str]) -> Cell:
    """Return a median with its interval below it."""
    if found is None:
        return Cell(NOTHING)
    if found.low is None or found.high is None:
        return Cell(write(found.median), "one trial")
    low, high = write(found.low), write(found.high)
    number, _, unit = low.partition(" ")
    low = number if unit and high.endswith(f" {unit}") else low  # 6.15 to 6.39 s
    return Cell(write(found.median), f"{low} to {high}")


def step_time(value: float) -> str:
    """Return a step's time with three digits, in ms below a second: steps are compared closely."""
    return f"{1000 * value:.3g} ms" if value < 0.9995 else words.seconds(value)


def percent(value: float) -> str:
    """Return a share as per cent, whole."""
    return f"{100 * value:.0f} %"


def signed_percent(value: float) -> str:
    """Return a deviation as per cent with its sign."""
    return f"{100 * value:+.1f} %"


def shown_rate(nodes: int, rate_bps: int | None) -> str:
    """Return a setup's rate; one node has no link."""
    return "no link" if nodes == 1 else rate_label(rate_bps)


def setups(group: Group) -> Table:
    """Return medians and intervals of every setup, with what they are worth."""
    relative = (
        (("Relative time", "one node is 1"),)
        if group.shares_host
        else (
            ("Speed-up", "over one"),
            ("Efficiency", "per node"),
        )
    )
    columns = (
        ("Nodes", ""),
        ("Rate", ""),
        ("Trials", ""),
        ("Training time", ""),
        *relative,
        ("Accuracy", "at the end"),
        ("Step", ""),
        ("Bound", "of a step"),
        ("Step / bound", ""),
        ("Unstable", ""),
    )
    rows = tuple(_setup(group, nodes, rate_bps) for nodes, rate_bps in group.setups())
    if not any(row[-1].text for row in rows):
        columns, rows = columns[:-1], tuple(row[:-1] for row in rows)
    return Table(columns=columns, rows=rows)


def _setup(group: Group, nodes: int, rate_bps: int | None) -> tuple[Cell, ...]:
    time = group.time(nodes, rate_bps)
    step = group.step(nodes, rate_bps)
    bound_s = step_bound_s(group, nodes, rate_bps)
    one = nodes == 1
    if group.shares_host:
        ratio = None if one else group.relative_time(nodes, rate_bps)
        relative = [Cell("1") if one else estimated(ratio, words.number)]
    else:
        gained = None if one else group.speedup(nodes, rate_bps)
        efficient = None if one else group.efficiency(nodes, rate_bps)
        relative = [
            Cell("1") if one else estimated(gained, words.number),
            Cell("100 %") if one else estimated(efficient, percent),
        ]
    over = step.median / bound_s if step is not None and bound_s else None
    return (
        Cell(str(nodes)),
        Cell(shown_rate(nodes, rate_bps)),
        Cell(str(time.n if time else 0)),
        estimated(time, words.seconds),
        *relative,
        estimated(group.over(accuracy, nodes, rate_bps), "{:.3f}".format),
        estimated(step, step_time),
        Cell(step_time(bound_s) if bound_s else NOTHING),
        Cell(f"{over:.2f}" if over else NOTHING),
        Cell(time.remark.removeprefix("unstable: ") if time else ""),
    )


def step_bound_s(group: Group, nodes: int, rate_bps: int | None) -> float | None:
    """Return one node's share of computation plus the least exchange; None where it is unknown.

    The same bound as in the figure of step times (docs/method.md, Bounds).
    """
    one = group.step(1)
    gradients = {value_at(record, "work.gradient_bytes") for record in group.timed} - {None}
    if one is None or nodes == 1 or rate_bps is None or len(gradients) != 1:
        return None
    compute_s = one.median if group.scaling == "weak" else one.median / nodes
    goodput_bps = expected_goodput_bps(rate_bps)
    return compute_s + allreduce_lower_bound_s(next(iter(gradients)), nodes, goodput_bps)


AXES: tuple[tuple[str, Callable[[Record], Any]], ...] = (
    ("Mode", lambda record: record.get("mode")),
    ("Workload", lambda record: record.get("workload")),
    ("Model", lambda record: record.get("model")),
    ("Strategy", lambda record: record.get("strategy")),
    ("Batch", lambda record: record.get("global_batch_size")),
    ("Delay", lambda record: _imposed(record, "delay_us", format_delay)),
    ("Loss", lambda record: _imposed(record, "loss", format_loss)),
    ("Backend", lambda record: record.get("backend")),
)


def _imposed(record: Record, key: str, write: Callable[[Any], str]) -> str | None:
    """Return a delay or loss in words; one node has neither, so that it adds no column."""
    if record["nodes"] == 1:
        return None
    found = value_at(record, f"network.{key}")
    return write(found if found is not None else value_at(record, f"trial.{key}") or 0)


def attempts(records: Iterable[Record]) -> tuple[tuple[tuple[str, str], ...], list[Attempt]]:
    """Return the columns, and every attempt at every trial: also what is no data."""
    ordered = sorted(records, key=_place)
    varied = [
        (name, read)
        for name, read in AXES
        if len({read(record) for record in ordered} - {None}) > 1
    ]
    columns = (
        ("Status", ""),
        ("Nodes", ""),
        ("Rate", ""),
        *((name, "") for name, _ in varied),
        ("Repeat", ""),
        ("Seed", ""),
        ("Training time", ""),
        ("Step", "median"),
        ("Accuracy", ""),
        ("Links", ""),
        ("Record", "trial and attempt"),
        ("Logs", ""),
    )
    return columns, [_attempt(record, varied) for record in ordered]


def _place(record: Record) -> tuple[int, float, int, str, int]:
    return (
        int(record["nodes"]),
        by_rate(record.get("rate_bps")) if record["nodes"] > 1 else 0.0,
        int(record.get("repeat", 0)),
        str(record["trial_id"]),
        int(record["attempt"]),
    )


def _attempt(record: Record, varied: Sequence[tuple[str, Callable[[Record], Any]]]) -> Attempt:
    nodes, status = record["nodes"], str(record["status"])
    time, step, accurate = train_time_s(record), step_time_s(record), accuracy(record)
    verdict = value_at(record, "verdict.status")
    others = (read(record) for _, read in varied)
    return Attempt(
        status=status,
        status_words=STATUS_WORDS.get(status, status),
        cells=(
            Cell(str(nodes)),
            Cell(shown_rate(nodes, record.get("rate_bps"))),
            *(Cell(NOTHING if value is None else str(value)) for value in others),
            Cell(str(record.get("repeat", NOTHING))),
            Cell(str(record.get("seed", NOTHING))),
            Cell(words.seconds(time) if time is not None else NOTHING),
            Cell(step_time(step) if step is not None else NOTHING),
            Cell(f"{accurate:.3f}" if accurate is not None else NOTHING),
            Cell(VERDICT_WORDS.get(verdict, verdict) if verdict else "not measured"),
        ),
        reasons=tuple(str(reason) for reason in record.get("reasons", ())),
        name=f"{record['trial_id']}-a{record['attempt']}",
    )


def links(records: Iterable[Record]) -> Table:
    """Return what was measured on the links of the trials that are shown, by rate and test."""
    found: dict[tuple[float, str], list[Mapping[str, Any]]] = {}
    rates: dict[float, int | None] = {}
    for record in records:
        if not is_timed(record):
            continue
        rate_bps = record.get("rate_bps")
        rates[by_rate(rate_bps)] = rate_bps
        for link in _last(record):
            found.setdefault((by_rate(rate_bps), str(link["test"])), []).append(link)
    rows = tuple(
        _links(rates[order], test, [link for link in own if "measured_bps" in link])
        for (order, test), own in sorted(found.items())
    )
    return Table(
        columns=(
            ("Requested rate", ""),
            ("Test", ""),
            ("n", "measurements"),
            ("Expected goodput", "0.9564 of the rate"),
            ("Measured goodput", "median"),
            ("Deviation", "median"),
            ("Range", "of the deviations"),
            ("Tolerance", ""),
        ),
        rows=tuple(row for row in rows if row),
        texts=2,
    )


def _last(record: Record) -> list[Mapping[str, Any]]:
    """Return the last measurement of every flow at every gate: what the verdict is made from."""
    last: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for link in value_at(record, "verdict.links") or ():
        last[tuple(link.get(key) for key in ("when", "test", "sender", "receiver"))] = link
    return list(last.values())


def _links(rate_bps: int | None, test: str, own: Sequence[Mapping[str, Any]]) -> tuple[Cell, ...]:
    if not own:
        return ()
    goodputs = [float(link["measured_bps"]) for link in own]
    deviations = [float(link["deviation"]) for link in own if "deviation" in link]
    expected = {float(link["expected_bps"]) for link in own if "expected_bps" in link}
    limits = {tuple(link["tolerance"]) for link in own if "tolerance" in link}
    return (
        Cell(rate_label(rate_bps)),
        Cell({"pair": "alone (pairs)", "ring": "all at once (ring)"}.get(test, test)),
        Cell(str(len(own))),
        Cell(_mbit(next(iter(expected))) if len(expected) == 1 else NOTHING),
        Cell(_mbit(statistics.median(goodputs))),
        Cell(signed_percent(statistics.median(deviations)) if deviations else NOTHING),
        Cell(
            f"{signed_percent(min(deviations))} to {signed_percent(max(deviations))}"
            if deviations
            else NOTHING
        ),
        Cell(
            " or ".join(f"{100 * low:+.0f} to {100 * high:+.0f} %" for low, high in sorted(limits))
            or "not gated"
        ),
    )


def _mbit(rate_bps: float) -> str:
    return f"{rate_bps / 1e6:.4g} Mbit/s"


def overhead(records: Iterable[Record]) -> Table:
    """Return the median seconds of each phase, by number of nodes, of the trials shown."""
    by_nodes: dict[int, list[Mapping[str, float]]] = {}
    trained: dict[int, list[float]] = {}
    for record in records:
        if is_timed(record) and record.get("overhead_s"):
            by_nodes.setdefault(int(record["nodes"]), []).append(record["overhead_s"])
            time = train_time_s(record)
            if time is not None:
                trained.setdefault(int(record["nodes"]), []).append(time)
    counts = sorted(by_nodes)
    known = {phase for own in by_nodes.values() for phases in own for phase in phases}
    ordered = [*(one for one in PHASES if one in known), *sorted(known - set(PHASES))]
    rows = []
    for phase in ordered:
        cells = [_median_s([one[phase] for one in by_nodes[n] if phase in one]) for n in counts]
        rows.append((Cell(phase.replace("_", " ")), *cells))
    if rows:
        totals = [_median_s([sum(one.values()) for one in by_nodes[n]]) for n in counts]
        rows.append((Cell("all of it", "median of the sums"), *totals))
        times = [_median_s(trained.get(n, [])) for n in counts]
        rows.append((Cell("for comparison: training", "all rates together"), *times))
    columns = (("Phase", ""), *((words.count(n), f"n = {len(by_nodes[n])}") for n in counts))
    return Table(columns=columns, rows=tuple(rows), texts=1)


def _median_s(values: Sequence[float]) -> Cell:
    return Cell(f"{statistics.median(values):.2f} s" if values else NOTHING)


def machine(records: Sequence[Record]) -> list[tuple[str, list[tuple[str, int]]]]:
    """Return each fact of the manifests with its values and in how many attempts it had them."""
    manifests = [record["manifest"] for record in records if record.get("manifest")]
    keys = [*MACHINE, *sorted({key for one in manifests for key in one} - set(MACHINE))]
    found = []
    for key in keys:
        counted = Counter(
            _fact(key, manifest[key]) if key in manifest else "not recorded"
            for manifest in manifests
        )
        if set(counted) - {"not recorded"}:
            values = sorted(counted.items(), key=lambda one: (-one[1], one[0]))
            found.append((MACHINE.get(key, key), values))
    return found


def _fact(key: str, value: Any) -> str:
    if key == "memory_bytes":
        return f"{value / 2**30:.1f} GiB"
    return str(value)
