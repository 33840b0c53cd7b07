"""What a machine can and cannot do for the testbed, with the command that mends each gap.

Probed, never assumed, and nothing is changed: queues are tried in a network namespace that ends
with the command. Facts about Python are those of the interpreter that runs this.
"""

from __future__ import annotations

import importlib.util
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from testbed.errors import HostError
from testbed.host.base import Completed, Host
from testbed.host.group import in_parallel

APT = "sudo apt-get install --no-install-recommends"
NETEM_MEND = (
    f'{APT} "linux-modules-extra-$(uname -r)"  '
    "# or boot a kernel with CONFIG_NET_SCH_NETEM; no delay and loss until then"
)
PYTHONS = ((3, 11), (3, 13))  # TensorFlow has wheels for these
WORKER_MEMORY_GB = 0.7  # of one TensorFlow 2.21 worker, measured
DATA_FOLDER = PurePosixPath("/usr/share/datasets/fashion-mnist")

# Programs, the words that make them tell their version, and their Debian package.
PROGRAMS: dict[str, tuple[tuple[str, ...], str]] = {
    "lxc-start": (("--version",), "lxc"),
    "ovs-vswitchd": (("--version",), "openvswitch-switch"),
    "ovsdb-server": (("--version",), "openvswitch-switch"),
    "ovs-vsctl": (("--version",), "openvswitch-switch"),
    "ip": (("-V",), "iproute2"),
    "tc": (("-V",), "iproute2"),
    "ss": (("-V",), "iproute2"),
    "iperf3": (("--version",), "iperf3"),
    "ethtool": (("--version",), "ethtool"),
    "sshd": ((), "openssh-server"),
}
QDISC_TRIALS: dict[str, tuple[str, ...]] = {
    "tbf": ("tbf", "rate", "1000000bit", "burst", "5120b", "latency", "50000us"),
    "netem": ("netem", "delay", "1000us"),
}

