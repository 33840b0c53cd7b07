"""The gate: whether every link carries what the scenario says, both ways, alone and together.

Goodput is measured, and every queue is read back too: shaping at both ends hides one missing
queue, because iperf3 sees the smaller of the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from testbed.bounds import expected_goodput_bps, payload_fraction
from testbed.host.base import Host
from testbed.host.group import in_parallel
from testbed.network.iperf3 import PORT, Flow, Peer, Transfer, measure
from testbed.network.shape import (
    Endpoint,
    Qdisc,
    Qdiscs,
    ingress_shape,
    qdisc_fault,
    qdisc_kind,
    read_qdiscs,
)
from testbed.network.verdict import (
    LinkCheck,
    QdiscCheck,
    Status,
    Test,
    Verdict,
    When,
    link_reasons,
    qdisc_reasons,
)
from testbed.network.verdict import merge as merge
from testbed.scenario.model import KIB, Shape

MAX_BURST_SHARE = 0.02  # of a measurement's bytes may have been saved up in the bucket
MIN_SECONDS, MAX_SECONDS = 1.0, 20.0
MAX_WINDOW_RATE_BPS = 1_000_000_000
MAX_WINDOW_BYTES = 200_000  # within Linux's default limit of 212992 for a socket's buffer
LONGER = 3  # times as long is an outlier measured the second time
NEVER_NOISE = 0.5  # nothing lets a limited link carry half as much again: not measured twice

# Largest rate, test: lowest and highest deviation from the expected goodput.
# Source: docs/network.md, "Tolerances".
TOLERANCES: tuple[tuple[float, Test, tuple[float, float]], ...] = (
    (500e6, "pair", (-0.05, 0.03)),
    (float("inf"), "pair", (-0.08, 0.03)),
    (float("inf"), "ring", (-0.09, 0.03)),
)

# Of the bytes that iperf3 received, as frames, at least so many must have passed the queue.
MIN_COUNTED = 0.9


@dataclass(frozen=True, kw_only=True)
class Link:
    """How a node is attached to the LAN, and the shape that this should have.

    ``switch_end`` None: nobody can shape or read the other end (existing machines).
    """

    peer: Peer
    shape: Shape
    switch_end: Endpoint | None = None

    def ends(self) -> tuple[tuple[Endpoint, Shape], ...]:
        """Return each end with the shape that it gets: what the node sends, what it receives."""
        node_end = (Endpoint(host=self.peer.host, device=self.peer.device), self.shape)
        if self.switch_end is None:
            return (node_end,)
        return (node_end, (self.switch_end, ingress_shape(self.shape)))


@dataclass(frozen=True, kw_only=True)
class Round:
    """Flows (sender, receiver) that are measured at the same time."""

    test: Test
    flows: tuple[tuple[str, str], ...]


def schedule(names: Sequence[str]) -> tuple[Round, ...]:
    """Return rounds of disjoint pairs in which every node sends and receives, then one ring.

    Two rounds of pairs for an even number of nodes. An odd one needs a third, because its last
    three nodes pass the turn around. Nothing for a single node.
    """
    if len(names) < 2:
        return ()
    odd = len(names) % 2
    paired = len(names) - 3 * odd
    there = [(names[i], names[i + 1]) for i in range(0, paired, 2)]
    back = [(receiver, sender) for sender, receiver in there]
    rounds = [there, back]
    if odd:
        a, b, c = names[-3:]
        rounds = [[*there, (a, b)], [*back, (b, c)], [(c, a)]]
    ring = [*pairwise(names), (names[-1], names[0])]
    tests = [Round(test="pair", flows=tuple(flows)) for flows in rounds]
    return (*tests, Round(test="ring", flows=tuple(ring)))


def measurement_s(shape: Shape) -> float:
    """Return how long to measure a link: until a full bucket is at most 2 % of the bytes.

    2 s at 1 mbit with 5 kB, 1 s from 10 mbit with 15 kB: what was within 3 % (docs/network.md).
    """
    if shape.rate_bps is None or shape.burst_bytes is None:
        return MIN_SECONDS
    burst_s = shape.burst_bytes * 8 / shape.rate_bps
    return float(min(MAX_SECONDS, max(MIN_SECONDS, round(burst_s / MAX_BURST_SHARE))))


def window_bytes(shape: Shape) -> int | None:
    """Return the TCP window that fills a link but not its queue: 8 ms of it, at least 16 KiB.

    A window that TCP finds itself overflows the queue within a second, and while the lost packet
    is sent again the receiver reads nothing (10 mbit over 1 s: -14 % in every second run). In the
    ring, flows with unequal windows starve each other's ACKs (-30 %). Both measured,
    docs/network.md. None over a delay, which needs its own window, and above 1 gbit.
    """
    if shape.rate_bps is None or shape.burst_bytes is None:
        return None
    if shape.delay_us or shape.loss or shape.rate_bps > MAX_WINDOW_RATE_BPS:
        return None
    queue_bytes = shape.rate_bps * shape.queue_us // 8_000_000
    half_of_what_waits = (queue_bytes + shape.burst_bytes) // 2
    of_8_ms = max(16 * KIB, shape.rate_bps // 1000)
    return min(half_of_what_waits, of_8_ms, MAX_WINDOW_BYTES)


def tolerance(test: Test, shape: Shape) -> tuple[float, float]:
    """Return the lowest and highest deviation that a clean link of this shape may show."""
    rate_bps = shape.rate_bps or 0
    low, high = next(
        span for largest, kind, span in TOLERANCES if kind == test and rate_bps <= largest
    )
    # Loss and slow start over a delay keep TCP below the rate by an amount that nobody knows
    # beforehand: then only the queues can be checked downwards.
    return (-1.0 if shape.delay_us or shape.loss else low, high)


def verify(
    links: Sequence[Link],
    *,
    when: When,
    port: int = PORT,
    congestion_control: str = "cubic",
    mtu: int = 1500,
) -> Verdict:
    """Measure and read back every link and return the verdict.

    Touches nothing but iperf3 on the nodes, one server and one client each at a time. An open
    link (no rate) is measured but not judged, only its ends must be free of queues.
    """
    if len(links) < 2:
        return Verdict(status="not_applicable")
    by_name = {link.peer.name: link for link in links}
    before = _read_back(links)
    checks: list[LinkCheck] = []
    for turn in schedule(tuple(by_name)):
        checks += _measured(turn, by_name, when, port, congestion_control, mtu)
    qdiscs = _qdisc_checks(links, before, _read_back(links), checks, when, mtu)
    reasons = [*qdisc_reasons(qdiscs), *link_reasons(checks, qdiscs)]
    gated = any(link.shape.rate_bps is not None for link in links)
    status: Status = "fail" if reasons else "pass" if gated else "not_gated"
    return Verdict(
        status=status,
        reasons=tuple(f"{when} training: {reason}" for reason in reasons),
        links=tuple(checks),
        qdiscs=tuple(qdiscs),
    )


def _measured(
    turn: Round,
    links: Mapping[str, Link],
    when: When,
    port: int,
    congestion_control: str,
    mtu: int,
) -> list[LinkCheck]:
    """Return a round's checks; outliers (of a ring: all) once more, for longer."""
    checks: list[LinkCheck] = []
    flows = turn.flows
    for attempt in (1, 2):
        shapes = [_path_shape(links[sender], links[receiver]) for sender, receiver in flows]
        seconds = max(map(measurement_s, shapes)) * (1 if attempt == 1 else LONGER)
        transfers = measure(
            [
                Flow(
                    sender=links[sender].peer,
                    receiver=links[receiver].peer,
                    window_bytes=window_bytes(shape),
                )
                for (sender, receiver), shape in zip(flows, shapes, strict=True)
            ],
            seconds,
            port=port,
            congestion_control=congestion_control,
        )
        found = [
            _link_check(when, turn.test, flow, shape, transfer, attempt, mtu)
            for flow, shape, transfer in zip(flows, shapes, transfers, strict=True)
        ]
        checks += found
        outliers = tuple((check.sender, check.receiver) for check in found if not check.ok)
        if not outliers or any((check.deviation or 0) > NEVER_NOISE for check in found):
            break
        flows = turn.flows if turn.test == "ring" else outliers
    return checks


