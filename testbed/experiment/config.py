"""A sweep's YAML file: what it may say, and the trials that it asks for.

Everything is checked before anything starts, and all faults are told at once, each with its
line. `docs/sweeps.md` is the same for users.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, ValidationError

from testbed import units
from testbed.errors import InputError, UnitError
from testbed.experiment.marked_yaml import Fault, Marked, Where, parse, read_bounded, refuse
from testbed.experiment.points import AXES, Point, budget_faults, combination_faults, points
from testbed.experiment.trial import Backend, Mode, Trial, default_cpu_cores
from testbed.scenario.model import DEFAULT_MEMORY_BYTES, MAX_NODES, Shape, Switch

FORMAT = 1
SALVAGES = 4  # a wrong item out, then its empty list, then its empty entry; what is left is right
TRAINING_SAMPLES = 60_000  # of both data sets: a global batch cannot be larger
NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,62}[a-z0-9])?")  # it becomes a folder's name

WorkloadName = Literal["fashion-mnist", "mnist"]
ModelName = Literal["lenet5", "mlp"]
StrategyName = Literal["multi-worker-mirrored"]


def _in_units(read: Callable[[str], Any]) -> BeforeValidator:
    """Return a validator that reads a quantity with its unit, as `units` does."""

    def validate(given: object) -> Any:
        if isinstance(given, bool) or not isinstance(given, str | int | float):
            raise ValueError(f"{given!r}: expected a quantity")
        try:
            return read(str(given))
        except InputError as error:
            raise ValueError(str(error)) from error

    return BeforeValidator(validate)


def _rate(text: str) -> int | None:
    return Shape(rate_bps=units.parse_rate(text)).rate_bps  # which has the limits


def _cpu(text: str) -> float:
    cpu_cores = units.parse_cpu(text)
    if cpu_cores < 0.01 or abs(round(cpu_cores, 2) - cpu_cores) > 1e-9:
        raise UnitError(f"cpu {text!r}: expected whole percents of a core, such as 0.4 or 40%")
    return round(cpu_cores, 2)


def _number(given: object) -> object:
    """Return the number in a text such as 1e-3, which YAML 1.1 takes for a word."""
    if isinstance(given, bool):
        raise ValueError(f"{given!r}: expected a number, such as 0.003")
    if isinstance(given, str):
        try:
            return float(given)
        except ValueError:
            raise ValueError(f"{given!r}: expected a number, such as 0.003") from None
    return given


def _name(given: object) -> object:
    if not isinstance(given, str) or not NAME.fullmatch(given):
        raise ValueError(
            f"{given!r}: expected 1 to 64 of a-z, 0-9, '.', '_' and '-' (it names the results "
            "folder), such as quick"
        )
    return given


Nodes = Annotated[int, Field(strict=True, ge=1, le=MAX_NODES)]
Rate = Annotated[int | None, _in_units(_rate)]
Delay = Annotated[int, _in_units(units.parse_delay)]
Loss = Annotated[float, _in_units(units.parse_loss)]
BatchSize = Annotated[int, Field(strict=True, ge=1, le=TRAINING_SAMPLES)]
Count = Annotated[int, Field(strict=True, ge=1, le=1_000_000)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Matrix(_Part):
    """The values of each axis; () where there is no such axis."""

    nodes: tuple[Nodes, ...] = Field(min_length=1)
    bandwidth: tuple[Rate, ...] = Field(default=(), min_length=1)
    delay: tuple[Delay, ...] = Field(default=(), min_length=1)
    loss: tuple[Loss, ...] = Field(default=(), min_length=1)
    model: tuple[ModelName, ...] = Field(default=(), min_length=1)
    workload: tuple[WorkloadName, ...] = Field(default=(), min_length=1)
    strategy: tuple[StrategyName, ...] = Field(default=(), min_length=1)
    mode: tuple[Mode, ...] = Field(default=(), min_length=1)
    global_batch_size: tuple[BatchSize, ...] = Field(default=(), min_length=1)


class Entry(_Part):
    """One line of include or exclude: one value for some of the axes."""

    nodes: Nodes | None = None
    bandwidth: Rate = None
    delay: Delay | None = None
    loss: Loss | None = None
    model: ModelName | None = None
    workload: WorkloadName | None = None
    strategy: StrategyName | None = None
    mode: Mode | None = None
    global_batch_size: BatchSize | None = None

    def given(self) -> dict[str, Any]:
        """Return the axes that are written in the entry, with their values."""
        return {axis: getattr(self, axis) for axis in AXES if axis in self.model_fields_set}


class Sweep(_Part):
    """A sweep file that is right in itself; `load_sweep` makes it."""

    format: Literal[1]
    name: Annotated[str, BeforeValidator(_name)]
    description: str = ""
    backend: Backend = "lxc"
    mode: Mode = "isolated"
    switch: Switch = "openvswitch"
    cpu: Annotated[float, _in_units(_cpu)] | None = None
    memory: Annotated[int, _in_units(units.parse_memory)] = DEFAULT_MEMORY_BYTES
    workload: WorkloadName = "fashion-mnist"
    model: ModelName = "lenet5"
    strategy: StrategyName = "multi-worker-mirrored"
    scaling: Literal["strong", "weak"] = "strong"
    global_batch_size: BatchSize = 256
    per_replica_batch_size: BatchSize | None = None
    steps: Count = 25
    optimizer: Literal["sgd", "adam"] = "adam"
    learning_rate: Annotated[float, BeforeValidator(_number), Field(gt=0)] = 0.003
    evaluate_every: Annotated[int, Field(strict=True, ge=0)] = 0
    repeats: Annotated[int, Field(strict=True, ge=1, le=1000)] = 3
    seed: Annotated[int, Field(strict=True, ge=0, lt=2**31)] = 1
    matrix: Matrix
    include: tuple[Entry, ...] = ()
    exclude: tuple[Entry, ...] = ()

    _marked: Marked = PrivateAttr()
    _content: bytes = PrivateAttr()

    @property
    def source(self) -> str:
        """The file that the sweep was read from."""
        return self._marked.source

    @property
    def content(self) -> bytes:
        """The file's bytes as they were read."""
        return self._content

    @property
    def marked(self) -> Marked:
        """The lines of the file."""
        return self._marked

    def cpu_cores(self, host_cores: int) -> float | None:
        """Return every node's budget in mode isolated; None if no trial is isolated."""
        nodes = [point.nodes for point in points(self) if point.mode == "isolated"]
        if not nodes:
            return None
        return self.cpu if self.cpu is not None else default_cpu_cores(host_cores, max(nodes))

    def trials(self, host_cores: int) -> tuple[Trial, ...]:
        """Return all trials: repeats outermost, then the order of the file.

        Raises:
            ConfigError: the CPU budgets are beyond 80 % of these cores.
        """
        if faults := list(budget_faults(self, host_cores)):
            raise refuse(self.source, faults)
        cpu_cores = self.cpu_cores(host_cores)
        return tuple(
            self._trial(point, repeat, cpu_cores)
            for repeat in range(self.repeats)
            for point in points(self)
        )

    def _trial(self, point: Point, repeat: int, cpu_cores: float | None) -> Trial:
        return Trial(
            nodes=point.nodes,
            shape=Shape(rate_bps=point.bandwidth, delay_us=point.delay, loss=point.loss),
            switch=self.switch,
            memory_bytes=self.memory,
            cpu_cores=cpu_cores if point.mode == "isolated" else None,
            mode=point.mode,
            backend=self.backend,
            workload=point.workload,
            model=point.model,
            strategy=point.strategy,
            scaling=self.scaling,
            global_batch_size=point.global_batch_size,
            steps=self.steps,
            optimizer=self.optimizer,
            learning_rate=self.learning_rate,
            evaluate_every=self.evaluate_every,
            repeat=repeat,
            seed=self.seed + repeat,
        )

    def settings(self, host_cores: int) -> dict[str, str]:
        """Return the fixed settings as text: all but the matrix and the description."""
        varied = {"format", "description", "matrix", "include", "exclude"}
        texts = {
            key: str(getattr(self, key))
            for key in type(self).model_fields
            if key not in varied and getattr(self, key) is not None
        }
        texts["memory"] = units.format_memory(self.memory)
        texts.pop("cpu", None)
        if (cpu_cores := self.cpu_cores(host_cores)) is not None:
            texts["cpu"] = f"{cpu_cores:g}"
        for axis in AXES:
            if getattr(self.matrix, axis):
                texts.pop(axis, None)
        if self.scaling == "weak":
            texts.pop("global_batch_size", None)
        return texts


