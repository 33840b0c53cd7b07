"""Records sorted into what may be drawn together, and nothing else.

Two records belong to one group only if they differ in nothing but the number of nodes, the rate
of the links and the repeat. One node has no link, so the trials of one node serve every kind of
link that was swept.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from testbed.analysis.stats import Estimate, estimate, ratios
from testbed.units import format_rate

Record = dict[str, Any]
Conditions = dict[str, str]  # what is held equal: a reader's name for it -> its value, in words

HASH = re.compile(r"\b[0-9a-f]{64}\b")  # told apart by its first 12 digits

DATA_VERDICTS = ("pass", "not_applicable", "not_gated")

# What must be equal before two times may be compared: (a reader's name, where the record has it).
WORK = (
    ("mode", "mode"),
    ("backend", "backend"),
    ("workload", "workload"),
    ("script", "script"),
    ("model", "model"),
    ("strategy", "strategy"),
    ("scaling", "scaling"),
    ("steps", "steps"),
    ("optimizer", "work.optimizer"),
    ("learning rate", "work.learning_rate"),
    ("data", "work.data_sha256"),
    ("cores per node", "compute.cpu_cores"),
    ("quota period", "compute.quota_period_us"),
    ("threads", "compute.threads"),
    ("CPU", "manifest.cpu_model"),
    ("host cores", "manifest.host_cores"),
    ("kernel", "manifest.kernel"),
    ("virtualisation", "manifest.virtualisation"),
    ("distribution", "manifest.distribution"),
    ("testbed", "manifest.testbed"),
    ("Python", "manifest.python"),
    ("TensorFlow", "manifest.tensorflow"),
    ("Keras", "manifest.keras"),
)
LINK = (
    ("collective", "work.collective"),
    ("delay in us", "network.delay_us"),
    ("loss", "network.loss"),
    ("switch", "network.switch"),
    ("datapath", "network.datapath"),
    ("MTU", "network.mtu"),
    ("congestion control", "network.congestion_control"),
    ("Open vSwitch", "manifest.ovs"),
)


def value_at(record: Record, path: str) -> Any:
    """Return what the record has under a dotted path, or None: absent means not measured."""
    found: Any = record
    for key in path.split("."):
        if not isinstance(found, dict) or key not in found:
            return None
        found = found[key]
    return found


def is_verified(record: Record) -> bool:
    """Whether the links were as ordered, or there was nothing to verify."""
    return value_at(record, "verdict.status") in DATA_VERDICTS


def is_data(record: Record) -> bool:
    """Whether the training time may be shown: an ok trial on links that were verified."""
    return record.get("status") == "ok" and is_verified(record) and train_time_s(record) is not None


def is_timed(record: Record) -> bool:
    """Whether its steps and links may be shown: also of a run that did not converge."""
    return record.get("status") in ("ok", "non_converged") and is_verified(record)


def train_time_s(record: Record) -> float | None:
    """Return the training time, from the barrier to the last step on the slowest node."""
    found = record.get("train_time_s")
    return float(found) if isinstance(found, int | float) and found > 0 else None


def step_time_s(record: Record) -> float | None:
    """Return the median step of one trial; the warm-up is not in it."""
    steps = record.get("step_times_s")
    return statistics.median(steps) if steps else None


def accuracy(record: Record) -> float | None:
    """Return the accuracy over the test set at the end."""
    found = record.get("final_accuracy")
    return float(found) if isinstance(found, int | float) else None


def rate_label(rate_bps: int | None) -> str:
    """Return a rate as a reader expects it: ``10 Mbit/s``, or ``unlimited``."""
    text = format_rate(rate_bps)
    for unit, shown in (("gbit", "Gbit/s"), ("mbit", "Mbit/s"), ("kbit", "kbit/s")):
        if text.endswith(unit):
            return f"{text.removesuffix(unit)} {shown}"
    return f"{text.removesuffix('bit')} bit/s" if text.endswith("bit") else text


def by_rate(rate_bps: int | None) -> float:
    """Order rates upwards, unlimited last."""
    return float("inf") if rate_bps is None else float(rate_bps)


@dataclass(frozen=True, kw_only=True)
class Group:
    """Records that differ in nothing but nodes, rate and repeat."""

    conditions: Conditions
    records: tuple[Record, ...]

    @property
    def mode(self) -> str:
        """The emulation mode, which decides what may be claimed."""
        return self.conditions.get("mode", "unknown")

    @property
    def scaling(self) -> str:
        """``strong``: the whole batch is held equal; ``weak``: each node's share of it."""
        return self.conditions.get("scaling", "strong")

    @property
    def shares_host(self) -> bool:
        """Whether the nodes compete for the host's cores: then nothing is ever a speed-up."""
        return self.mode == "shared"

    @property
    def data(self) -> tuple[Record, ...]:
        """The trials whose training time may be shown."""
        return tuple(record for record in self.records if is_data(record))

    @property
    def nodes(self) -> list[int]:
        """The numbers of nodes that have data, upwards."""
        return sorted({int(record["nodes"]) for record in self.data})

    @property
    def rates(self) -> list[int | None]:
        """The rates that have data at more than one node, upwards, unlimited last."""
        found = {record.get("rate_bps") for record in self.data if record["nodes"] > 1}
        return sorted(found, key=by_rate)

    @property
    def timed(self) -> tuple[Record, ...]:
        """The trials whose steps and links may be shown: the data and what did not converge."""
        return tuple(record for record in self.records if is_timed(record))

    def cell(self, nodes: int, rate_bps: int | None) -> list[Record]:
        """Return the data of one setup; one node has no link, so its rate does not matter."""
        return _of_setup(self.data, nodes, rate_bps)

    def over(
        self, measure: Callable[[Record], float | None], nodes: int, rate_bps: int | None = None
    ) -> Estimate | None:
        """Return the estimate of a measure for one setup, or None if no trial has it."""
        return _over(measure, self.cell(nodes, rate_bps))

    def time(self, nodes: int, rate_bps: int | None = None) -> Estimate | None:
        """Return the training time in seconds of one setup."""
        return self.over(train_time_s, nodes, rate_bps)

    def step(self, nodes: int, rate_bps: int | None = None) -> Estimate | None:
        """Return the step time in seconds of one setup, also of runs that did not converge."""
        return _over(step_time_s, _of_setup(self.timed, nodes, rate_bps))

    def relative_time(self, nodes: int, rate_bps: int | None) -> Estimate | None:
        """Return T_N / T_1, a ratio per repeat, so that what ails a repeat cancels out.

        Under weak scaling the ratio is of step times: N nodes do N times the work.
        """
        measure = step_or_time(self.scaling)
        found = ratios(
            _by_repeat(self.cell(nodes, rate_bps), measure), _by_repeat(self.cell(1, None), measure)
        )
        return estimate(found) if found else None

    def speedup(self, nodes: int, rate_bps: int | None) -> Estimate | None:
        """Return the work done per second over that of one node: T_1 / T_N, weak N T_1 / T_N.

        None in ``shared`` mode: there the word has no meaning.
        """
        relative = None if self.shares_host else self.relative_time(nodes, rate_bps)
        if relative is None:
            return None
        work = nodes if self.scaling == "weak" else 1
        return estimate([work / value for value in relative.values])

    def efficiency(self, nodes: int, rate_bps: int | None) -> Estimate | None:
        """Return the speed-up per node, 1 at best."""
        gained = self.speedup(nodes, rate_bps)
        return estimate([value / nodes for value in gained.values]) if gained else None

    def setups(self) -> list[tuple[int, int | None]]:
        """Return every (nodes, rate) with data, one node first."""
        found = {
            (int(record["nodes"]), record.get("rate_bps") if record["nodes"] > 1 else None)
            for record in self.data
        }
        return sorted(found, key=lambda setup: (setup[0], by_rate(setup[1])))