def _path_shape(sender: Link, receiver: Link) -> Shape:
    """Return the slower of the two links, with the delay and loss of the one that sends."""
    slowest = min(
        (sender.shape, receiver.shape),
        key=lambda shape: float("inf") if shape.rate_bps is None else shape.rate_bps,
    )
    return Shape(
        rate_bps=slowest.rate_bps,
        burst_bytes=slowest.burst_bytes,
        queue_us=slowest.queue_us,
        delay_us=sender.shape.delay_us,
        loss=sender.shape.loss,
    )


def _link_check(
    when: When,
    test: Test,
    flow: tuple[str, str],
    shape: Shape,
    transfer: Transfer,
    attempt: int,
    mtu: int,
) -> LinkCheck:
    expected_bps = None if shape.rate_bps is None else expected_goodput_bps(shape.rate_bps, mtu=mtu)
    span = None if expected_bps is None else tolerance(test, shape)
    deviation = None
    ok = transfer.error is None
    if span and expected_bps and transfer.goodput_bps is not None:
        deviation = transfer.goodput_bps / expected_bps - 1
        ok = ok and span[0] <= deviation <= span[1]
    return LinkCheck(
        when=when,
        test=test,
        sender=flow[0],
        receiver=flow[1],
        expected_bps=expected_bps,
        measured_bps=transfer.goodput_bps,
        deviation=deviation,
        tolerance=span,
        retransmits=transfer.retransmits,
        seconds=transfer.seconds,
        received_bytes=transfer.received_bytes,
        error=transfer.error,
        ok=ok,
        attempt=attempt,
    )


