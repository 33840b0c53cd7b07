"""The LAN's switch: Open vSwitch, private to the lab, or the kernel's bridge."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from testbed.errors import HostError, MissingCapability, ProvisionError
from testbed.host.local import LocalHost
from testbed.provision.lab import Lab
from testbed.provision.skeleton import NodePlan, node_log
from testbed.scenario.model import Lan, Scenario

Datapath = Literal["kernel", "userspace", "bridge"]

# About this much in all is safe on the userspace datapath: every link runs on one core there
# (unshaped 1.0-1.7 Gbit/s on a 2-core machine, docs/network.md).
USERSPACE_SAFE_BPS = 500_000_000

# OVS's default folder lies in the lab's own /run: ovs-vsctl finds it without options.
_START_OVS = """\
set -eu
cd /run/openvswitch
ovsdb-tool create conf.db "$1"
ovsdb-server --remote=punix:/run/openvswitch/db.sock --pidfile --detach --no-chdir \
  --log-file=/run/openvswitch/ovsdb-server.log conf.db
ovs-vsctl --no-wait init
ovs-vswitchd --pidfile --detach --no-chdir --log-file=/run/openvswitch/ovs-vswitchd.log
"""
_SCHEMA = "/usr/share/openvswitch/vswitch.ovsschema"


def start_switch(lab: Lab, lan: Lan) -> Datapath:
    """Start the LAN's switch and return which datapath carries it.

    Raises:
        MissingCapability: Open vSwitch is not installed.
        ProvisionError: it does not start; says what its log says.
    """
    if lan.switch == "virtual_bridge":
        lines = (
            f"link add {lan.name} type bridge mcast_snooping 0 forward_delay 0\n"
            f"link set {lan.name} up\n"
        )
        lab.host.run(("ip", "-batch", "-"), stdin=lines)
        return "bridge"
    if not Path(_SCHEMA).exists():
        raise MissingCapability(
            "Open vSwitch is not installed, and the scenario asks for it",
            mend="apt-get install openvswitch-switch, or SWITCH=virtual_bridge",
        )
    datapath: Datapath = "kernel" if kernel_datapath() else "userspace"
    kind = "system" if datapath == "kernel" else "netdev"
    add = ("add-br", lan.name, "--", "set", "bridge", lan.name, f"datapath_type={kind}")
    try:
        lab.host.run(("sh", "-c", _START_OVS, "start", _SCHEMA))
        lab.host.run(("ovs-vsctl", "--timeout=20", *add))
    except HostError as error:
        raise ProvisionError(f"Open vSwitch did not start: {error}") from error
    return datapath


def kernel_datapath() -> bool:
    """Whether this kernel has the openvswitch module; it is loaded if it can be."""
    if Path("/sys/module/openvswitch").exists():
        return True
    if not Path("/lib/modules").is_dir():
        return False
    loaded = LocalHost().run(("modprobe", "--quiet", "openvswitch"), check=False)
    return loaded.exit_status == 0


def attach(lab: Lab, scenario: Scenario, plans: Sequence[NodePlan], datapath: Datapath) -> None:
    """Connect every node: LAN ends to the switch, management ends to the lab's addresses.

    Raises:
        ProvisionError: the switch refused a port.
    """
    bridge = scenario.lan.name
    lines = []
    for plan in plans:
        peer = scenario.management_peer(plan.index)
        lines += [
            f"addr add {peer} dev {plan.management_device}",
            f"link set {plan.management_device} up",
            # A lost ARP request would cost a second of every start.
            f"neigh replace {plan.management.ip} lladdr {plan.management_mac} "
            f"dev {plan.management_device}",
            f"link set {plan.lan_device} up",
        ]
        if datapath == "bridge":
            lines.append(f"link set {plan.lan_device} master {bridge}")
    if scenario.lan.host_address is not None:
        lines.append(f"addr add {scenario.lan.host_address} dev {bridge}")
        lines.append(f"link set {bridge} up")
    try:
        if datapath != "bridge":
            ports = [w for plan in plans for w in ("--", "add-port", bridge, plan.lan_device)]
            lab.host.run(("ovs-vsctl", "--timeout=60", *ports[1:]), timeout_s=70)
        lab.host.run(("ip", "-batch", "-"), stdin="".join(f"{line}\n" for line in lines))
    except HostError as error:
        raise ProvisionError(
            f"the links could not be attached: {error}{_ended(lab, plans)}"
        ) from error


def _ended(lab: Lab, plans: Sequence[NodePlan]) -> str:
    """Return what the logs say of the nodes that are gone, and their links with them."""
    found = lab.host.run(("ip", "-o", "link"), check=False).stdout
    return "".join(
        f"\n{plan.node.name} has ended; its log ends:\n{node_log(plan.root)}"
        for plan in plans
        if f" {plan.management_device}@" not in found
    )


def overload_warning(scenario: Scenario, datapath: Datapath) -> str | None:
    """Return what to tell the user when the switch may not carry the sum of the rates."""
    if datapath != "userspace":
        return None
    rates = [node.shape.rate_bps for node in scenario.nodes]
    if None not in rates and sum(rate or 0 for rate in rates) <= USERSPACE_SAFE_BPS:
        return None
    return (
        "Open vSwitch runs in userspace here (this kernel has no openvswitch module) and carries "
        f"about {USERSPACE_SAFE_BPS // 10**6} mbit in all; these links may ask for more. "
        "SWITCH=virtual_bridge carries them."
    )
