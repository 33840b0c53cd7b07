"""One trial from nothing to a record: up, shaped, verified, trained, verified again, down."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed.errors import TestbedError, WorkerFailed
from testbed.experiment import gates, payload, record
from testbed.experiment.manifest import machine_manifest
from testbed.experiment.monitor import HostMonitor
from testbed.experiment.trial import Trial
from testbed.experiment.workers import Event, Workers
from testbed.files import make_folder
from testbed.host.group import in_parallel
from testbed.host.push import push_to_all
from testbed.host.ssh import SshHost
from testbed.network.verdict import Verdict, When, merge
from testbed.network.verify import verify
from testbed.provision.cgroup import CgroupStats
from testbed.provision.cluster import Cluster, LiveNode, bring_up
from testbed.scenario.vnx import render
from testbed.workload.cluster_spec import ClusterSpec

FORMAT = 1
WORKER_PORT = 23456  # every trial has a network of its own, so its port is fresh
READY_S = 240.0  # start-up and warm-up: 13 s were seen with 0.25 core for each of four workers
STALL_S = 300.0  # without any word from any worker; a step on a 1 mbit link may take a minute
END_S = 60.0

Say = Callable[[str], None]


@dataclass
class _Progress:
    """What a trial has measured so far; it becomes the record, however the trial ends."""

    record: dict[str, Any]
    overhead_s: dict[str, float] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time a phase of overhead; its time is kept also when it fails."""
        began = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - began
            self.overhead_s[name] = round(self.overhead_s.get(name, 0.0) + spent, 6)


def run_trial(trial: Trial, *, attempt: int, logs: Path, say: Say) -> dict[str, Any]:
    """Run one trial and return its record, whatever becomes of it.

    ``logs`` is the folder for NODE.log. ``say`` gets a word for each phase. What a user can mend
    (a link out of tolerance, a worker that failed) is in the record; bugs and Ctrl-C are raised.
    """
    scenario = trial.scenario()
    progress = _Progress(
        record={
            "format": FORMAT,
            **trial.record_keys(),
            "attempt": attempt,
            "started_at": record.now(),
            "scenario_sha256": hashlib.sha256(render(scenario)).hexdigest(),
            "compute": record.compute_of(trial),
            "manifest": machine_manifest(),
        }
    )
    make_folder(logs)
    try:
        with progress.phase("provision"):
            cluster = bring_up(scenario, trial.backend)
        try:
            status = _on_cluster(trial, cluster, progress, logs, say)
        finally:
            with progress.phase("teardown"):
                cluster.close()
    except TestbedError as error:
        status = "failed"
        progress.reasons.append(str(error))
    return progress.record | {
        "status": status,
        "reasons": progress.reasons,
        "overhead_s": progress.overhead_s,
        "ended_at": record.now(),
    }


def _on_cluster(trial: Trial, cluster: Cluster, progress: _Progress, logs: Path, say: Say) -> str:
    """Shape, verify, train, verify again; return the trial's status."""
    progress.record["network"] = record.network_of(cluster)
    with progress.phase("shape"):
        cluster.shape()
    before = _verify(cluster, "before", progress, say)
    progress.record["verdict"] = before.to_json()
    if before.status == "fail":
        progress.reasons.extend(before.reasons)
        return "invalid"
    with ExitStack() as stack:
        with progress.phase("connect"):
            hosts = stack.enter_context(cluster.sessions())
        say("push")
        with progress.phase("push"):
            _push(trial, cluster, hosts, say)
        outcome = _train(trial, cluster, hosts, progress, logs, say)
        after = _verify(cluster, "after", progress, say)
        verdict = merge(before, after)
        progress.record["verdict"] = verdict.to_json()
        with progress.phase("collect"):
            results = _collect(hosts)
    digest = "" if trial.script else payload.data_sha256(trial.workload, say)
    progress.record |= record.measured(trial, cluster, results, outcome, digest)
    facts = record.facts_of(trial, cluster, results, outcome)
    if bound := record.bound_of(facts):
        progress.record["bound"] = bound
    progress.reasons.extend([*verdict.reasons, *gates.faults(facts)])
    return "invalid" if progress.reasons else "ok"


def _verify(cluster: Cluster, when: When, progress: _Progress, say: Say) -> Verdict:
    say(f"verify links {when}")
    with progress.phase(f"verify_{when}"):
        return verify(cluster.links(), when=when)


def _push(trial: Trial, cluster: Cluster, hosts: Sequence[SshHost], say: Say) -> None:
    push_to_all(hosts, payload.trial_files(trial, say))
    names = tuple(live.name for live in cluster.nodes)
    workers = tuple(f"{live.node.address.ip}:{WORKER_PORT}" for live in cluster.nodes)

    def put_spec(pair: tuple[int, SshHost]) -> None:
        rank, host = pair
        device = cluster.nodes[rank].node.device
        spec = ClusterSpec(workers=workers, rank=rank, names=names, device=device)
        host.put(spec.to_json().encode(), payload.CLUSTER_FILE)

    in_parallel(put_spec, list(enumerate(hosts)))


def _train(
    trial: Trial,
    cluster: Cluster,
    hosts: Sequence[SshHost],
    progress: _Progress,
    logs: Path,
    say: Say,
) -> record.Outcome:
    say("start workers")
    # -P: the folder of the user's script must not shadow modules; -B: the node keeps no bytecode.
    argv = (
        *(sys.executable, "-B", "-P", "-m", "workload"),
        *map(str, (payload.JOB_FILE, payload.CLUSTER_FILE, payload.RESULT_FILE)),
    )
    environment = {"PYTHONPATH": str(payload.REMOTE), "PYTHONUNBUFFERED": "1"}
    began = time.perf_counter()
    with Workers(hosts, argv, environment=environment, folder=payload.REMOTE, logs=logs) as workers:
        workers.wait_for("ready", stall_s=READY_S)
        progress.overhead_s["start"] = round(time.perf_counter() - began, 6)
        budgets = record.budgets_of(trial, cluster)
        for live in cluster.nodes:
            live.cgroup.set_cpu_budget(budgets.get(live.name))
        before = _stats(cluster.nodes)
        say("train")
        with HostMonitor() as monitor:
            workers.say("go")
            workers.wait_for("trained", stall_s=STALL_S, on_event=_teller(say))
        after = _stats(cluster.nodes)
        with progress.phase("evaluate"):
            workers.wait_for("done", stall_s=STALL_S)
            workers.wait_for_end(timeout_s=END_S)
    for live in cluster.nodes:
        live.cgroup.set_cpu_budget(None)
    return record.Outcome(host=monitor.use(), before=before, after=after)


def _teller(say: Say) -> Callable[[Event], None]:
    def tell(event: Event) -> None:
        if event.name == "progress":
            say(f"train: step {event.values.get('step')} of {event.values.get('steps')}")

    return tell


def _stats(nodes: Sequence[LiveNode]) -> dict[str, CgroupStats]:
    return {live.name: live.cgroup.stats() for live in nodes}


def _collect(hosts: Sequence[SshHost]) -> dict[str, dict[str, Any]]:
    def collect(host: SshHost) -> dict[str, Any]:
        result = json.loads(host.get(payload.RESULT_FILE))
        if not isinstance(result, dict) or result.get("format") != FORMAT:
            raise WorkerFailed(host.name, f"its result is not of format {FORMAT}")
        return result

    return dict(zip((host.name for host in hosts), in_parallel(collect, hosts), strict=True))