def _read_back(links: Sequence[Link]) -> dict[int, Qdiscs]:
    """Return the queues of every machine that holds an end, by the machine's identity."""
    hosts: dict[int, Host] = {}
    for link in links:
        for endpoint, _ in link.ends():
            hosts.setdefault(id(endpoint.host), endpoint.host)
    return dict(zip(hosts, in_parallel(read_qdiscs, list(hosts.values())), strict=True))


def _qdisc_checks(
    links: Sequence[Link],
    before: Mapping[int, Qdiscs],
    now: Mapping[int, Qdiscs],
    checks: Sequence[LinkCheck],
    when: When,
    mtu: int,
) -> list[QdiscCheck]:
    ends = {(id(end.host), end.device) for link in links for end, _ in link.ends()}
    found: list[QdiscCheck] = []
    for link in links:
        name = link.peer.name
        for side, (end, shape) in zip(("node", "switch"), link.ends(), strict=False):
            there = now[id(end.host)]
            qdisc = there[end.device]
            grew_bytes = qdisc.sent_bytes - before[id(end.host)][end.device].sent_bytes
            fault = qdisc_fault(qdisc, shape)
            if fault and qdisc.kind == "none":
                strays = {d: q for d, q in there.items() if (id(end.host), d) not in ends}
                fault += _stray_words(strays, shape)
            elif fault is None and qdisc.kind != "none":
                moved = sum(
                    check.received_bytes or 0
                    for check in checks
                    if name == (check.sender if side == "node" else check.receiver)
                )
                fault = _count_fault(grew_bytes, round(moved / payload_fraction(mtu=mtu)))
            found.append(
                QdiscCheck(
                    when=when,
                    node=name,
                    end="node" if side == "node" else "switch",
                    host=end.host.name,
                    device=end.device,
                    kind=qdisc.kind,
                    rate_bps=qdisc.rate_bps,
                    burst_bytes=qdisc.burst_bytes,
                    latency_us=qdisc.latency_us,
                    sent_bytes=qdisc.sent_bytes,
                    grew_bytes=grew_bytes,
                    drops=qdisc.drops,
                    fault=fault,
                    ok=fault is None,
                )
            )
    return found


def _stray_words(strays: Mapping[str, Qdisc], shape: Shape) -> str:
    """Return ``; but DEVICE has it`` when the queue sits on a device that is no end of a link."""
    for device, qdisc in sorted(strays.items()):
        if qdisc.kind == qdisc_kind(shape) and qdisc_fault(qdisc, shape) is None:
            return f"; but {device} has it: the wrong interface was shaped"
    return ""


def _count_fault(grew_bytes: int, moved_bytes: int) -> str | None:
    if grew_bytes >= MIN_COUNTED * moved_bytes:
        return None
    return (
        f"counted {grew_bytes} bytes while iperf3 moved {moved_bytes}: "
        "the traffic takes another interface, or another node's"
    )