def load_sweep(path: Path, *, host_cores: int | None = None) -> Sweep:
    """Return the sweep that a file describes, checked whole.

    With ``host_cores`` the CPU budgets are checked in the same go.

    Raises:
        ConfigError: lists every fault with file, line, what was given and what to write.
    """
    return parse_sweep(read_bounded(path), source=str(path), host_cores=host_cores)


def parse_sweep(content: bytes, *, source: str, host_cores: int | None = None) -> Sweep:
    """Return the sweep in a file's bytes; see `load_sweep`."""
    marked = parse(content, source=source)
    value = {"name": Path(source).stem, **marked.value}
    faults = list(marked.faults)
    broken: set[str] = set()
    sweep = None
    for _ in range(SALVAGES):
        try:
            sweep = Sweep.model_validate(value)
            break
        except ValidationError as error:
            if not broken:
                faults += _faults(error, marked)
            places: list[Where] = [tuple(item["loc"]) for item in error.errors()]
            broken |= {str(where[0]) for where in places}
            value = {"format": FORMAT, "name": "x"} | _without(value, places)
    if sweep is None:
        raise refuse(source, faults)
    sweep._marked, sweep._content = marked, content
    faults += combination_faults(sweep, frozenset(broken))
    if host_cores is not None and not faults:
        faults += budget_faults(sweep, host_cores)
    if faults:
        raise refuse(source, faults)
    return sweep


