"""The combinations of a matrix: product, less exclude, plus include; and what cannot be."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from testbed.experiment.marked_yaml import Fault, Where
from testbed.experiment.trial import Mode, batch_fault, budget_fault, default_cpu_cores
from testbed.units import format_delay, format_loss, format_rate

if TYPE_CHECKING:
    from testbed.experiment.config import Sweep

MAX_TRIALS = 10_000  # at some 20 s each, two days; more is a slip of the pen


class Point(NamedTuple):
    """One combination: a value for every axis. One node has neither rate, delay nor loss."""

    nodes: int
    bandwidth: int | None
    delay: int
    loss: float
    model: str
    workload: str
    strategy: str
    mode: Mode
    global_batch_size: int


AXES = Point._fields
LINK = ("bandwidth", "delay", "loss")  # what a single node has not


def points(sweep: Sweep) -> tuple[Point, ...]:
    """Return the combinations to run, each once, in the order of the file."""
    product = _product(sweep, {})
    kept = [point for point in product if not any(map(point_matches(point), _excluded(sweep)))]
    added = [point for entry in sweep.include for point in _product(sweep, entry.given())]
    return _as_run(sweep, kept + added)


def point_matches(point: Point) -> Any:
    """Return whether given axes are those of the point, as a predicate."""
    return lambda given: all(getattr(point, axis) == value for axis, value in given.items())


def _excluded(sweep: Sweep) -> list[dict[str, Any]]:
    return [entry.given() for entry in sweep.exclude]


def _product(sweep: Sweep, given: Mapping[str, Any]) -> list[Point]:
    """Return all combinations; an axis that is given has that value alone."""
    fixed = {"bandwidth": None, "delay": 0, "loss": 0.0}
    values = [
        (given[axis],)
        if axis in given
        else getattr(sweep.matrix, axis) or (fixed.get(axis, getattr(sweep, axis, None)),)
        for axis in AXES
    ]
    return [Point(*combination) for combination in itertools.product(*values)]


def _as_run(sweep: Sweep, combinations: Iterable[Point]) -> tuple[Point, ...]:
    """Return the combinations as they will run: a single node's without link, each once."""
    run = []
    for point in combinations:
        if point.nodes == 1:
            point = point._replace(bandwidth=None, delay=0, loss=0.0)
        if sweep.scaling == "weak" and sweep.per_replica_batch_size is not None:
            point = point._replace(global_batch_size=point.nodes * sweep.per_replica_batch_size)
        run.append(point)
    return tuple(dict.fromkeys(run))


def combination_faults(sweep: Sweep, broken: frozenset[str]) -> Iterator[Fault]:
    """Yield what is right by itself but cannot be together.

    ``broken`` are the keys already found wrong; what depends on them is not judged.
    """
    line = sweep.marked.line
    trials = sweep.repeats * math.prod(
        len(values) for axis in AXES if (values := getattr(sweep.matrix, axis))
    )
    if trials > MAX_TRIALS:
        told = f"{trials} trials, of at most {MAX_TRIALS}: take values out, or split the sweep"
        yield Fault(line(("matrix",)), f"matrix asks for {told}")
        return
    yield from _batch_of_scaling(sweep, broken)
    if sweep.cpu is not None and "isolated" not in (sweep.matrix.mode or (sweep.mode,)):
        yield Fault(line(("cpu",)), "cpu has no effect in mode shared: remove it")
    if not broken & {"matrix", "include", "exclude"}:
        yield from _twice(sweep)
        yield from _without_bandwidth(sweep)
        yield from _matching_nothing(sweep)
        if not points(sweep):
            yield Fault(line(("exclude",)), "exclude leaves nothing to run: take entries out")
    sized_by = {"global_batch_size", "per_replica_batch_size", "scaling", "include", "exclude"}
    if not broken & sized_by:
        yield from _indivisible(sweep)


def _twice(sweep: Sweep) -> Iterator[Fault]:
    """Yield values that stand twice on an axis, and axes that are fixed settings as well."""
    for axis in AXES:
        values = getattr(sweep.matrix, axis)
        for index, value in enumerate(values):
            if value in values[:index]:
                where = ("matrix", axis, index)
                told = f"{axis} {axis_text(axis, value)} is given twice: keep one of the two"
                yield Fault(sweep.marked.line(where), told)
        if values and axis in sweep.model_fields_set:
            told = f"{axis} is a fixed setting here and an axis of the matrix: remove one of them"
            yield Fault(sweep.marked.line((axis,)), told)


