"""Everything that can be known before a trial touches the machine, said at once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator

import psutil

from testbed.errors import InputError, MissingCapability
from testbed.experiment.payload import data_sha256
from testbed.experiment.trial import Trial, budget_fault
from testbed.host.local import LocalHost
from testbed.network.shape import require_netem
from testbed.provision.cluster import BACKENDS
from testbed.provision.switch import kernel_datapath, overload_warning

WORKER_BYTES = 700_000_000  # of one TensorFlow worker in training, measured (docs/workloads.md)
_NODE_PROGRAMS = ("sshd", "tc", "ip", "iperf3", "nsenter", "ss")
_PACKAGES = {
    "sshd": "openssh-server",
    "tc": "iproute2",
    "ip": "iproute2",
    "ss": "iproute2",
    "nsenter": "util-linux",
    "unshare": "util-linux",
    "setpriv": "util-linux",
    "pivot_root": "util-linux",
    "lxc-start": "lxc",
    "ovs-vswitchd": "openvswitch-switch",
}


def check(trials: Iterable[Trial], say: Callable[[str], None]) -> None:
    """Return if this machine can run these trials; ``say`` gets warnings.

    Raises:
        MissingCapability: no root, a program, or netem is missing.
        InputError: too little memory, or budgets beyond the processors.
        DataError: a data set is missing or its bytes are wrong.
    """
    wanted = tuple(trials)
    require_root()
    missing = sorted(set(_missing_programs(wanted)))
    if missing:
        packages = " ".join(sorted({_PACKAGES.get(name, name) for name in missing}))
        raise MissingCapability(
            f"programs are missing: {', '.join(missing)}", mend=f"apt-get install {packages}"
        )
    if any(trial.shape.delay_us or trial.shape.loss for trial in wanted):
        require_netem(LocalHost())
    refused = [*_budgets(wanted), *_memory(wanted)]
    if refused:
        raise InputError("\n".join(refused))
    for workload in sorted({trial.workload for trial in wanted if trial.script is None}):
        data_sha256(workload, say)
    for warning in sorted(set(_warnings(wanted))):
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


def _missing_programs(trials: tuple[Trial, ...]) -> Iterator[str]:
    for trial in trials:
        programs = [*_NODE_PROGRAMS, *BACKENDS[trial.backend].PROGRAMS]
        if trial.switch == "openvswitch":
            programs.append("ovs-vswitchd")
        yield from (name for name in programs if shutil.which(name) is None)


def _budgets(trials: tuple[Trial, ...]) -> Iterator[str]:
    cores = psutil.cpu_count() or 1
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


def _warnings(trials: tuple[Trial, ...]) -> Iterator[str]:
    datapath = "kernel" if kernel_datapath() else "userspace"
    for trial in trials:
        scenario = trial.scenario()
        if scenario.lan.switch == "openvswitch" and trial.nodes > 1:
            found = overload_warning(scenario, "kernel" if datapath == "kernel" else "userspace")
            if found is not None:
                yield found