# An ordinary user's PATH may lack the sbin folders.
_WHICH = 'PATH=$PATH:/usr/sbin:/sbin; for p; do printf "%s=%s\\n" "$p" "$(command -v "$p")"; done'
_CGROUP_V1 = ("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(frozen=True, kw_only=True)
class Capability:
    """One thing that the testbed asks of a machine; ``mend`` is empty where nothing is missing."""

    name: str
    found: bool
    detail: str
    needed_for: str
    mend: str = ""


def probe(host: Host) -> list[Capability]:
    """Return what the machine can do, in the order in which a user would mend it.

    Takes well under 2 s and changes nothing.
    """
    paths = _programs(host)
    parts: list[Callable[[], list[Capability]]] = [
        lambda: [_root(host)],
        lambda: _tools(host, paths),
        lambda: [_datapath(host)],
        lambda: [_qdisc(host, paths, "tbf", "limited links", "", f"{APT} iproute2")],
        lambda: [_qdisc(host, paths, "netem", "delay and loss", "sch_netem", NETEM_MEND)],
        lambda: [_cubic(host)],
        lambda: _cgroup(host),
        lambda: _hardware(host),
        lambda: [_python(), _tensorflow(), _data_set(host)],
    ]
    return [capability for part in in_parallel(lambda act: act(), parts) for capability in part]


def qdisc_kind_works(host: Host, kind: str) -> bool:
    """Return whether the machine's kernel has a kind of queue ("tbf", "netem").

    Tried on the loopback of a new network namespace that ends with the command; where none may
    be made, the module's presence decides.
    """
    namespace: tuple[str, ...] = ("unshare", "--net")
    if _said(host, "id", "-u") != "0":
        namespace = ("unshare", "--user", "--map-root-user", "--net")
    trial = ("tc", "qdisc", "add", "dev", "lo", "root", *QDISC_TRIALS[kind])
    done = _try(host, *namespace, *trial)
    if done is not None and done.exit_status == 0:
        return True
    if done is not None and "unshare" not in done.stderr:
        return False
    return _module_is_there(host, f"sch_{kind}")


def _programs(host: Host) -> dict[str, str]:
    """Return where each program is, "" where it is not."""
    lines = (_said(host, "sh", "-c", _WHICH, "which", *PROGRAMS) or "").splitlines()
    found = dict(line.split("=", 1) for line in lines if "=" in line)
    return {program: found.get(program, "") for program in PROGRAMS}


def _tools(host: Host, paths: Mapping[str, str]) -> list[Capability]:
    def version(program: str) -> str:
        words, _ = PROGRAMS[program]
        path = paths[program]
        if not path:
            return ""
        return (_said(host, path, *words) if words else path) or path

    versions = dict(zip(PROGRAMS, in_parallel(version, list(PROGRAMS)), strict=True))
    ovs = ("ovs-vswitchd", "ovsdb-server", "ovs-vsctl")
    iproute2 = ("ip", "tc", "ss")
    return [
        _tool("LXC", ("lxc-start",), versions, "nodes of backend lxc (else: BACKEND=netns)"),
        _tool("Open vSwitch", ovs, versions, "SWITCH=openvswitch (else: virtual_bridge)"),
        _tool("iproute2", iproute2, versions, "every link"),
        _tool("iperf3", ("iperf3",), versions, "the verification of links"),
        _tool("sshd", ("sshd",), versions, "reaching the nodes"),
        _tool("ethtool", ("ethtool",), versions, "TCP over Open vSwitch's userspace datapath"),
    ]


def _tool(
    name: str, programs: tuple[str, ...], versions: Mapping[str, str], needed_for: str
) -> Capability:
    missing = [program for program in programs if not versions[program]]
    package = PROGRAMS[programs[0]][1]
    return Capability(
        name=name,
        found=not missing,
        detail=f"no {', '.join(missing)}" if missing else versions[programs[0]].splitlines()[0],
        needed_for=needed_for,
        mend=f"{APT} {package}" if missing else "",
    )


def _root(host: Host) -> Capability:
    uid = _said(host, "id", "-u")
    return Capability(
        name="root",
        found=uid == "0",
        detail="yes" if uid == "0" else f"user id {uid}",
        needed_for="nodes, links and CPU budgets (not for make demo, plots, report)",
        mend="" if uid == "0" else "sudo make run",
    )


def _datapath(host: Host) -> Capability:
    kernel = _module_is_there(host, "openvswitch")
    return Capability(
        name="Open vSwitch kernel datapath",
        found=kernel,
        detail="kernel module openvswitch"
        if kernel
        else "no module openvswitch: its userspace datapath is used (about 500 Mbit/s in all)",
        needed_for="more than about 500 Mbit/s in all over SWITCH=openvswitch",
        mend="" if kernel else "make run SWITCH=virtual_bridge  # or a kernel with openvswitch",
    )


def _qdisc(
    host: Host, paths: Mapping[str, str], kind: str, needed_for: str, module: str, mend: str
) -> Capability:
    works = bool(paths["tc"]) and qdisc_kind_works(host, kind)
    missing = f"the kernel has no {module or f'sch_{kind}'}" if paths["tc"] else "no tc"
    return Capability(
        name=f"tc {kind}",
        found=works,
        detail="works" if works else missing,
        needed_for=needed_for,
        mend="" if works else mend if paths["tc"] else f"{APT} iproute2",
    )


def _cubic(host: Host) -> Capability:
    available = _read(host, "/proc/sys/net/ipv4/tcp_available_congestion_control").split()
    found = "cubic" in available or _module_is_there(host, "tcp_cubic")
    return Capability(
        name="TCP cubic",
        found=found,
        detail=f"available: {' '.join(available)}" if available else "unknown",
        needed_for="training at the bound (10 mbit: cubic 1.04 of it, bbr 1.15)",
        mend="" if found else "sudo modprobe tcp_cubic",
    )


def _cgroup(host: Host) -> list[Capability]:
    unified = _read(host, "/sys/fs/cgroup/cgroup.controllers").split()
    version = "v2" if unified else "v1"
    capabilities = []
    for controller, v1_file, what in (
        ("cpu", _CGROUP_V1[0], "CPU budgets (mode isolated)"),
        ("memory", _CGROUP_V1[1], "memory limits of nodes"),
    ):
        found = controller in unified if unified else bool(_said(host, "ls", v1_file))
        mend = f"boot the kernel with cgroup_enable={controller}"
        capabilities.append(
            Capability(
                name=f"cgroup {controller}",
                found=found,
                detail=f"cgroup {version}" if found else f"no {controller} controller",
                needed_for=what,
                mend="" if found else mend,
            )
        )
    return capabilities


def _hardware(host: Host) -> list[Capability]:
    cores = _said(host, "nproc") or "0"
    # Lines such as "MemTotal:  24000000 kB"
    memory = {
        line.split(":")[0]: int(line.split()[1]) * 1024
        for line in _read(host, "/proc/meminfo").splitlines()
        if line.startswith(("MemTotal:", "MemAvailable:"))
    }
    available_gb = memory.get("MemAvailable", 0) / 1e9
    workers = int(available_gb / WORKER_MEMORY_GB)
    return [
        Capability(
            name="cores",
            found=int(cores) >= 2,
            detail=cores,
            needed_for="nodes that each have their own CPU budget",
            mend="" if int(cores) >= 2 else "use a machine with 2 cores or more",
        ),
        Capability(
            name="memory",
            found=workers >= 2,
            detail=f"{memory.get('MemTotal', 0) / 1e9:.1f} GB, {available_gb:.1f} GB available: "
            f"about {workers} TensorFlow workers",
            needed_for=f"about {WORKER_MEMORY_GB} GB per TensorFlow worker",
            mend="" if workers >= 2 else "close other programs, or use fewer NODES",
        ),
    ]


def _python() -> Capability:
    low, high = PYTHONS
    found = low <= sys.version_info[:2] <= high
    span = f"{low[0]}.{low[1]} to {high[0]}.{high[1]}"
    return Capability(
        name="Python",
        found=found,
        detail=platform.python_version(),
        needed_for=f"TensorFlow, which has wheels for {span}",
        mend="" if found else "make setup  # finds or names a Python that fits",
    )


def _tensorflow() -> Capability:
    found = importlib.util.find_spec("tensorflow") is not None  # importing it takes seconds
    return Capability(
        name="TensorFlow",
        found=found,
        detail="installed" if found else "not installed",
        needed_for="training",
        mend="" if found else "make setup",
    )


def _data_set(host: Host) -> Capability:
    found = bool(_said(host, "ls", str(DATA_FOLDER)))
    return Capability(
        name="Fashion-MNIST",
        found=found,
        detail=str(DATA_FOLDER) if found else f"no {DATA_FOLDER}",
        needed_for="the default workload",
        mend="" if found else f"{APT} dataset-fashion-mnist",
    )


def _module_is_there(host: Host, module: str) -> bool:
    """Return whether a module is loaded, built in with parameters, or could be loaded."""
    if _said(host, "ls", "-d", f"/sys/module/{module}"):
        return True
    done = _try(host, "modprobe", "-n", "-q", module)
    return done is not None and done.exit_status == 0


def _said(host: Host, *argv: str) -> str:
    """Return what a command wrote, stripped; "" if it failed or is not there."""
    done = _try(host, *argv)
    return done.stdout.strip() if done is not None and done.exit_status == 0 else ""


def _read(host: Host, path: str) -> str:
    return _said(host, "cat", path)


def _try(host: Host, *argv: str) -> Completed | None:
    try:
        return host.run(argv, timeout_s=5.0, check=False)
    except HostError:
        return None  # the program is not there, which is an answer here
