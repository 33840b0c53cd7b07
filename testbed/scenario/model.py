"""The values that describe a cluster. Frozen; they cannot be built wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from typing import Literal

from testbed import units
from testbed.errors import ScenarioError

Switch = Literal["openvswitch", "virtual_bridge"]
SWITCHES: tuple[Switch, ...] = ("openvswitch", "virtual_bridge")

MAX_NODES = 250  # VNX derives a MAC byte from the node's number (docs/VNX.md)
NAME = re.compile(r"[a-z]([a-z0-9-]{0,10}[a-z0-9])?")  # 12 characters: VNX names devices after it
SCENARIO_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # also a file name
NAME_RULE = "1 to 12 of a-z, 0-9 and '-', a letter first and no '-' last"
RESERVED_NAMES = ("lo", "localhost")

KIB = 1024
MIB = 1024**2
MIN_RATE_BPS = 1000  # below, tc's whole bytes per second are more than 1 % off
DEFAULT_QUEUE_US = 50_000
DEFAULT_MEMORY_BYTES = 2 * 1024**3
MANAGEMENT = IPv4Network("10.250.0.0/16")


def default_burst_bytes(rate_bps: int) -> int:
    """Return the tbf bucket for a rate, in whole KiB: 2 ms of it, at least 5 kB, 15 from 10 mbit.

    Smaller buckets undershoot (100 mbit with 5 kB: -6 %), larger ones overshoot short runs
    (measured, docs/network.md).
    """
    floor_kib = 15 if rate_bps >= 10_000_000 else 5
    return KIB * max(floor_kib, -(-rate_bps * 2 // 8_000 // KIB))


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What is imposed on a link, in both directions. ``rate_bps`` None: no queue at all.

    ``queue_us`` is the longest time a packet may wait in the bucket's queue (tc's ``latency``).
    """

    rate_bps: int | None = None
    delay_us: int = 0
    loss: float = 0.0
    burst_bytes: int | None = None
    queue_us: int = DEFAULT_QUEUE_US

    def __post_init__(self) -> None:
        if self.rate_bps is None:
            if self.burst_bytes is not None or self.queue_us != DEFAULT_QUEUE_US:
                raise ScenarioError("a burst or queue without a rate: give all, or none of them")
        else:
            if not MIN_RATE_BPS <= self.rate_bps <= units.MAX_RATE_BPS:
                raise ScenarioError(f"rate {self.rate_bps} bit/s: expected 1kbit to 1000gbit")
            if self.burst_bytes is None:
                object.__setattr__(self, "burst_bytes", default_burst_bytes(self.rate_bps))
        if self.burst_bytes is not None and not 0 < self.burst_bytes <= units.MAX_BURST_BYTES:
            raise ScenarioError(f"burst {self.burst_bytes} bytes: expected 1b to 1024mb")
        if not 0 < self.queue_us <= units.MAX_DELAY_US:
            raise ScenarioError(f"queue {self.queue_us} us: expected more than 0, at most 60s")
        if not 0 <= self.delay_us <= units.MAX_DELAY_US:
            raise ScenarioError(f"delay {self.delay_us} us: expected 0 to 60s")
        if not 0.0 <= self.loss < 1.0:
            raise ScenarioError(f"loss {self.loss}: expected a probability from 0 up to 1")


@dataclass(frozen=True, kw_only=True)
class Node:
    """One machine of the cluster. ``cpu_cores`` None: the trial decides its budget."""

    name: str
    address: IPv4Interface  # on the training LAN, eth<interface_id>
    shape: Shape = Shape()
    memory_bytes: int = DEFAULT_MEMORY_BYTES
    cpu_cores: float | None = None
    interface_id: int = 1

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name) or self.name in RESERVED_NAMES:
            raise ScenarioError(f"node name {self.name!r}: expected {NAME_RULE}")
        if self.memory_bytes % MIB or not 0 < self.memory_bytes <= units.MAX_MEMORY_BYTES:
            raise ScenarioError(
                f"{self.name}: memory {self.memory_bytes} bytes: expected whole MiB, at least one"
            )
        if self.cpu_cores is not None:
            object.__setattr__(self, "cpu_cores", _whole_percents(self.name, self.cpu_cores))
        if not 1 <= self.interface_id <= 9:
            raise ScenarioError(f"{self.name}: interface id {self.interface_id}: expected 1 to 9")
        if fault := address_fault(self.address):
            raise ScenarioError(f"{self.name}: {fault}")

    @property
    def device(self) -> str:
        """The node's LAN interface, such as ``eth1``."""
        return f"eth{self.interface_id}"


def _whole_percents(name: str, cores: float) -> float:
    """Return cores free of rounding noise; VNX's vcpu_quota counts whole percents."""
    rounded = round(cores, 2)
    if not 0.01 <= rounded <= units.MAX_CPU_CORES or abs(rounded - cores) > 1e-9:
        raise ScenarioError(f"{name}: {cores} cores: expected whole percents, at least 0.01")
    return rounded


