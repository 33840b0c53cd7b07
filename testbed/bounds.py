"""Physical bounds: what no run over links of a given rate can beat.

S is the gradient's size, N the number of nodes, B the goodput, a the latency of one message.
Sources: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in
MPICH" (2005) for the collectives; Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms for
clusters of workstations" (2009) for the lower bound; tc-tbf(8) for the bucket.
"""

from __future__ import annotations

from math import ceil, log2

ETHERNET_HEADER = 14  # bytes; tc counts frames without preamble, FCS and gap
TCP_IP_HEADERS = 52  # bytes; IPv4 20, TCP 20, timestamps option 12 (RFC 7323)


def payload_fraction(*, mtu: int = 1500) -> float:
    """Return the part of a full frame, as tc counts it, that is TCP payload: 0.9564 at 1500."""
    if mtu <= TCP_IP_HEADERS:
        raise ValueError(f"MTU {mtu}: expected more than {TCP_IP_HEADERS} bytes of headers")
    return (mtu - TCP_IP_HEADERS) / (mtu + ETHERNET_HEADER)


def expected_goodput_bps(rate_bps: float, *, mtu: int = 1500) -> float:
    """Return the TCP payload rate of one long flow over a link of this rate.

    tc counts Ethernet frames without preamble, FCS and gap (MTU + 14 bytes); TCP with
    timestamps carries MTU - 52. A perfect 10 Mbit/s link therefore measures 9.56 Mbit/s.
    """
    return rate_bps * payload_fraction(mtu=mtu)


def transfer_s(
    payload_bytes: float,
    goodput_bps: float,
    *,
    burst_bytes: int = 0,
    idle_gaps: int = 1,
    mtu: int = 1500,
) -> float:
    """Return the least time in which a link of this goodput carries the payload.

    A token bucket fills while nodes compute, so after each idle gap one burst leaves at once
    (tc-tbf(8)). Give ``burst_bytes`` to subtract it, ``idle_gaps`` times: 62 kB at 10 mbit were
    measured at 0.76 of the time without this allowance. tc counts the burst in frames, so only
    its payload is subtracted. Never below 0.
    """
    _positive(goodput_bps=goodput_bps)
    _not_negative(payload_bytes=payload_bytes, burst_bytes=burst_bytes, idle_gaps=idle_gaps)
    free = idle_gaps * burst_bytes * payload_fraction(mtu=mtu)
    return max(0.0, payload_bytes - free) * 8 / goodput_bps


def allreduce_bytes(gradient_bytes: float, nodes: int) -> float:
    """Return what each node must send, and receive, to reduce S over N nodes: 2(N-1)/N S.

    No algorithm needs less (Patarasuk and Yuan 2009, theorem 1); the ring needs exactly this.
    """
    _at_least_one(nodes=nodes)
    _not_negative(gradient_bytes=gradient_bytes)
    return 2 * (nodes - 1) / nodes * gradient_bytes


def allreduce_lower_bound_s(
    gradient_bytes: float, nodes: int, goodput_bps: float, *, burst_bytes: int = 0
) -> float:
    """Return the time that no all-reduce can beat: 2(N-1)/N S/B, less one burst if given.

    One all-reduce per step means one idle gap per step; see `transfer_s`.
    """
    payload_bytes = allreduce_bytes(gradient_bytes, nodes)
    return transfer_s(payload_bytes, goodput_bps, burst_bytes=burst_bytes)


def ring_allreduce_s(
    gradient_bytes: float,
    nodes: int,
    goodput_bps: float,
    *,
    latency_s: float = 0.0,
    burst_bytes: int = 0,
) -> float:
    """Return the time of a ring all-reduce: 2(N-1)/N S/B + 2(N-1) a; 0 for one node."""
    _not_negative(latency_s=latency_s)
    moving_s = allreduce_lower_bound_s(gradient_bytes, nodes, goodput_bps, burst_bytes=burst_bytes)
    return moving_s + 2 * (nodes - 1) * latency_s


def tree_allreduce_s(
    gradient_bytes: float, nodes: int, goodput_bps: float, *, latency_s: float = 0.0
) -> float:
    """Return the time of reduce and broadcast over a binary tree: 2 ceil(log2 N)(a + S/B)."""
    _at_least_one(nodes=nodes)
    _not_negative(latency_s=latency_s)
    return 2 * ceil(log2(nodes)) * (latency_s + transfer_s(gradient_bytes, goodput_bps))


def halving_doubling_allreduce_s(
    gradient_bytes: float, nodes: int, goodput_bps: float, *, latency_s: float = 0.0
) -> float:
    """Return the time of Rabenseifner's all-reduce: 2 log2(N) a + 2(N-1)/N S/B.

    Exact for powers of two; other N need an extra exchange that this leaves out.
    """
    _not_negative(latency_s=latency_s)
    moving_s = allreduce_lower_bound_s(gradient_bytes, nodes, goodput_bps)
    return 2 * log2(nodes) * latency_s + moving_s


def parameter_server_s(
    gradient_bytes: float,
    workers: int,
    goodput_bps: float,
    *,
    servers: int = 1,
    overlapping: bool = True,
) -> float:
    """Return the exchange time of N workers with P dedicated servers: max(S, N S / P)/B.

    The server's link carries N S / P in each direction, a worker's S. ``overlapping`` False:
    push and pull follow each other, which doubles it.
    """
    _at_least_one(workers=workers, servers=servers)
    busiest_bytes = max(gradient_bytes, workers * gradient_bytes / servers)
    return transfer_s(busiest_bytes, goodput_bps) * (1 if overlapping else 2)


def synchronous_step_s(
    t1_step_s: float,
    gradient_bytes: float,
    nodes: int,
    goodput_bps: float,
    *,
    latency_s: float = 0.0,
) -> float:
    """Return a strong-scaling step without overlap: T_1/N and then one ring all-reduce."""
    _positive(t1_step_s=t1_step_s)
    exchange_s = ring_allreduce_s(gradient_bytes, nodes, goodput_bps, latency_s=latency_s)
    return t1_step_s / nodes + exchange_s


def break_even_bps(gradient_bytes: float, t1_step_s: float) -> float:
    """Return the goodput above which N nodes beat one, whatever N: 2 S / T_1, in bit/s.

    Synchronous data parallelism, strong scaling, no overlap, no latency:
    T_1/N + 2(N-1)/N S/B < T_1 is (N-1)/N (2 S/B) < (N-1)/N T_1.
    """
    _positive(t1_step_s=t1_step_s)
    _not_negative(gradient_bytes=gradient_bytes)
    return 2 * gradient_bytes * 8 / t1_step_s


def _positive(**quantities: float) -> None:
    for name, value in quantities.items():
        if not value > 0:
            raise ValueError(f"{name} {value}: expected more than 0")


def _not_negative(**quantities: float) -> None:
    for name, value in quantities.items():
        if not value >= 0:
            raise ValueError(f"{name} {value}: expected 0 or more")


def _at_least_one(**counts: int) -> None:
    for name, value in counts.items():
        if value < 1:
            raise ValueError(f"{name} {value}: expected 1 or more")