def _without(value: dict[str, Any], places: list[Where]) -> dict[str, Any]:
    """Return the value less the places that are wrong, so that the rest can be checked too."""
    rest = deepcopy(value)
    for where in sorted(places, key=_place, reverse=True):  # later list items first
        container: Any = rest
        for step in where[:-1]:
            try:
                container = container[step]
            except (LookupError, TypeError):
                break
        else:
            if where and isinstance(container, list) and isinstance(where[-1], int):
                del container[where[-1]]
            elif where and isinstance(container, dict):
                container.pop(where[-1], None)
    return rest


def _place(where: Where) -> list[tuple[int, int, str]]:
    return [(0, step, "") if isinstance(step, int) else (1, 0, step) for step in where]


EXAMPLES: Mapping[str, str] = {
    "format": "1",
    "name": "quick",
    "description": "What this sweep is for.",
    "backend": "lxc",
    "mode": "isolated",
    "switch": "openvswitch",
    "cpu": "0.4",
    "memory": "2G",
    "workload": "fashion-mnist",
    "model": "lenet5",
    "strategy": "multi-worker-mirrored",
    "scaling": "strong",
    "global_batch_size": "256",
    "per_replica_batch_size": "64",
    "steps": "25",
    "optimizer": "adam",
    "learning_rate": "0.003",
    "evaluate_every": "0",
    "repeats": "3",
    "seed": "1",
    "matrix": "{nodes: [1, 2, 4], bandwidth: [10mbit, 100mbit]}",
    "nodes": "4",
    "bandwidth": "10mbit",
    "delay": "20ms",
    "loss": "1%",
    "include": "[{nodes: 8, bandwidth: 100mbit}]",
    "exclude": "[{nodes: 4, bandwidth: 10mbit}]",
}


