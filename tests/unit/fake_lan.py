"""A LAN that behaves: nodes and their switch, with queues, byte counts and iperf3, in memory.

It understands the commands that the network stage uses, refuses all others, and lets goodput be
what the queues on the way allow. tests/real/test_links.py holds the real one to the same facts.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from testbed.bounds import payload_fraction
from testbed.errors import CommandFailed
from testbed.host.base import Completed
from testbed.network.iperf3 import Peer
from testbed.network.shape import Endpoint
from testbed.network.verify import Link
from testbed.scenario.model import Shape

OPEN_BPS = 20e9  # what a veth pair carries without any queue


@dataclass
class FakeLan:
    """Nodes n1..nN on one switch. ``capacity_bps`` is what the switch carries for all together."""

    nodes: int
    capacity_bps: float = OPEN_BPS
    has_netem: bool = True
    wobble: list[float] = field(default_factory=list)  # factors of the next measurements
    detours: dict[str, str] = field(default_factory=dict)  # a node's traffic leaves by this device
    cut: set[str] = field(default_factory=set)  # nodes whose server nobody reaches

    def __post_init__(self) -> None:
        self.lock = threading.Lock()
        self.listening: dict[tuple[str, int], threading.Event] = {}
        self.busiest = 0
        self.hosts = {
            name: FakeHost(name=name, lan=self)
            for name in ("lab", *(f"n{k}" for k in range(1, self.nodes + 1)))
        }

    def links(self, *shapes: Shape) -> list[Link]:
        """Return every node's link; one shape for all, or one each."""
        each = shapes if len(shapes) == self.nodes else shapes * self.nodes
        lab = self.hosts["lab"]
        return [
            Link(
                peer=Peer(
                    name=f"n{k}",
                    host=self.hosts[f"n{k}"],
                    address=f"10.10.0.{k}",
                    device="eth1",
                ),
                shape=shape,
                switch_end=Endpoint(host=lab, device=f"h{k}"),
            )
            for k, shape in enumerate(each, start=1)
        ]


@dataclass
class FakeHost:
    """One machine of the fake LAN; keeps what it was asked in ``commands``."""

    name: str
    lan: FakeLan
    queues: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    commands: list[tuple[str, ...]] = field(default_factory=list)

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float = 30.0,
        stdin: str = "",
        check: bool = True,
    ) -> Completed:
        self.commands.append(tuple(argv))
        match tuple(argv):
            case ("tc", "-batch", "-"):
                for line in stdin.splitlines():
                    self._tc(tuple(line.split()))
                return _wrote("")
            case ("tc", "-j", "-s", "qdisc", "show"):
                return _wrote(json.dumps([q for queue in self.queues.values() for q in queue]))
            case ("iperf3", "-s", "-1", "-J", "-B", address, "-p", port):
                return self._serve(address, int(port), timeout_s)
            case ("iperf3", "-c", address, "-p", port, "-J", "-t", seconds, *_):
                return self._send(address, int(port), float(seconds))
            case ("iperf3", "-c", address, "-p", port, "-J", "-n", "1K", *_):
                self.lan.listening[address, int(port)].set()
                return _wrote("{}")
            case ("ss", "-Hltn", words):
                port = int(words.split(":")[1])
                mine = [at for at in self.lan.listening if at == (self._address(), port)]
                return _wrote("LISTEN" if mine else "")
            case ("id", "-u"):
                return _wrote("0")
            case ("unshare", "--net", "tc", "qdisc", "add", "dev", "lo", "root", kind, *_):
                if kind == "netem" and not self.lan.has_netem:
                    return Completed(exit_status=2, stdout="", stderr="Error: unknown qdisc kind")
                return _wrote("")
        raise AssertionError(f"{self.name} was asked an unknown command: {argv}")

    def put(self, content: bytes, path: PurePosixPath, *, mode: int = 0o644) -> None:
        raise AssertionError("the network stage writes no files")

    def get(self, path: PurePosixPath) -> bytes:
        raise AssertionError("the network stage reads no files")

    def _address(self) -> str:
        return f"10.10.0.{self.name[1:]}"

    def _tc(self, words: tuple[str, ...]) -> None:
        match words:
            case ("qdisc", "replace", "dev", device, "root", "pfifo"):
                self.queues[device] = [{"kind": "pfifo", "dev": device, "root": True}]
            case ("qdisc", "del", "dev", device, "root"):
                if not self.queues.pop(device, None):
                    said = "Error: Cannot delete qdisc with handle of zero."
                    raise CommandFailed(self.name, ("tc", *words), 2, said)
            case ("qdisc", "replace", "dev", device, "root", "tbf", *options):
                queue = {"kind": "tbf", "dev": device, "root": True, "handle": "8001:"}
                self.queues[device] = [queue | {"options": _tbf(options), "bytes": 0, "drops": 0}]
            case _:
                said = "Error: Specified qdisc kind is unknown."
                raise CommandFailed(self.name, ("tc", *words), 2, said)

    def _serve(self, address: str, port: int, timeout_s: float) -> Completed:
        if address != self._address():
            return _wrote(json.dumps({"error": "Cannot assign requested address"}))
        used = threading.Event()
        with self.lan.lock:
            self.lan.listening[address, port] = used
            self.lan.busiest = len(self.lan.listening)
        assert used.wait(min(timeout_s, 20)), "nobody came to this one-off server"
        with self.lan.lock:
            del self.lan.listening[address, port]
        return _wrote("{}")

    def _send(self, address: str, port: int, seconds: float) -> Completed:
        receiver = "n" + address.rsplit(".", 1)[1]
        if receiver in self.lan.cut:
            return _wrote(json.dumps({"error": "unable to connect to server: timed out"}))
        leaves = self.queues.get(self.lan.detours.get(self.name, "eth1"), [])
        enters = self.lan.hosts["lab"].queues.get(f"h{receiver[1:]}", [])
        shared_bps = self.lan.capacity_bps / self.lan.busiest
        rates = [q["options"]["rate"] * 8 for q in (*leaves, *enters)] + [shared_bps]
        with self.lan.lock:
            factor = self.lan.wobble.pop(0) if self.lan.wobble else 1.0
            goodput_bps = min(rates) * payload_fraction() * factor
            received = goodput_bps * seconds / 8
            for queue in (*leaves, *enters):
                queue["bytes"] += round(received / payload_fraction())
        self.lan.listening[address, port].set()
        end = {
            "sum_received": {
                "bits_per_second": goodput_bps,
                "bytes": round(received),
                "seconds": seconds,
            },
            "sum_sent": {"bits_per_second": goodput_bps * 1.75, "retransmits": 3},
        }
        return _wrote(json.dumps({"end": end}))


def _tbf(options: Sequence[str]) -> dict[str, int]:
    words = dict(zip(options[::2], options[1::2], strict=True))
    return {
        "rate": int(words["rate"].removesuffix("bit")) // 8,
        "burst": int(words["burst"].removesuffix("b")),
        "lat": int(words["latency"].removesuffix("us")),
    }


def _wrote(stdout: str) -> Completed:
    return Completed(exit_status=0, stdout=stdout, stderr="")
