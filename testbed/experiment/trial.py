"""One trial: a cluster, a job and a seed, named by the hash of its description."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from testbed.errors import ConfigError
from testbed.scenario import generate
from testbed.scenario.model import (
    DEFAULT_MEMORY_BYTES,
    DEFAULT_QUEUE_US,
    MAX_NODES,
    Scenario,
    Shape,
    Switch,
    default_burst_bytes,
)
from testbed.scenario.vnx import render
from testbed.workload.job import SCRIPT, Job

Mode = Literal["isolated", "shared"]
MODES: tuple[Mode, ...] = ("isolated", "shared")
Backend = Literal["lxc", "netns"]
BACKENDS: tuple[Backend, ...] = ("lxc", "netns")

OPEN_LINK = Shape()
BUDGET_PERCENT = 80  # of the host's cores; the rest is for the switch and the system (METHOD.md)


def default_cpu_cores(host_cores: int, largest_nodes: int) -> float:
    """Return every node's CPU budget: min(1, 0.8 x cores / largest N), rounded down to 1 %.

    0.0 when the nodes are too many to have 1 % each.
    """
    return min(100, host_cores * BUDGET_PERCENT // largest_nodes) / 100


def budget_fault(host_cores: int, budgets: Sequence[float]) -> str | None:
    """Return why the nodes' CPU budgets cannot be kept on this host, or None if they can."""
    total, limit = sum(budgets), host_cores * BUDGET_PERCENT / 100
    if total <= limit + 1e-6:  # sums of hundredths are not exact
        return None
    nodes, most = len(budgets), default_cpu_cores(host_cores, len(budgets))
    each = f" x {budgets[0]:g} cores" if len(set(budgets)) == 1 else ""
    way_out = f"give each at most {most:g}, or use" if most else "use"
    return (
        f"{nodes} nodes{each} are {total:g} cores, but {BUDGET_PERCENT} % of this host's "
        f"{host_cores} are {limit:g}: {way_out} fewer nodes, or mode shared (overhead trends only)"
    )


@dataclass(frozen=True, kw_only=True)
class Script:
    """A user's own training program: its folder, the file to start in it, and its arguments.

    ``sha256`` covers what is pushed; where it lies on this machine is not part of a trial.
    """

    file: str
    sha256: str
    args: tuple[str, ...] = ()
    folder: Path = field(default=Path(), compare=False)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What is run once: scenario parameters, job, repeat and seed. ``seed`` is the one used.

    One node has no link: its shape is dropped, so that it is the same trial whatever the
    bandwidth. ``cpu_cores`` is every node's budget in mode isolated and absent in mode shared.
    ``own_scenario`` is a cluster read from a user's file; ``shape`` and ``cpu_cores`` then
    describe its slowest link and its first node.
    """

    nodes: int
    shape: Shape = OPEN_LINK
    switch: Switch = "openvswitch"
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    cpu_cores: float | None = None
    mode: Mode = "isolated"
    backend: Backend = "lxc"
    workload: str = "fashion-mnist"
    model: str = "lenet5"
    strategy: str = "multi-worker-mirrored"
    scaling: Literal["strong", "weak"] = "strong"
    global_batch_size: int = 256
    steps: int = 25
    warmup_steps: int = 2
    optimizer: str = "adam"
    learning_rate: float = 0.003
    evaluate_every: int = 0
    repeat: int = 0
    seed: int = 1
    script: Script | None = None
    own_scenario: Scenario | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.nodes <= MAX_NODES:
            raise ConfigError(f"nodes {self.nodes}: expected 1 to {MAX_NODES}")
        if self.own_scenario is not None and len(self.own_scenario.nodes) != self.nodes:
            raise ConfigError(
                f"nodes {self.nodes}: the scenario has {len(self.own_scenario.nodes)}"
            )
        if self.mode == "isolated" and self.cpu_cores is None:
            raise ConfigError("mode isolated: every node needs a CPU budget, such as cpu 0.4")
        if self.mode == "shared" and self.cpu_cores is not None:
            raise ConfigError("mode shared: nodes compete for the cores; leave out the CPU budget")
        if self.script is None and self.global_batch_size % self.nodes:
            raise ConfigError(batch_fault(self.nodes, self.global_batch_size))
        if self.steps < 1:
            raise ConfigError(f"steps {self.steps}: expected at least 1")
        if self.nodes == 1:
            object.__setattr__(self, "shape", OPEN_LINK)
        if self.script is not None:
            object.__setattr__(self, "workload", SCRIPT)
        if self.cpu_cores is not None:
            object.__setattr__(self, "cpu_cores", float(self.cpu_cores))
        object.__setattr__(self, "learning_rate", float(self.learning_rate))

    def description(self) -> dict[str, Any]:
        """Return the canonical description that the id is the hash of.

        What has no meaning for this trial, or is not imposed, is absent: the id of a trial
        does not change when a later version learns to impose more.
        """
        described: dict[str, Any] = {
            "nodes": self.nodes,
            "switch": self.switch,
            "memory_bytes": self.memory_bytes,
            "mode": self.mode,
            "backend": self.backend,
            "workload": self.workload,
            "repeat": self.repeat,
            "seed": self.seed,
        }
        described |= _imposed(self.shape)
        if self.cpu_cores is not None:
            described["cpu_cores"] = self.cpu_cores
        if self.script is not None:
            described["script"] = {
                "file": self.script.file,
                "sha256": self.script.sha256,
                "args": list(self.script.args),
            }
        else:
            described.update(self._training())
        if self.own_scenario is not None:
            described["scenario_sha256"] = hashlib.sha256(render(self.own_scenario)).hexdigest()
        return described

    def _training(self) -> dict[str, Any]:
        """Return what the built-in training is told; a user's script is told none of it."""
        return {
            "model": self.model,
            "strategy": self.strategy,
            "scaling": self.scaling,
            "global_batch_size": self.global_batch_size,
            "steps": self.steps,
            "warmup_steps": self.warmup_steps,
            "optimizer": self.optimizer,
            "learning_rate": self.learning_rate,
            "evaluate_every": self.evaluate_every,
        }

    @cached_property
    def trial_id(self) -> str:
        """The first 12 hex digits of the SHA-256 of the canonical JSON of the description."""
        return hashlib.sha256(canonical_json(self.description()).encode()).hexdigest()[:12]

    @property
    def budgets(self) -> tuple[float, ...]:
        """Every node's CPU budget in cores, in the order of the nodes; () in mode shared."""
        if self.cpu_cores is None:
            return ()
        if self.own_scenario is None:
            return (self.cpu_cores,) * self.nodes
        return tuple(node.cpu_cores or self.cpu_cores for node in self.own_scenario.nodes)

    def scenario(self) -> Scenario:
        """Return the cluster: the user's own one, or a star of equal nodes.

        One of mode shared is named so: a folder may hold those of both modes.
        """
        if self.own_scenario is not None:
            return self.own_scenario
        star = generate.star(
            self.nodes,
            self.shape,
            memory_bytes=self.memory_bytes,
            cpu_cores=self.cpu_cores,
            switch=self.switch,
        )
        return star if self.mode == "isolated" else replace(star, name=f"{star.name}-shared")

    def job(self, *, data_dir: str = "", script: str = "") -> Job:
        """Return what the nodes are told; ``data_dir`` and ``script`` are paths on the nodes."""
        if self.script is not None:
            return Job(workload=SCRIPT, script=script, args=self.script.args, seed=self.seed)
        return Job(
            workload=self.workload,
            seed=self.seed,
            data_dir=data_dir,
            **self._training(),
        )

    def record_keys(self) -> dict[str, Any]:
        """Return the keys of a record that follow from the trial alone."""
        keys = {
            "trial_id": self.trial_id,
            "mode": self.mode,
            "backend": self.backend,
            "nodes": self.nodes,
            "workload": self.workload,
            "repeat": self.repeat,
            "seed": self.seed,
            "trial": self.description(),
        }
        if self.shape.rate_bps is not None:
            keys["rate_bps"] = self.shape.rate_bps
        if self.script is None:
            keys |= {
                "model": self.model,
                "strategy": self.strategy,
                "scaling": self.scaling,
                "global_batch_size": self.global_batch_size,
                "per_replica_batch_size": self.global_batch_size // self.nodes,
                "steps": self.steps,
            }
        return keys