def _faults(error: ValidationError, marked: Marked) -> Iterator[Fault]:
    """Yield each of pydantic's findings with its line, in our words."""
    for item in error.errors(include_url=False):
        where: Where = tuple(item["loc"])
        if item["type"] == "too_short" and item["input"]:
            continue  # not empty: its items are wrong, and are told one by one
        if where in marked.unread:
            continue  # told by the reader
        yield Fault(marked.line(where), _message(where, item))


def _message(where: Where, item: Mapping[str, Any]) -> str:
    keys = [step for step in where if isinstance(step, str) and step in EXAMPLES]
    key = keys[-1] if keys else str(where[-1] if where else "file")
    if item["type"] == "extra_forbidden":
        return _unknown(where)
    place = ".".join(str(step) for step in where if isinstance(step, str) and step in EXAMPLES)
    example = EXAMPLES.get(key, "")
    in_list = len(where) == 2 and where[0] == "matrix"
    if in_list:
        example = f"[{example}]"
    given = item["input"]
    match item["type"]:
        case "missing":
            return f"{place} is missing: write `{key}: {example}`"
        case "value_error":
            told = str(item["ctx"]["error"])
            return told if told.startswith((key, place)) else f"{place}: {told}"
        case "literal_error":
            return f"{place}: {given!r}: {_literal(key, str(given), item['ctx']['expected'])}"
        case "too_short":
            return f"{place} is empty: write `{key}: {example}`, or remove the line"
        case "greater_than_equal" | "less_than_equal" | "greater_than" | "less_than":
            return f"{place} {given!r}: expected a number {_bound(item)}"
        case "tuple_type":
            example = example if example.startswith("[") else f"[{example}]"
            return f"{place}: {given!r}: expected a list: write `{key}: {example}`"
        case "model_type" | "model_attributes_type":
            example = example.strip("[]") if where[-1:] != ("matrix",) else example
            return f"{place}: {given!r}: expected keys with values, such as {example}"
    expected = {
        "int_type": "a whole number",
        "int_from_float": "a whole number",
        "string_type": "a text",
        "finite_number": "a finite number",
    }.get(item["type"], item["msg"])
    return f"{place}: {given!r}: expected {expected}, such as {example}"


def _unknown(where: Where) -> str:
    known: list[str]
    match where:
        case ("matrix", _):
            known = list(Matrix.model_fields)
        case ("include" | "exclude", *_):
            known = list(Entry.model_fields)
        case _:
            known = list(Sweep.model_fields)
    key = str(where[-1])
    if near := difflib.get_close_matches(key, known, n=1):
        return f"unknown key {key!r}: did you mean {near[0]!r}?"
    if len(where) == 1 and key in Matrix.model_fields:
        return f"{key!r} belongs under `matrix:`, as a list: `{key}: [{EXAMPLES[key]}]`"
    if len(where) > 1 and key in Sweep.model_fields:
        return f"{key!r} cannot vary within a sweep: write it at the beginning of a line"
    return f"unknown key {key!r}: expected one of {', '.join(sorted(known))}"


def _literal(key: str, given: str, expected: str) -> str:
    """Say what to write instead of a word that is none of those expected."""
    if key == "format":
        return f"this testbed reads format {FORMAT}: write `format: {FORMAT}`"
    words = re.findall(r"'([^']*)'", expected)
    if near := difflib.get_close_matches(given, words, n=1):
        return f"did you mean {near[0]!r}?"
    return f"expected one of {', '.join(words)}"


def _bound(item: Mapping[str, Any]) -> str:
    signs = {"ge": "of at least", "le": "of at most", "gt": "above", "lt": "below"}
    return " and ".join(f"{signs[name]} {bound:g}" for name, bound in item["ctx"].items())