def _of_setup(records: Iterable[Record], nodes: int, rate_bps: int | None) -> list[Record]:
    return [
        record
        for record in records
        if record["nodes"] == nodes and (nodes == 1 or record.get("rate_bps") == rate_bps)
    ]


def _over(measure: Callable[[Record], float | None], records: Iterable[Record]) -> Estimate | None:
    found = [measure(record) for record in records]
    values = [value for value in found if value is not None]
    return estimate(values) if values else None


def step_or_time(scaling: str) -> Callable[[Record], float | None]:
    """Return the measure that scaling compares: the step where the work grows with the nodes."""
    return step_time_s if scaling == "weak" else train_time_s


def _by_repeat(
    records: Sequence[Record], measure: Callable[[Record], float | None]
) -> dict[object, float]:
    found = {}
    for record in records:
        value = measure(record)
        if value is not None:
            found[record.get("repeat", record.get("seed"))] = value
    return found


def _conditions(record: Record, table: Sequence[tuple[str, str]]) -> Conditions:
    """Return what of the table the record has, each value as one line of text."""
    found = {}
    for name, path in table:
        value = value_at(record, path)
        if value is not None:
            text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
            found[name] = HASH.sub(lambda match: match[0][:12], text)
    return found


def _work(record: Record) -> Conditions:
    found = _conditions(record, WORK)
    found.setdefault("scaling", "strong")
    if found["scaling"] == "weak":
        batch, size = "batch per node", record.get("per_replica_batch_size")
    else:
        batch, size = "global batch", record.get("global_batch_size")
    if size is not None:
        found[batch] = str(size)
    return found


