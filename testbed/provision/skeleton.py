"""A node's root: a few files of its own around the host's userland, which is bound read-only.

What a node sees of the host is /usr, the Python that runs us and its virtual environment, all
read-only, and nothing else. Both backends use the same skeleton, programs and capabilities.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Interface
from pathlib import Path

from testbed.host.ssh import KeyPair
from testbed.scenario.model import Node, Scenario

# Enough for sshd, TensorFlow, tc and a congestion control per node; not for mount, mknod or
# sethostname: with CAP_SYS_ADMIN a node could remount the binds writable (docs/architecture.md).
CAPABILITIES = (
    "chown",
    "dac_override",
    "fowner",
    "fsetid",
    "kill",
    "setgid",
    "setuid",
    "net_bind_service",
    "net_admin",
    "net_raw",
    "sys_chroot",
    "audit_write",
)
INIT = "/sbin/node-init"
LOG = "var/log/node.log"  # below the root: what the init and sshd say

_FOLDERS = (
    ("dev", 0o755),
    ("etc/ssh", 0o755),
    ("opt/testbed", 0o755),
    ("proc", 0o755),
    ("root/.ssh", 0o700),
    ("run/sshd", 0o755),
    ("sbin", 0o755),
    ("sys", 0o755),
    ("tmp", 0o1777),
    ("usr", 0o755),
    ("var/lib", 0o755),
    ("var/log", 0o755),
    ("var/tmp", 0o1777),
)
_SSHD = """\
Port 22
ListenAddress {address}
HostKey /etc/ssh/host_key
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
X11Forwarding no
AllowAgentForwarding no
PidFile none
MaxStartups 100
MaxSessions 50
Subsystem sftp internal-sftp
"""
# Without transmit checksums off, TCP hangs over the userspace datapath (docs/network.md).
# Congestion control by route: a namespace may not choose one that the host does not allow.
_INIT = """\
#!/bin/sh
set -eu
exec >>/{log} 2>&1 </dev/null
if [ -e /proc/sys/net/ipv6 ]; then echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6; fi
{offload}ip route change {network} dev {device} proto kernel scope link src {address} congctl cubic
exec /usr/sbin/sshd -D -e -f /etc/ssh/sshd_config
"""


@dataclass(frozen=True, kw_only=True)
class NodePlan:
    """A node that is about to be made: its description and where everything of it goes."""

    node: Node
    index: int
    root: Path
    management: IPv4Interface
    management_mac: str
    lan_mac: str
    host_key: KeyPair
    cgroup: str  # path below each controller

    @property
    def management_device(self) -> str:
        """The lab's end of eth0, named as VNX names it."""
        return f"{self.node.name}-e0"

    @property
    def lan_device(self) -> str:
        """The switch's end of the LAN interface, named as VNX names it."""
        return f"{self.node.name}-e{self.node.interface_id}"


def python_folders() -> tuple[Path, ...]:
    """Return what must be bound, beside /usr, for this very Python to run in a node; sorted."""
    real = Path(sys.executable).resolve().parent.parent
    found = {Path(sys.prefix), Path(sys.base_prefix), real}
    outside = {folder for folder in found if not folder.is_relative_to("/usr")}
    return tuple(
        sorted(
            folder
            for folder in outside
            if not any(folder != other and folder.is_relative_to(other) for other in outside)
        )
    )


def build(
    plan: NodePlan, scenario: Scenario, *, authorized_key: str, checksum_offload: bool
) -> None:
    """Write a node's root folder; nothing is mounted here."""
    root = plan.root
    for folder, mode in _FOLDERS:
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / folder).chmod(mode)
    (root / "root").chmod(0o700)
    for bound in python_folders():
        (root / bound.relative_to("/")).mkdir(parents=True, exist_ok=True)
    for name in ("bin", "lib", "lib32", "lib64", "libx32"):
        if Path("/", name).exists():
            (root / name).symlink_to(f"usr/{name}")
    for path, content, mode in _files(plan, scenario, authorized_key, checksum_offload):
        (root / path).write_text(content)
        (root / path).chmod(mode)


def _files(
    plan: NodePlan, scenario: Scenario, authorized_key: str, checksum_offload: bool
) -> Sequence[tuple[str, str, int]]:
    """Return (path below the root, content, mode) of every file of a node's own."""
    node = plan.node
    names = "".join(f"{other.address.ip} {other.name}\n" for other in scenario.nodes)
    offload = "" if checksum_offload else f"ethtool -K {node.device} tx off > /dev/null\n"
    init = _INIT.format(
        log=LOG,
        offload=offload,
        network=node.address.network,
        device=node.device,
        address=node.address.ip,
    )
    return (
        ("etc/hostname", f"{node.name}\n", 0o644),
        ("etc/hosts", f"127.0.0.1 localhost\n{names}", 0o644),
        ("etc/passwd", _passwd(), 0o644),
        ("etc/shadow", "root:*:19000:0:99999:7:::\nsshd:*:19000:0:99999:7:::\n", 0o600),
        ("etc/group", "root:x:0:\nnogroup:x:65534:\n", 0o644),
        ("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n", 0o644),
        ("etc/ssh/sshd_config", _SSHD.format(address=plan.management.ip), 0o644),
        ("etc/ssh/host_key", plan.host_key.private, 0o600),
        ("root/.ssh/authorized_keys", f"{authorized_key}\n", 0o600),
        (INIT.lstrip("/"), init, 0o755),
    )


def _passwd() -> str:
    return (
        "root:x:0:0:root:/root:/bin/sh\n"
        "sshd:x:100:65534::/run/sshd:/usr/sbin/nologin\n"
        "nobody:x:65534:65534::/nonexistent:/usr/sbin/nologin\n"
    )


def node_log(root: Path, *, lines: int = 5) -> str:
    """Return the last lines of what a node's init and sshd said."""
    try:
        text = (root / LOG).read_text(errors="replace")
    except OSError:
        return "(it said nothing)"
    return os.linesep.join(text.splitlines()[-lines:]) or "(it said nothing)"
