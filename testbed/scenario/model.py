"""The values that describe a cluster. Frozen; they cannot be built wrong."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from typing import Literal

from testbed.errors import ScenarioError

Switch = Literal["openvswitch", "virtual_bridge"]
SWITCHES: tuple[Switch, ...] = ("openvswitch", "virtual_bridge")

MAX_NODES = 250  # VNX derives a MAC byte from the node's number (docs/VNX.md)
NAME = re.compile(r"[a-z]([a-z0-9-]{0,10}[a-z0-9])?")  # 12 characters: VNX names devices after it

KIB = 1024


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
    queue_us: int = 50_000

    def __post_init__(self) -> None:
        if self.rate_bps is None and self.burst_bytes is not None:
            raise ScenarioError("a burst without a rate: give both, or neither for an open link")
        if self.rate_bps is not None:
            if self.rate_bps <= 0:
                raise ScenarioError(f"rate {self.rate_bps} bit/s: expected a positive number")
            if self.burst_bytes is None:
                object.__setattr__(self, "burst_bytes", default_burst_bytes(self.rate_bps))
        if self.burst_bytes is not None and self.burst_bytes <= 0:
            raise ScenarioError(f"burst {self.burst_bytes} bytes: expected a positive number")
        if self.queue_us <= 0:
            raise ScenarioError(f"queue {self.queue_us} us: expected a positive number")
        if self.delay_us < 0:
            raise ScenarioError(f"delay {self.delay_us} us: expected 0 or more")
        if not 0.0 <= self.loss < 1.0:
            raise ScenarioError(f"loss {self.loss}: expected a probability from 0 up to 1")


@dataclass(frozen=True, kw_only=True)
class Node:
    """One machine of the cluster. ``cpu_cores`` None: the trial decides its budget."""

    name: str
    address: IPv4Interface  # on the training LAN, eth<interface_id>
    shape: Shape = Shape()
    memory_bytes: int = 2 * 1024**3
    cpu_cores: float | None = None
    interface_id: int = 1

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ScenarioError(
                f"node name {self.name!r}: expected 1 to 12 of a-z, 0-9 and '-', "
                "a letter first and no '-' last"
            )
        if self.memory_bytes <= 0:
            raise ScenarioError(f"{self.name}: memory {self.memory_bytes} bytes: expected more")
        if self.cpu_cores is not None and not 0.01 <= self.cpu_cores <= 1024:
            raise ScenarioError(f"{self.name}: {self.cpu_cores} cores: expected at least 0.01")
        if not 1 <= self.interface_id <= 9:
            raise ScenarioError(f"{self.name}: interface id {self.interface_id}: expected 1 to 9")

    @property
    def device(self) -> str:
        """The node's LAN interface, such as ``eth1``."""
        return f"eth{self.interface_id}"


@dataclass(frozen=True, kw_only=True)
class Lan:
    """The network that the nodes train over; ``host_address`` only if the host takes part."""

    name: str = "lan"
    switch: Switch = "openvswitch"
    host_address: IPv4Interface | None = None


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A whole cluster: its nodes, their LAN, and how they are managed."""

    name: str
    nodes: tuple[Node, ...]
    lan: Lan = Lan()
    management: IPv4Network = IPv4Network("10.250.0.0/16")
    management_offset: int = 16
    mac_offset: int = 7

    def __post_init__(self) -> None:
        if not self.nodes:
            raise ScenarioError(f"scenario {self.name!r} has no nodes")
        if len(self.nodes) > MAX_NODES:
            raise ScenarioError(f"{len(self.nodes)} nodes: expected 1 to {MAX_NODES}")

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