def groups(records: Iterable[Record]) -> list[Group]:
    """Return the records sorted into groups that may be drawn together, in a stable order.

    Every record is in a group, also the failed and the invalid: `Group.data` leaves them out.
    """
    by_work: dict[str, list[Record]] = {}
    for record in sorted(records, key=_identity):
        by_work.setdefault(json.dumps(_work(record), sort_keys=True), []).append(record)
    found = []
    for _, members in sorted(by_work.items()):
        alone = [record for record in members if record["nodes"] == 1]
        for link, linked in _by_link(members):
            conditions = {**_work(members[0]), **link}
            found.append(Group(conditions=conditions, records=(*alone, *linked)))
    return found


def _by_link(members: Iterable[Record]) -> list[tuple[Conditions, list[Record]]]:
    """Return the trials of several nodes by kind of link; what was never shaped goes with any.

    A trial that failed early knows nothing of its links: alone it is no kind of its own.
    """
    kinds: dict[str, list[Record]] = {}
    for record in members:
        if record["nodes"] > 1:
            kind = json.dumps(_conditions(record, LINK), sort_keys=True)
            kinds.setdefault(kind, []).append(record)
    shown = {kind for kind, own in kinds.items() if any(is_timed(record) for record in own)}
    shown = shown or set(sorted(kinds)[:1])
    found = [(json.loads(kind), list(own)) for kind, own in sorted(kinds.items()) if kind in shown]
    found = found or [({}, [])]
    for kind, own in sorted(kinds.items()):
        if kind not in shown:
            found[0][1].extend(own)
    return found


def _identity(record: Record) -> tuple[int, float, int, str, int]:
    return (
        int(record["nodes"]),
        by_rate(record.get("rate_bps")),
        int(record.get("repeat", 0)),
        str(record.get("trial_id", "")),
        int(record.get("attempt", 1)),
    )


def differences(found: Sequence[Group]) -> list[str]:
    """Return the names of conditions that tell these groups apart, no more than it takes."""
    names = dict.fromkeys(name for group in found for name in group.conditions)
    kept: list[str] = []
    kinds = 1
    for name in names:
        told = {tuple(group.conditions.get(key) for key in (*kept, name)) for group in found}
        if len(told) > kinds:
            kept, kinds = [*kept, name], len(told)
    return kept
