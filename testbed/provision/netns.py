"""Backend ``netns``: nodes of plain namespaces, with the same root, sshd and capabilities as LXC's.

For machines without LXC. Each node has network, UTS, PID, IPC and mount namespaces of its own.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from testbed.errors import HostError, ProvisionError
from testbed.provision.cgroup import NodeCgroup
from testbed.provision.lab import Lab
from testbed.provision.skeleton import CAPABILITIES, INIT, NodePlan, python_folders

PROGRAMS = ("unshare", "setpriv", "pivot_root")

_DEVICES = (("null", 3), ("zero", 5), ("full", 7), ("random", 8), ("urandom", 9))
# What LXC's proc:mixed protects.
_READ_ONLY_PROC = ("proc/sys", "proc/sysrq-trigger", "proc/irq", "proc/bus")


def start(lab: Lab, plans: Sequence[NodePlan], cgroups: Sequence[NodeCgroup]) -> None:
    """Start every node; their links' other ends stand in the lab, attached to nothing yet.

    Raises:
        ProvisionError: the nodes' links or processes could not be made.
    """
    try:
        links = "".join(f"{line}\n" for plan in plans for line in link_commands(plan))
        lab.host.run(("ip", "-batch", "-"), stdin=links, timeout_s=60)
        for plan, cgroup in zip(plans, cgroups, strict=True):
            cgroup.make(memory_bytes=plan.node.memory_bytes)
        starts = "".join(
            f"{start_command(plan, cgroup)} &\n"
            for plan, cgroup in zip(plans, cgroups, strict=True)
        )
        # The nodes outlive this shell; their output must not hold its pipes open.
        lab.host.run(("sh", "-s"), stdin=starts, timeout_s=60)
    except HostError as error:
        raise ProvisionError(f"the nodes could not be made: {error}") from error


def link_commands(plan: NodePlan) -> list[str]:
    """Return the lines for ``ip -batch`` that make a node's namespace and its two links."""
    node = plan.node
    ends = (
        (plan.management_device, "eth0", plan.management_mac, plan.management),
        (plan.lan_device, node.device, plan.lan_mac, node.address),
    )
    lines = [f"netns add {node.name}"]
    for device, name, mac, _ in ends:
        lines.append(
            f"link add {device} type veth peer name {name} address {mac} netns {node.name}"
        )
    return lines


def start_command(plan: NodePlan, cgroup: NodeCgroup) -> str:
    """Return the shell line that becomes a node's first process."""
    log = plan.root.parent / "start.log"
    words = (
        "nsenter",
        f"--net=/run/netns/{plan.node.name}",
        "--",
        "sh",
        "-c",
        'for file; do echo 0 > "$file"; done; exec setsid unshare --uts --mount --ipc --pid --fork '
        f"--kill-child sh -c {shlex.quote(node_script(plan))}",
        "enter",
        *map(str, cgroup.entry_files()),
    )
    return f"{shlex.join(words)} > {shlex.quote(str(log))} 2>&1 < /dev/null"


def node_script(plan: NodePlan) -> str:
    """Return what a node's first process does before it becomes the node's init."""
    root = shlex.quote(str(plan.root))
    node = plan.node
    lines = [
        "set -eu",
        f"hostname {node.name}",
        f"ip addr add {plan.management} dev eth0",
        f"ip addr add {node.address} dev {node.device}",
        "ip link set lo up",
        "ip link set eth0 up",
        f"ip link set {node.device} up",
        "mount --make-rprivate /",
        f"mount --bind {root} {root}",
        f"cd {root}",
    ]
    for folder in (Path("/usr"), *python_folders()):
        source, target = shlex.quote(str(folder)), shlex.quote(str(folder.relative_to("/")))
        lines.append(f"mount --bind {source} {target}")
        lines.append(f"mount -o remount,bind,ro {target}")
    lines += [
        "mount -t proc proc proc",
        "mount --bind proc/sys/net run/sshd",
        *(
            f"[ ! -e {path} ] || {{ mount --bind {path} {path}; mount -o remount,bind,ro {path}; }}"
            for path in _READ_ONLY_PROC
        ),
        "mount --move run/sshd proc/sys/net",
        "mount -t sysfs -o ro sysfs sys",
        "mount -t tmpfs -o mode=755,size=500k tmpfs dev",
        *(f"mknod -m 666 dev/{name} c 1 {minor}" for name, minor in _DEVICES),
        "mknod -m 666 dev/tty c 5 0",
        "mkdir dev/pts dev/shm",
        "mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts dev/pts",
        "ln -s pts/ptmx dev/ptmx",
        "ln -s /proc/self/fd dev/fd",
        "mount -t tmpfs -o mode=1777 tmpfs dev/shm",
        "mkdir .host",
        "pivot_root . .host",
        "umount -l .host",
        "rmdir .host",
        f"exec setpriv --bounding-set=-all,{','.join(f'+{name}' for name in CAPABILITIES)} "
        f"-- {INIT}",
    ]
    return "\n".join(lines)
