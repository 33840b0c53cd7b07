"""Everything that can be known before a trial touches the machine, said at once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator

import psutil

from testbed.errors import InputError, MissingCapability
from testbed.experiment.payload import data_sha256
from testbed.experiment.trial import Trial, budget_fault
from testbed.host.capabilities import PROGRAMS
from testbed.host.local import LocalHost
from testbed.network.shape import require_netem
from testbed.provision.cluster import BACKENDS
from testbed.provision.switch import Datapath, kernel_datapath, overload_warning
from testbed.scenario.model import Scenario

WORKER_BYTES = 700_000_000  # of one TensorFlow worker in training, measured (docs/workloads.md)
_NODE_PROGRAMS = ("sshd", "tc", "ip", "iperf3", "nsenter", "ss")
_UTIL_LINUX = ("nsenter", "unshare", "setpriv", "pivot_root")
# Each program's Debian package.
_PACKAGES = dict.fromkeys(_UTIL_LINUX, "util-linux") | {
    program: package for program, (_, package) in PROGRAMS.items()
}


def check(trials: Iterable[Trial], say: Callable[[str], None]) -> None:
    """Return if this machine can run these trials; ``say`` gets warnings.

    Raises:
        MissingCapability: no root, a program, or netem is missing.
        InputError: too little memory, or budgets beyond the processors.
        DataError: a data set is missing or its bytes are wrong.
    """
    wanted = tuple(trials)
    # Each scenario once: a sweep has few, and many trials of each.
    clusters = {(trial.scenario(), trial.backend) for trial in wanted}
    warnings: set[str] = set()
    for scenario, backend in clusters:
        check_cluster(scenario, backend, warnings.add)
    for warning in sorted(warnings):
        say(warning)
    refused = [*_budgets(wanted), *_memory(wanted)]
    if refused:
        raise InputError("\n".join(refused))
    for workload in sorted({trial.workload for trial in wanted if trial.script is None}):
        data_sha256(workload, say)


def host_cores() -> int:
    """Return how many processors this host has."""
    return psutil.cpu_count() or 1


def check_cluster(scenario: Scenario, backend: str, say: Callable[[str], None]) -> None:
    """Return if this machine can start these nodes; ``say`` gets warnings.

    Raises:
        InputError: there is no such backend.
        MissingCapability: no root, a program, or netem is missing.
    """
    if backend not in BACKENDS:
        raise InputError(f"backend {backend!r}: expected {' or '.join(BACKENDS)}")
    require_root()
    missing = sorted(set(_missing_programs(backend, scenario.lan.switch)))
    if missing:
        packages = " ".join(sorted({_PACKAGES.get(name, name) for name in missing}))
        raise MissingCapability(
            f"programs are missing: {', '.join(missing)}", mend=f"apt-get install {packages}"
        )
    if any(node.shape.delay_us or node.shape.loss for node in scenario.nodes):
        require_netem(LocalHost())
    if scenario.lan.switch == "openvswitch" and len(scenario.nodes) > 1:
        datapath: Datapath = "kernel" if kernel_datapath() else "userspace"
        if warning := overload_warning(scenario, datapath):
            say(f"warning: {warning}")


def require_root() -> None:
    """Return if we may make namespaces.

    Raises:
        MissingCapability: we are not root.
    """
    if os.geteuid() != 0:
        raise MissingCapability(
            "nodes need root: namespaces, bridges and traffic control are made for them",
            mend="sudo -E make ..., or sudo .venv/bin/testbed ...",
        )


def _missing_programs(backend: str, switch: str) -> Iterator[str]:
    programs = [*_NODE_PROGRAMS, *BACKENDS[backend].PROGRAMS]
    if switch == "openvswitch":
        programs += ["ovs-vswitchd", "ethtool"]
    yield from (name for name in programs if shutil.which(name) is None)


def _budgets(trials: tuple[Trial, ...]) -> Iterator[str]:
    cores = host_cores()
    found = {budget_fault(cores, trial.budgets) for trial in trials if trial.cpu_cores is not None}
    yield from sorted(fault for fault in found if fault)


def _memory(trials: tuple[Trial, ...]) -> Iterator[str]:
    available = psutil.virtual_memory().available
    most = max(trial.nodes for trial in trials)
    if most * WORKER_BYTES > available:
        yield (
            f"{most} nodes need about {most * WORKER_BYTES / 1e9:.1f} GB of memory (0.7 GB for "
            f"each TensorFlow worker), and {available / 1e9:.1f} GB are free: use fewer nodes, or "
            "end other programs"
        )
    least = min(min(node.memory_bytes for node in trial.scenario().nodes) for trial in trials)
    if least < WORKER_BYTES:
        yield (
            f"nodes of {least / 1e6:.0f} MB: a TensorFlow worker needs about 0.7 GB; "
            "write MEM=1G or more"
        )