def _imposed(shape: Shape) -> dict[str, Any]:
    """Return what a shape imposes, without what follows from the rest of it."""
    burst_bytes = None if shape.rate_bps is None else default_burst_bytes(shape.rate_bps)
    named = (
        ("rate_bps", shape.rate_bps, None),
        ("delay_us", shape.delay_us, 0),
        ("loss", shape.loss, 0.0),
        ("burst_bytes", shape.burst_bytes, burst_bytes),
        ("queue_us", shape.queue_us, DEFAULT_QUEUE_US),
    )
    return {name: value for name, value, neutral in named if value != neutral}


def trial_of(
    scenario: Scenario, *, host_cores: int, mode: Mode = "isolated", **settings: Any
) -> Trial:
    """Return the trial of a cluster read from a file; ``settings`` are other fields of Trial.

    Budgets that the file leaves out follow the rule of METHOD.md. A cluster like those of
    sweeps gives the same trial, with the same id, as there.

    Raises:
        ConfigError: the budgets are beyond 80 % of the host's cores, or a setting is impossible.
    """
    first = scenario.nodes[0]
    cpu_cores = None
    if mode == "isolated":
        cpu_cores = first.cpu_cores or default_cpu_cores(host_cores, len(scenario.nodes)) or 0.01
    trial = Trial(
        nodes=len(scenario.nodes),
        shape=min((node.shape for node in scenario.nodes), key=_speed),
        switch=scenario.lan.switch,
        memory_bytes=first.memory_bytes,
        cpu_cores=cpu_cores,
        mode=mode,
        **settings,
    )
    if _comparable(scenario, trial) != _comparable(trial.scenario(), trial):
        trial = replace(trial, own_scenario=scenario)
    if trial.budgets and (why := budget_fault(host_cores, trial.budgets)):
        raise ConfigError(f"{scenario.name}: {why}")
    return trial


def _speed(shape: Shape) -> float:
    return float("inf") if shape.rate_bps is None else shape.rate_bps


def _comparable(scenario: Scenario, trial: Trial) -> Scenario:
    """Return the scenario without what is no part of a trial: its name, a lonely node's link."""
    nodes = tuple(
        replace(
            node,
            shape=node.shape if trial.nodes > 1 else OPEN_LINK,
            cpu_cores=trial.cpu_cores and (node.cpu_cores or trial.cpu_cores),
        )
        for node in scenario.nodes
    )
    return replace(scenario, name="any", nodes=nodes)


def batch_fault(nodes: int, global_batch_size: int) -> str:
    """Return what to write when a global batch cannot be split into equal parts."""
    lower = global_batch_size // nodes * nodes
    near = " or ".join(str(size) for size in (lower, lower + nodes) if size)
    return (
        f"{nodes} nodes cannot share a global batch of {global_batch_size} equally: "
        f"write global_batch_size {near}, or another number of nodes"
    )


def canonical_json(value: Mapping[str, Any]) -> str:
    """Return the one JSON text of a value: keys sorted, no spaces, no NaN."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )
