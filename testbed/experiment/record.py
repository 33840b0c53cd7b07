"""From what was measured to a record: what is not measured is absent, never null."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import psutil

from testbed.bounds import expected_goodput_bps
from testbed.experiment import gates
from testbed.experiment.monitor import HostUse
from testbed.experiment.trial import BUDGET_PERCENT, Trial
from testbed.provision.cgroup import CgroupStats, quota
from testbed.provision.cluster import Cluster
from testbed.scenario.model import Shape

Results = Mapping[str, Mapping[str, Any]]
"""RESULT.json of every node, by its name."""

_OF_ALL_NODES = (
    "samples_total",
    "final_loss",
    "final_accuracy",
    "losses",
    "evaluations",
    "warmup_step_times_s",
)
_PER_NODE = ("bytes_sent", "bytes_received", "packets_sent", "packets_received")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What was seen from outside while the workers trained."""

    host: HostUse | None
    before: Mapping[str, CgroupStats]
    after: Mapping[str, CgroupStats]

    def cpu_s(self) -> dict[str, float]:
        """Return the processor time each node used."""
        return {name: after.cpu_s - self.before[name].cpu_s for name, after in self.after.items()}


def budgets_of(trial: Trial, cluster: Cluster) -> dict[str, float]:
    """Return every node's CPU budget in cores, by name; nothing in mode shared."""
    return dict(zip((live.name for live in cluster.nodes), trial.budgets, strict=False))


def facts_of(trial: Trial, cluster: Cluster, results: Results, outcome: Outcome) -> gates.Facts:
    """Return what the gates judge."""
    first = next(iter(results.values()))
    return gates.Facts(
        mode=trial.mode,
        train_time_s=max(result["train_time_s"] for result in results.values()),
        step_times_s=_slowest_steps(results),
        gradient_bytes=first.get("gradient_bytes", 0),
        nodes=trial.nodes,
        slowest=_slowest(cluster),
        cpu_s=outcome.cpu_s(),
        cpu_cores=budgets_of(trial, cluster),
        host=outcome.host,
    )


def bound_of(facts: gates.Facts) -> dict[str, float]:
    """Return the least time of a step's exchange, and how much of a step that is; {} if open."""
    bound_s = gates.communication_bound_s(facts)
    if bound_s is None or not facts.step_times_s:
        return {}
    share = bound_s / median(facts.step_times_s)
    return {"communication_s": bound_s, "percent_of_bound": 100 * share}


def _slowest(cluster: Cluster) -> Shape:
    shapes = [live.node.shape for live in cluster.nodes]
    return min(shapes, key=lambda shape: float("inf") if shape.rate_bps is None else shape.rate_bps)


def _slowest_steps(results: Results) -> list[float]:
    """Return each step's time on the node where it took longest."""
    steps = [result["step_times_s"] for result in results.values() if "step_times_s" in result]
    return [max(times) for times in zip(*steps, strict=True)]


def measured(
    trial: Trial, cluster: Cluster, results: Results, outcome: Outcome, data_sha256: str
) -> dict[str, Any]:
    """Return the record's keys that were measured; what was not is absent."""
    first = next(iter(results.values()))
    found: dict[str, Any] = {
        "train_time_s": max(result["train_time_s"] for result in results.values())
    }
    if steps := _slowest_steps(results):
        found["step_times_s"] = steps
    found |= {name: first[name] for name in _OF_ALL_NODES if name in first}
    for name in _PER_NODE:
        counts = {node: result[name] for node, result in results.items() if name in result}
        if counts:
            found[name] = counts
    if trial.script is not None:
        found["script"] = {"sha256": trial.script.sha256, "args": list(trial.script.args)}
        found["script_records"] = {
            node: result.get("records", []) for node, result in results.items()
        }
    else:
        found["work"] = _work(trial, first, data_sha256)
    found["resources"] = _resources(cluster, results, outcome)
    return found


def _work(trial: Trial, result: Mapping[str, Any], data_sha256: str) -> dict[str, Any]:
    return {
        "parameters": result["parameters"],
        "gradient_bytes": result["gradient_bytes"],
        "optimizer": trial.optimizer,
        "learning_rate": trial.learning_rate,
        "data_sha256": data_sha256,
        "collective": "ring",
        "wire_dtype": "float32",
        "warmup_steps": trial.warmup_steps,
    }


def _resources(cluster: Cluster, results: Results, outcome: Outcome) -> dict[str, Any]:
    nodes = {}
    for live in cluster.nodes:
        before, after = outcome.before[live.name], outcome.after[live.name]
        nodes[live.name] = {
            "cpu_s": after.cpu_s - before.cpu_s,
            "periods": after.periods - before.periods,
            "throttled_periods": after.throttled_periods - before.throttled_periods,
            "throttled_s": after.throttled_s - before.throttled_s,
            "peak_memory_bytes": after.peak_memory_bytes,
        }
        if "peak_memory_bytes" in results[live.name]:
            nodes[live.name]["worker_peak_bytes"] = results[live.name]["peak_memory_bytes"]
    found: dict[str, Any] = {"nodes": nodes}
    if outcome.host is not None:
        found |= {
            "host_idle_mean": outcome.host.idle_mean,
            "host_idle_min": outcome.host.idle_min,
            "steal": outcome.host.steal,
        }
    return found


def compute_of(trial: Trial) -> dict[str, Any]:
    """Return the record's ``compute``: every node's budget, and the host it comes from."""
    cores = psutil.cpu_count() or 1
    found: dict[str, Any] = {"threads": 1, "host_cores": cores}
    if trial.cpu_cores is not None:
        found |= {
            "cpu_cores": trial.cpu_cores,
            "quota_period_us": quota(trial.cpu_cores)[1],
            "budget_fraction": BUDGET_PERCENT / 100,
            "budgets_over_cores": trial.nodes * trial.cpu_cores / cores,
            "dilation": 1,
        }
    return found


def network_of(cluster: Cluster) -> dict[str, Any]:
    """Return the record's ``network``; its shape is the slowest link's."""
    shape = _slowest(cluster)
    found: dict[str, Any] = {
        "switch": cluster.scenario.lan.switch,
        "datapath": cluster.ledger.datapath,
        "directions": "both",
        "mtu": 1500,
        "congestion_control": "cubic",
        "delay_us": shape.delay_us,
        "loss": shape.loss,
    }
    if shape.rate_bps is not None:
        found |= {
            "burst_bytes": shape.burst_bytes,
            "queue_us": shape.queue_us,
            "expected_goodput_bps": expected_goodput_bps(shape.rate_bps),
        }
    return found


def now() -> float:
    """Return the time in seconds since 1970, to the millisecond."""
    return round(time.time(), 3)
