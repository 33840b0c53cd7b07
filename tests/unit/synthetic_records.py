"""Made-up records for tests of the analysis: plausible, seeded, and never results.

Times follow a cost model with noise, so that the figures under test look like real ones.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Iterable, Sequence
from typing import Any

Record = dict[str, Any]

GRADIENT_BYTES = 246_824  # lenet5: 61 706 parameters in float32
STEPS = 30
STEP_OF_ONE_S = 0.21
MANIFEST = {
    "testbed": "0.1.0",
    "git_commit": "0123456789abcdef0123456789abcdef01234567",
    "python": "3.11.2",
    "tensorflow": "2.21.0",
    "keras": "3.14.1",
    "cpu_model": "Synthetic CPU <3 GHz>",
    "host_cores": 2,
    "memory_bytes": 25_000_000_000,
    "kernel": "6.18.0",
    "virtualisation": "kvm",
    "ovs": "3.1.0",
    "iperf3": "3.12",
    "iproute2": "6.1.0",
    "lxc": "5.0.2",
    "distribution": "Debian GNU/Linux 12",
}


def goodput_bps(rate_bps: int) -> float:
    return rate_bps * 1448 / 1514


def _link(
    noise: random.Random, rate_bps: int, when: str, test: str, sender: str, receiver: str
) -> Record:
    expected = goodput_bps(rate_bps)
    low = -0.09 if test == "ring" else -0.08 if rate_bps >= 1_000_000_000 else -0.05
    deviation = noise.uniform(-0.05, -0.02) if test == "ring" else noise.uniform(-0.012, 0.008)
    return {
        "when": when,
        "test": test,
        "sender": sender,
        "receiver": receiver,
        "expected_bps": expected,
        "measured_bps": expected * (1 + deviation),
        "deviation": deviation,
        "tolerance": [low, 0.03],
        "retransmits": noise.randrange(3),
        "ok": True,
        "attempt": 1,
    }


def verdict(noise: random.Random, nodes: int, rate_bps: int | None) -> Record:
    if nodes == 1:
        return {"status": "not_applicable", "reasons": [], "links": [], "qdiscs": []}
    links = []
    if rate_bps is not None:
        names = [f"n{k + 1}" for k in range(nodes)]
        for when in ("before", "after"):
            for one, other in zip(names[::2], names[1::2], strict=False):
                links.append(_link(noise, rate_bps, when, "pair", one, other))
                links.append(_link(noise, rate_bps, when, "pair", other, one))
            for one, other in zip(names, [*names[1:], names[0]], strict=True):
                links.append(_link(noise, rate_bps, when, "ring", one, other))
    status = "not_gated" if rate_bps is None else "pass"
    return {"status": status, "reasons": [], "links": links, "qdiscs": []}


def record(
    *,
    nodes: int = 2,
    rate_bps: int | None = 10_000_000,
    repeat: int = 0,
    mode: str = "isolated",
    scaling: str = "strong",
    noise: float = 0.02,
    **changed: Any,
) -> Record:
    """One trial that went well; ``changed`` replaces top-level keys."""
    identity = f"{nodes}-{rate_bps}-{repeat}-{mode}-{scaling}"
    dice = random.Random(identity)
    shared_work = nodes if scaling == "strong" and mode != "shared" else 1
    compute = STEP_OF_ONE_S / shared_work
    link = goodput_bps(rate_bps) / 8 if rate_bps else 150e6
    bound = 2 * (nodes - 1) / nodes * GRADIENT_BYTES / link
    level = dice.gauss(1, noise)
    steps = [
        (compute + bound * 1.06 + 0.002 * (nodes - 1)) * level * dice.uniform(0.98, 1.04)
        for _ in range(STEPS)
    ]
    batch = 256 * nodes if scaling == "weak" else 256
    per_node = round(2 * (nodes - 1) / nodes * GRADIENT_BYTES * STEPS * 1.06)
    names = [f"n{k + 1}" for k in range(nodes)]
    accuracy = dice.uniform(0.70, 0.72)
    made: Record = {
        "format": 1,
        "trial_id": f"{abs(hash_of(identity)):012x}",
        "attempt": 1,
        "status": "ok",
        "reasons": [],
        "mode": mode,
        "backend": "lxc",
        "nodes": nodes,
        "strategy": "multi-worker-mirrored",
        "workload": "fashion-mnist",
        "model": "lenet5",
        "global_batch_size": batch,
        "per_replica_batch_size": batch // nodes,
        "scaling": scaling,
        "steps": STEPS,
        "seed": 1 + repeat,
        "repeat": repeat,
        "train_time_s": sum(steps),
        "step_times_s": steps,
        "warmup_step_times_s": [2.1, 0.3],
        "samples_total": batch * STEPS,
        "losses": [2.3 - 0.05 * step for step in range(STEPS)],
        "final_loss": 0.85,
        "final_accuracy": accuracy,
        "evaluations": [
            {
                "step": step,
                "samples": step * batch,
                "time_s": sum(steps[:step]),
                "loss": 2.3 - 0.05 * step,
                "accuracy": accuracy * (step / STEPS) ** 0.5,
            }
            for step in (10, 20, 30)
        ],
        "verdict": verdict(dice, nodes, rate_bps),
        "overhead_s": {
            "provision": dice.uniform(0.2, 0.4),
            "shape": 0.02 * nodes,
            "verify_before": 2.4 if nodes > 1 else 0.0,
            "push": 0.4,
            "start": dice.uniform(8, 10),
            "evaluate": 0.9,
            "verify_after": 2.4 if nodes > 1 else 0.0,
            "collect": 0.1,
            "teardown": 0.2,
        },
        "bytes_sent": dict.fromkeys(names, per_node),
        "bytes_received": dict.fromkeys(names, per_node),
        "started_at": 1_750_000_000.0 + 60 * repeat + nodes,
        "ended_at": 1_750_000_030.0 + 60 * repeat + nodes,
        "compute": {
            "quota_period_us": 100_000,
            "threads": 1,
            "host_cores": 2,
            **({} if mode == "shared" else {"cpu_cores": 0.4, "budget_fraction": 0.2 * nodes}),
        },
        "work": {
            "parameters": 61_706,
            "gradient_bytes": GRADIENT_BYTES,
            "optimizer": "sgd",
            "learning_rate": 0.05,
            "data_sha256": "ab" * 32,
            "collective": "ring",
            "warmup_steps": 2,
        },
        "bound": {"communication_s": bound},
        "resources": {"host_idle_mean": 0.3, "host_idle_min": 0.1, "steal": 0.0},
        "manifest": copy.deepcopy(MANIFEST),
    }
    if nodes > 1:
        made["network"] = {
            "switch": "openvswitch",
            "datapath": "userspace",
            "mtu": 1500,
            "delay_us": 0,
            "loss": 0.0,
            "congestion_control": "cubic",
        }
        if rate_bps is not None:
            made["rate_bps"] = rate_bps
            made["network"]["expected_goodput_bps"] = goodput_bps(rate_bps)
    made.update(changed)
    return made


def hash_of(text: str) -> int:
    return random.Random(text).getrandbits(48)


def sweep(
    *,
    nodes: Sequence[int] = (1, 2, 4),
    rates: Sequence[int | None] = (10_000_000, 30_000_000, 100_000_000),
    repeats: int = 3,
    **settings: Any,
) -> list[Record]:
    """A whole sweep; one node runs once per repeat, whatever the rates."""
    return [
        record(nodes=count, rate_bps=rate, repeat=repeat, **settings)
        for repeat in range(repeats)
        for count in nodes
        for rate in (rates if count > 1 else (None,))
    ]


def invalid(**settings: Any) -> Record:
    """A trial whose links were not as ordered: one reads 57 times the rate (no queue at all)."""
    made = record(**settings)
    made["status"] = "invalid"
    made["reasons"] = ["link n1 -> n2 before: 570.0 Mbit/s, expected 9.6"]
    made["verdict"]["status"] = "fail"
    made["verdict"]["reasons"] = list(made["reasons"])
    broken = made["verdict"]["links"][0]
    broken["measured_bps"] = 570e6
    broken["deviation"] = 570e6 / broken["expected_bps"] - 1
    broken["ok"] = False
    made["train_time_s"] = 0.5  # too good to be true: must never be drawn
    made["attempt"] = 1
    return made


def failed(**settings: Any) -> Record:
    """A trial that a worker ended: nothing was measured, so nothing is there."""
    made = record(**settings)
    gone = (
        "train_time_s step_times_s warmup_step_times_s samples_total losses final_loss "
        "final_accuracy evaluations bytes_sent bytes_received bound resources"
    )
    for key in gone.split():
        del made[key]
    made["status"] = "failed"
    made["reasons"] = ["n2: <Killed> & gone, last line: MemoryError"]
    return made


def without(records: Iterable[Record], *keys: str) -> list[Record]:
    """The same records without these top-level keys."""
    return [{key: kept for key, kept in one.items() if key not in keys} for one in records]