def _batch_of_scaling(sweep: Sweep, broken: frozenset[str]) -> Iterator[Fault]:
    """Yield the batch size that belongs to the other kind of scaling."""
    if "scaling" in broken:
        return
    line = sweep.marked.line
    if sweep.scaling == "strong":
        if sweep.per_replica_batch_size is not None:
            told = "per_replica_batch_size belongs to `scaling: weak`: write global_batch_size"
            yield Fault(line(("per_replica_batch_size",)), told)
        return
    told = "global_batch_size belongs to `scaling: strong`: write per_replica_batch_size"
    if "global_batch_size" in sweep.model_fields_set:
        yield Fault(line(("global_batch_size",)), told)
    if sweep.matrix.global_batch_size:
        yield Fault(line(("matrix", "global_batch_size")), told)
    if sweep.per_replica_batch_size is None and "per_replica_batch_size" not in broken:
        told = "`scaling: weak` needs each node's batch: write `per_replica_batch_size: 64`"
        yield Fault(line(("scaling",)), told)


def _without_bandwidth(sweep: Sweep) -> Iterator[Fault]:
    """Yield places where several nodes are asked for and nobody says what joins them."""
    if sweep.matrix.bandwidth:
        return
    write = "write `bandwidth: [10mbit, 100mbit]`, or [unlimited] for open links"
    if max(sweep.matrix.nodes) > 1:
        told = f"matrix has several nodes and no bandwidth: {write}"
        yield Fault(sweep.marked.line(("matrix",)), told)
        return
    for index, entry in enumerate(sweep.include):
        if (entry.nodes or 1) > 1 and "bandwidth" not in entry.model_fields_set:
            where = ("include", index)
            told = "include: several nodes and no bandwidth: add `bandwidth: 10mbit` to the entry"
            yield Fault(sweep.marked.line(where), told)


def _matching_nothing(sweep: Sweep) -> Iterator[Fault]:
    """Yield entries of include and exclude that change nothing."""
    product = _product(sweep, {})
    everything = _as_run(sweep, product)
    for index, given in enumerate(_excluded(sweep)):
        rest = [point for point in product if not point_matches(point)(given)]
        if _as_run(sweep, rest) == everything:
            lonely = given.get("nodes") == 1 and any(axis in given for axis in LINK)
            why = (
                "one node has no link, and runs once whatever the bandwidth: write {nodes: 1}"
                if lonely
                else "no combination of the matrix is like it: correct it, or remove it"
            )
            told = f"exclude {_entry(given)} takes nothing out: {why}"
            yield Fault(sweep.marked.line(("exclude", index)), told)
    excluded = _excluded(sweep)
    kept = [point for point in product if not any(map(point_matches(point), excluded))]
    for index, entry in enumerate(sweep.include):
        added = _product(sweep, entry.given())
        if set(_as_run(sweep, added)) <= set(_as_run(sweep, kept)):
            told = f"include {_entry(entry.given())} adds nothing: it is there already; remove it"
            yield Fault(sweep.marked.line(("include", index)), told)
        kept += added


def _indivisible(sweep: Sweep) -> Iterator[Fault]:
    """Yield numbers of nodes that cannot share their global batch equally."""
    for nodes, batch in dict.fromkeys((p.nodes, p.global_batch_size) for p in points(sweep)):
        if batch % nodes:
            yield Fault(sweep.marked.line(_place_of(sweep, nodes)), batch_fault(nodes, batch))


def budget_faults(sweep: Sweep, host_cores: int) -> Iterator[Fault]:
    """Yield the CPU budgets that this host cannot keep free of each other (METHOD.md)."""
    isolated = [point.nodes for point in points(sweep) if point.mode == "isolated"]
    if not isolated:
        return
    nodes = max(isolated)
    cpu_cores = sweep.cpu
    if cpu_cores is None:
        if default_cpu_cores(host_cores, nodes):
            return
        cpu_cores = 0.01  # the smallest budget that we give
    if why := budget_fault(host_cores, [cpu_cores] * nodes):
        yield Fault(sweep.marked.line(_place_of(sweep, nodes)), why)


def _place_of(sweep: Sweep, nodes: int) -> Where:
    """Return where a number of nodes is written."""
    written = sweep.marked.value["matrix"]["nodes"]  # with the wrong values still in it
    if nodes in written:
        return ("matrix", "nodes", written.index(nodes))
    for index, entry in enumerate(sweep.include):
        if entry.nodes == nodes:
            return ("include", index)
    return ("matrix", "nodes")


def _entry(given: Mapping[str, Any]) -> str:
    return (
        "{" + ", ".join(f"{axis}: {axis_text(axis, value)}" for axis, value in given.items()) + "}"
    )


def axis_text(axis: str, value: Any) -> str:
    """Return a value as people write it."""
    match axis:
        case "bandwidth":
            return format_rate(value)
        case "delay":
            return format_delay(value)
        case "loss":
            return format_loss(value)
    return str(value)
