"""How fast the testbed itself is: `make bench`. Writes results/bench/bench.json and prints a table.

Medians and ranges over rounds; sizes and backends alternate within a round, so that a machine that
changes its mind changes all of them. Run it alone: docs/benchmarks.md says how to read it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

from testbed.cli.screen import say, show_table
from testbed.experiment.manifest import machine_manifest
from testbed.experiment.preflight import check, host_cores
from testbed.experiment.runner import run_trial
from testbed.experiment.trial import Trial, default_cpu_cores
from testbed.files import write_whole
from testbed.provision import leftovers
from testbed.provision.cluster import bring_up
from testbed.scenario import generate
from testbed.scenario.model import Shape

FOLDER = Path("results/bench")
SIZES = (4, 16, 64)
KINDS = (("lxc", "openvswitch"), ("lxc", "virtual_bridge"), ("netns", "virtual_bridge"))
IPERF3_PHASES = ("verify_before", "verify_after")
COMMANDS = {
    "testbed --help": (sys.executable, "-m", "testbed", "--help"),
    "make scenario": ("make", "scenario", "NODES=4", "BW=10mbit"),
}

Times = dict[str, list[float]]


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--no-trial", action="store_true", help="leave the training out")
    options = parser.parse_args()
    leftovers.clean()
    times: Times = defaultdict(list)
    for number in range(1, options.rounds + 1):
        say(f"round {number} of {options.rounds}")
        for size in SIZES:
            for backend, switch in KINDS:
                _cluster(times, size, backend, switch)
        for name, argv in COMMANDS.items():
            began = time.perf_counter()
            subprocess.run(argv, check=True, capture_output=True)
            times[name].append(time.perf_counter() - began)
        if not options.no_trial:
            _trial(times)
    rows = {name: _summary(values) for name, values in times.items()}
    show_table(
        ("what", "median s", "range s", "n"),
        [
            [name, f"{row['median']:.3f}", f"{row['min']:.3f}-{row['max']:.3f}", str(row["n"])]
            for name, row in rows.items()
        ],
    )
    content = {"format": 1, "unit": "s", "times": rows, "raw": times}
    content["manifest"] = machine_manifest()
    path = FOLDER / "bench.json"
    write_whole(path, json.dumps(content, indent=1).encode() + b"\n")
    print(path)


def _cluster(times: Times, size: int, backend: str, switch: Any) -> None:
    """Up to an SSH banner of every node with links shaped (a running switch), and down again."""
    scenario = generate.star(size, Shape(rate_bps=10_000_000), switch=switch)
    what = f"{size:3} nodes, {backend} on {switch}"
    began = time.perf_counter()
    cluster = bring_up(scenario, backend)
    try:
        cluster.shape()
        up_s = time.perf_counter() - began
    finally:
        began = time.perf_counter()
        cluster.close()
        down_s = time.perf_counter() - began
    times[f"{what}: up"].append(up_s - cluster.switch_s)
    times[f"{what}: switch start"].append(cluster.switch_s)
    times[f"{what}: down"].append(down_s)


def _trial(times: Times) -> None:
    """A 4-node trial's overhead: all but training and iperf3's own seconds."""
    trial = Trial(
        nodes=4,
        shape=Shape(rate_bps=100_000_000),
        cpu_cores=default_cpu_cores(host_cores(), 4),
        steps=5,
    )
    check([trial], say)
    logs = FOLDER / "logs"
    record = run_trial(trial, attempt=1, logs=logs, say=lambda _: None)
    if record["status"] == "failed":
        raise SystemExit(f"the trial failed: {record['reasons']}")
    overhead = dict(record["overhead_s"])
    measured = sum(link["seconds"] for link in _rounds(record))
    for phase, seconds in overhead.items():
        times[f"trial of 4 nodes: {phase}"].append(seconds)
    times["trial of 4 nodes: iperf3's own seconds"].append(measured)
    times["trial of 4 nodes: all overhead less iperf3's and start"].append(
        sum(overhead.values()) - overhead["start"] - measured
    )


def _rounds(record: dict[str, Any]) -> list[dict[str, Any]]:
    """Return one link of each round of simultaneous measurements."""
    rounds: dict[tuple[Any, ...], dict[str, Any]] = {}
    for link in record["verdict"]["links"]:
        # Pairs there and back are two rounds, the ring is one.
        forward = link["test"] == "ring" or link["sender"] < link["receiver"]
        rounds[link["when"], link["test"], link["attempt"], forward] = link
    return list(rounds.values())


def _summary(values: list[float]) -> dict[str, float]:
    return {"median": median(values), "min": min(values), "max": max(values), "n": len(values)}


if __name__ == "__main__":
    os.environ.setdefault("LC_ALL", "C.UTF-8")
    main()
