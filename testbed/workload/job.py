"""What to train, how, and how much: the value that is pushed to every node as JOB.json."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

FORMAT = 1

SCRIPT = "script"
WORKLOADS = ("fashion-mnist", "mnist", SCRIPT)
MODELS = ("lenet5", "mlp")
STRATEGIES = ("multi-worker-mirrored",)
SCALINGS = ("strong", "weak")
OPTIMIZERS = ("sgd", "adam")

MAX_SEED = 20_000_000  # repeats add to it, and a layer's seed, 100 times it, must fit 31 bits


class JobError(Exception):
    """A job that cannot be run; the message lists every fault."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What every node of a trial does. It cannot be built wrong.

    ``steps`` are timed, ``warmup_steps`` come before them and leave no trace in the weights.
    ``evaluate_every`` is in steps, 0 for once at the end. ``data_dir`` is the folder on the node
    that holds the data set's files. ``script`` and ``args`` belong to the workload ``script``
    alone, which ignores all that describes training.

    Raises:
        JobError: with one line for each fault.
    """

    workload: str
    model: str = "lenet5"
    strategy: str = "multi-worker-mirrored"
    scaling: str = "strong"
    global_batch_size: int = 256
    steps: int = 30
    warmup_steps: int = 2
    optimizer: str = "adam"
    learning_rate: float = 0.003
    seed: int = 1
    evaluate_every: int = 0
    data_dir: str = ""
    script: str = ""
    args: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        _refuse_if_any(self._faults())

    def _faults(self) -> Iterator[str]:
        for name, known in (
            ("workload", WORKLOADS),
            ("model", MODELS),
            ("strategy", STRATEGIES),
            ("scaling", SCALINGS),
            ("optimizer", OPTIMIZERS),
        ):
            value = getattr(self, name)
            if value not in known:
                yield f"{name} {value!r}: expected one of {', '.join(known)}"
        for name, low, high in (
            ("global_batch_size", 1, 1_000_000),
            ("steps", 1, 10_000_000),
            ("warmup_steps", 1, 1_000),
            ("evaluate_every", 0, 10_000_000),
            ("seed", 0, MAX_SEED),
        ):
            value = getattr(self, name)
            if not _is_int(value) or not low <= value <= high:
                yield f"{name} {value!r}: expected a whole number from {low} to {high}"
        rate = self.learning_rate
        if not isinstance(rate, int | float) or not (math.isfinite(rate) and rate > 0):
            yield f"learning_rate {rate!r}: expected a positive number"
        for name in ("data_dir", "script"):
            if not isinstance(getattr(self, name), str):
                yield f"{name} {getattr(self, name)!r}: expected a path as text"
        if not (isinstance(self.args, tuple) and all(isinstance(arg, str) for arg in self.args)):
            yield f"args {self.args!r}: expected a list of words"
        if self.workload == SCRIPT and not self.script:
            yield "script '': the workload 'script' needs the path of a Python file"
        if self.workload != SCRIPT and (self.script or self.args):
            yield f"script {self.script!r}: only the workload 'script' takes one"

    def per_replica_batch_size(self, nodes: int) -> int:
        """Return each replica's share of a global batch.

        Raises:
            JobError: ``nodes`` does not divide the global batch.
        """
        if nodes < 1 or self.global_batch_size % nodes:
            raise JobError(
                f"global batch {self.global_batch_size} on {nodes} nodes: expected a multiple of "
                f"the nodes; for example {max(1, round(self.global_batch_size / nodes)) * nodes}"
            )
        return self.global_batch_size // nodes

    def to_json(self) -> str:
        """Return the canonical JSON: sorted keys, no blanks; equal jobs give equal text."""
        fields_of_all = {"format": FORMAT, **asdict(self)}
        return json.dumps(fields_of_all, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Job:
        """Return the job that ``to_json`` wrote.

        Raises:
            JobError: not such a text, or a job that cannot be run.
        """
        values = read_object(text, what="job")
        names = [field.name for field in fields(cls)]
        _refuse_if_any(
            f"{name!r}: no such field; expected some of {', '.join(names)}"
            for name in sorted(values.keys() - set(names))
        )
        if "workload" not in values:
            raise JobError(f"no workload: expected one of {', '.join(WORKLOADS)}")
        if isinstance(values.get("args"), list):
            values["args"] = tuple(values["args"])
        return cls(**values)


def read_object(text: str, *, what: str) -> dict[str, Any]:
    """Return the fields of one of our JSON files, its format checked and taken off.

    Raises:
        JobError: not a JSON object, or of another format.
    """
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise JobError(f"{what}: expected JSON, {error}") from error
    if not isinstance(values, dict):
        raise JobError(f"{what}: expected a JSON object, found {type(values).__name__}")
    found = values.pop("format", None)
    if found != FORMAT:
        raise JobError(
            f"{what}: format {found!r}, expected {FORMAT}; it was written by another version "
            "of the testbed: write it again with this one"
        )
    return values


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _refuse_if_any(faults: Iterable[str]) -> None:
    listed = list(faults)
    if listed:
        raise JobError("\n".join(listed))
