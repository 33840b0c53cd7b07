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

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_MAKE = "X-mount.mkdir"
# Few processes, because 64 nodes start at once: mounts, addresses and devices in one each.
_NODE_SCRIPT = """\
set -eu
hostname {name}
ip -batch - <<END
addr add {management} dev eth0
addr add {address} dev {device}
link set lo up
link set eth0 up
link set {device} up
END
mount --make-rprivate /
mount --all --fstab {fstab}
cd {root}
cp --archive {devices} dev/
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
mkdir .host
pivot_root . .host
umount -l .host
rmdir .host
exec setpriv --bounding-set=-all,{capabilities} -- {init}
"""
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
            _fstab_file(plan).write_text(node_fstab(plan))
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


def node_fstab(plan: NodePlan) -> str:
    """Return every mount of a node, as fstab(5): one `mount` makes them all."""
    root = plan.root
    binds = (Path("/usr"), *python_folders())
    mounts = [
        (root, root, "none", "bind"),
        *((folder, root / folder.relative_to("/"), "none", "bind,ro") for folder in binds),
        ("proc", root / "proc", "proc", "defaults"),
        *(
            (root / path, root / path, "none", "bind,ro")
            for path in _READ_ONLY_PROC
            if Path("/", path).exists()
        ),
        # What is read there is that of the reader's own network namespace.
        ("/proc/sys/net", root / "proc/sys/net", "none", "bind"),
        ("sysfs", root / "sys", "sysfs", "ro"),
        ("dev", root / "dev", "tmpfs", "mode=755,size=500k"),
        ("pts", root / "dev/pts", "devpts", f"{_MAKE},newinstance,ptmxmode=0666,mode=620"),
        ("shm", root / "dev/shm", "tmpfs", f"{_MAKE},mode=1777"),
    ]
    return "".join(
        f"{_escaped(source)} {_escaped(target)} {kind} {options} 0 0\n"
        for source, target, kind, options in mounts
    )


def node_script(plan: NodePlan) -> str:
    """Return what a node's first process does before it becomes the node's init."""
    node = plan.node
    return _NODE_SCRIPT.format(
        name=node.name,
        management=plan.management,
        address=node.address,
        device=node.device,
        fstab=shlex.quote(str(_fstab_file(plan))),
        root=shlex.quote(str(plan.root)),
        devices=shlex.join(f"/dev/{name}" for name in _DEVICES),
        capabilities=",".join(f"+{name}" for name in CAPABILITIES),
        init=INIT,
    )


def _fstab_file(plan: NodePlan) -> Path:
    return plan.root.parent / "fstab"


def _escaped(path: object) -> str:
    return str(path).replace("\\", r"\134").replace(" ", r"\040")