def address_fault(address: IPv4Interface) -> str | None:
    """Return why a machine on a LAN cannot have this address, or None if it can."""
    ip, network = address.ip, address.network
    if network.prefixlen > 30:
        return f"address {address}: expected a network with room, /30 or larger"
    if ip in (network.network_address, network.broadcast_address):
        return f"address {address} is its network's own or broadcast address"
    if ip.is_loopback or ip.is_multicast or ip.is_reserved or ip.is_unspecified:
        return f"address {address}: expected an ordinary host address, such as 10.10.0.1/24"
    return None


@dataclass(frozen=True, kw_only=True)
class Lan:
    """The network that the nodes train over; ``host_address`` only if the host takes part."""

    name: str = "lan"
    switch: Switch = "openvswitch"
    host_address: IPv4Interface | None = None

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name) or self.name in RESERVED_NAMES:
            raise ScenarioError(f"net name {self.name!r}: expected {NAME_RULE}, and not 'lo'")
        if self.switch not in SWITCHES:
            raise ScenarioError(f"switch {self.switch!r}: expected one of {', '.join(SWITCHES)}")
        if self.host_address is not None and (fault := address_fault(self.host_address)):
            raise ScenarioError(f"host: {fault}")


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A whole cluster: its nodes, their LAN, and how they are managed."""

    name: str
    nodes: tuple[Node, ...]
    lan: Lan = Lan()
    management: IPv4Network = MANAGEMENT
    management_offset: int = 16
    mac_offset: int = 7

    def __post_init__(self) -> None:
        faults = [
            *name_faults(self.name),
            *(message for _, _, message in node_faults(self.nodes, self.lan)),
            *management_faults(self.management, self.management_offset, len(self.nodes)),
        ]
        if not 0 <= self.mac_offset <= 255:
            faults.append(f"MAC offset {self.mac_offset}: expected 0 to 255")
        if any(self.management.overlaps(node.address.network) for node in self.nodes):
            faults.append(f"the management network {self.management} overlaps the nodes' LAN")
        if faults:
            raise ScenarioError("\n".join(faults))

    def management_address(self, index: int) -> IPv4Interface:
        """Return node ``index``'s (from 0) own end of its management link, a /30."""
        base = self.management.network_address + self.management_offset + 4 * index
        return IPv4Interface((base + 2, 30))

    def management_peer(self, index: int) -> IPv4Interface:
        """Return the lab's end of node ``index``'s management link."""
        return IPv4Interface((IPv4Address(self.management_address(index).ip) - 1, 30))

    def mac(self, index: int, interface_id: int) -> str:
        """Return the MAC address of a node's interface, as VNX's automac makes them."""
        return f"02:fd:00:{self.mac_offset:02x}:{index + 1:02x}:{interface_id:02x}"


def name_faults(name: str) -> Iterator[str]:
    """Yield what is wrong with a scenario's name."""
    if not SCENARIO_NAME.fullmatch(name):
        yield (
            f"scenario name {name!r}: expected 1 to 64 of letters, digits, '.', '_' and '-', "
            "a letter or digit first"
        )


def node_faults(nodes: Sequence[Node], lan: Lan) -> Iterator[tuple[int, str, str]]:
    """Yield what is wrong between nodes and their LAN.

    Each as the node's number (-1: none), what is at fault (count, name, address or host),
    and the message.
    """
    if not 1 <= len(nodes) <= MAX_NODES:
        yield -1, "count", f"{len(nodes)} nodes: expected 1 to {MAX_NODES}"
    if not nodes:
        return
    network = nodes[0].address.network
    names: set[str] = set()
    owners: dict[IPv4Address, str] = {}
    for index, node in enumerate(nodes):
        if node.name in names:
            yield index, "name", f"node name {node.name!r} is used twice"
        names.add(node.name)
        if owner := owners.get(node.address.ip):
            message = f"{node.name}: address {node.address.ip} is also that of {owner}"
            yield index, "address", message
        owners.setdefault(node.address.ip, node.name)
        if node.address.network != network:
            first = nodes[0].name
            message = f"{node.name}: address {node.address} is not in {network} as that of {first}"
            yield index, "address", message
        if lan.name in (f"{node.name}-e0", f"{node.name}-e{node.interface_id}"):
            yield index, "name", f"{node.name}: its device would be named as the net, {lan.name}"
    if lan.host_address is not None:
        if owner := owners.get(lan.host_address.ip):
            message = f"the host's address {lan.host_address.ip} is also that of {owner}"
            yield -1, "host", message
        if lan.host_address.network != network:
            message = f"the host's address {lan.host_address} is not in the nodes' {network}"
            yield -1, "host", message


def management_faults(network: IPv4Network, offset: int, nodes: int) -> Iterator[str]:
    """Yield what is wrong with the network that holds a /30 for each node."""
    if not 8 <= network.prefixlen <= 30:
        yield f"management network {network}: expected a prefix from /8 to /30"
    if offset < 0 or offset % 4:
        yield f"management offset {offset}: expected a multiple of 4, at least 0"
    elif offset + 4 * nodes > network.num_addresses:
        yield (
            f"management network {network}: {nodes} nodes need {offset + 4 * nodes} addresses "
            f"from its start (a /30 each after offset {offset}); a /16 has room"
        )
