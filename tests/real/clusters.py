"""The small clusters that real tests start, and what they ask of their nodes."""

from __future__ import annotations

from testbed.provision.cluster import Cluster
from testbed.scenario import generate
from testbed.scenario.model import MIB, Scenario, Shape, Switch

NODE_PROGRAMS = ("ip", "tc", "ss", "iperf3", "sshd", "nsenter", "unshare", "setpriv", "pivot_root")
PROGRAMS = (*NODE_PROGRAMS, "lxc-start", "ovs-vswitchd")


def lan(
    nodes: int = 2,
    *,
    rate_bps: int | None = 100_000_000,
    switch: Switch = "openvswitch",
    memory_bytes: int = 512 * MIB,
) -> Scenario:
    """Return a star of equal nodes n1..nN."""
    shape = Shape(rate_bps=rate_bps)
    return generate.star(nodes, shape, memory_bytes=memory_bytes, switch=switch)


def said(cluster: Cluster, name: str, *argv: str) -> str:
    """Return what a command wrote on a node, over SSH."""
    with cluster.session(cluster.node(name)) as host:
        return host.run(argv).stdout.strip()
