"""What is imposed on a link: tbf for the rate, netem for delay and loss; and what is really there.

Decided purely (`tc_commands`, `tc_batch`, `qdisc_fault`), done thinly (`apply_shapes`,
`read_qdiscs`). Only tbf: htb's second ``replace`` fails, and under bbr it collapses (measured,
docs/network.md).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from testbed.errors import CommandFailed, MissingCapability, ShapingError
from testbed.host.base import Host
from testbed.host.capabilities import NETEM_MEND, qdisc_kind_works
from testbed.host.group import in_parallel
from testbed.scenario.model import Shape

Argv = tuple[str, ...]

# Ours alone, so that replacing never meets a foreign qdisc of the same handle ("1:" is common,
# and replacing one by another kind under the same handle is refused).
NETEM_HANDLE = "7b:"
RATE_HANDLE = "7c:"

FRAME_BYTES = 1514
NETEM_QUEUE_PACKETS = 1000  # netem's own default (tc-netem(8))

RATE_TOLERANCE = 0.001  # tc keeps rates in whole bytes/s
BURST_TOLERANCE = 0.01  # the kernel keeps the burst in clock ticks: 262144 reads back as 262125
TIME_TOLERANCE_US = 2  # and times too
LOSS_TOLERANCE = 1e-6  # loss is a 32-bit fraction (tc-netem(8))


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """One end of a link: what leaves through ``device`` of ``host`` is shaped there."""

    host: Host
    device: str


@dataclass(frozen=True, kw_only=True)
class Qdisc:
    """What queues at a device. ``kind`` "none": nothing; "netem+tbf": a tbf under a netem."""

    kind: str
    rate_bps: int | None = None
    burst_bytes: int | None = None
    latency_us: int | None = None
    delay_us: int = 0
    loss: float = 0.0
    sent_bytes: int = 0
    drops: int = 0


def ingress_shape(shape: Shape) -> Shape:
    """Return what the switch's end of a node's link gets: the rate, not the delay and loss.

    As in VNX, delay and loss belong to what a node sends; twice would be a link of 2 x delay.
    """
    return replace(shape, delay_us=0, loss=0.0)


def qdisc_kind(shape: Shape) -> str:
    """Return the `Qdisc.kind` that a shape should read back as."""
    impaired = bool(shape.delay_us or shape.loss)
    if shape.rate_bps is None:
        return "netem" if impaired else "none"
    return "netem+tbf" if impaired else "tbf"


def tc_commands(device: str, shape: Shape) -> tuple[Argv, ...]:
    """Return the tc commands (without the word tc) that make a device carry exactly this shape.

    They may be repeated, whatever was there before. An open link is made by replacing what is
    there and deleting that, because deleting nothing is an error.
    """
    root = ("qdisc", "replace", "dev", device, "root")
    rate = _tbf_words(shape)
    match qdisc_kind(shape):
        case "none":
            return ((*root, "pfifo"), ("qdisc", "del", "dev", device, "root"))
        case "tbf":
            return ((*root, *rate),)
        case "netem":
            return ((*root, "handle", NETEM_HANDLE, *_netem_words(shape)),)
        case _:
            # The order of the netem manual: delayed first, then through the bucket, so that the
            # bucket's queue stays bounded in bytes and netem only holds what is on its way.
            under = ("qdisc", "replace", "dev", device, "parent", f"{NETEM_HANDLE}1")
            return (
                (*root, "handle", NETEM_HANDLE, *_netem_words(shape)),
                (*under, "handle", RATE_HANDLE, *rate),
            )


def tc_batch(shapes: Iterable[tuple[str, Shape]]) -> str:
    """Return the text for one ``tc -batch -`` that shapes many devices of one machine."""
    commands = (words for device, shape in shapes for words in tc_commands(device, shape))
    return "".join(" ".join(words) + "\n" for words in commands)


def apply_shape(endpoint: Endpoint, shape: Shape) -> None:
    """Make one end of a link carry exactly this shape.

    Raises:
        ShapingError: tc refused.
        MissingCapability: the kernel lacks netem, and the shape needs it.
    """
    apply_shapes([(endpoint, shape)])


def apply_shapes(ends: Sequence[tuple[Endpoint, Shape]]) -> None:
    """Shape many link ends: one tc process per machine, all machines at once.

    Raises:
        ShapingError: tc refused on a machine; the message has its words.
        MissingCapability: a kernel lacks netem, and a shape needs it. Nothing was touched then.
    """
    by_host: dict[int, list[tuple[Endpoint, Shape]]] = {}
    for end in ends:
        by_host.setdefault(id(end[0].host), []).append(end)
    for group in by_host.values():
        if any(shape.delay_us or shape.loss for _, shape in group):
            require_netem(group[0][0].host)
    in_parallel(_apply_to_one_host, list(by_host.values()))


def _apply_to_one_host(ends: Sequence[tuple[Endpoint, Shape]]) -> None:
    host = ends[0][0].host
    text = tc_batch((endpoint.device, shape) for endpoint, shape in ends)
    try:
        host.run(("tc", "-batch", "-"), stdin=text)
    except CommandFailed as error:
        devices = ", ".join(endpoint.device for endpoint, _ in ends)
        raise ShapingError(
            f"{host.name}: tc could not shape {devices}: {error.stderr.strip()}\n  asked for:\n"
            + "".join(f"    tc {line}\n" for line in text.splitlines())
        ) from error


def require_netem(host: Host) -> None:
    """Return if the machine's kernel can delay and lose packets.

    Raises:
        MissingCapability: it cannot; names the module, sch_netem.
    """
    if not qdisc_kind_works(host, "netem"):
        raise MissingCapability(
            f"{host.name}: the kernel has no netem (module sch_netem), "
            "which a scenario with delay or loss needs",
            mend=NETEM_MEND,
        )


def read_qdisc(host: Host, device: str) -> Qdisc:
    """Return what queues at one device now."""
    return read_qdiscs(host)[device]


class Qdiscs(dict[str, Qdisc]):
    """What queues at each device of a machine; devices without a queue are "none"."""

    def __missing__(self, device: str) -> Qdisc:
        return Qdisc(kind="none")


def read_qdiscs(host: Host) -> Qdiscs:
    """Return what queues at every device of a machine, in one tc process."""
    # Not -d: it turns the burst into text such as "262125b/1" (iproute2 6.1).
    return parse_qdiscs(host.run(("tc", "-j", "-s", "qdisc", "show")).stdout)


def parse_qdiscs(json_text: str) -> Qdiscs:
    """Return the queues in what ``tc -j -s qdisc show`` wrote, by device."""
    by_device: dict[str, list[dict[str, Any]]] = {}
    for entry in json.loads(json_text or "[]"):
        # Handle "0:" is the kernel's own default; ingress hooks queue nothing.
        if entry.get("handle") != "0:" and entry["kind"] not in ("ingress", "clsact"):
            by_device.setdefault(entry["dev"], []).append(entry)
    return Qdiscs({device: _one_qdisc(entries) for device, entries in by_device.items()})


def qdisc_fault(qdisc: Qdisc, shape: Shape) -> str | None:
    """Return what is wrong with a device's queue in words, None if it is as the shape says."""
    wanted = qdisc_kind(shape)
    if qdisc.kind != wanted:
        return _kind_fault(qdisc, shape, wanted)
    if shape.rate_bps is not None:
        fault = _rate_fault(qdisc.rate_bps or 0, shape.rate_bps)
        if fault:
            return fault
        assert shape.burst_bytes is not None  # noqa: S101 - a shape with a rate has one
        if _differs(qdisc.burst_bytes or 0, shape.burst_bytes, BURST_TOLERANCE):
            return f"has a burst of {qdisc.burst_bytes} bytes, expected {shape.burst_bytes}"
    if abs(qdisc.delay_us - shape.delay_us) > TIME_TOLERANCE_US:
        return f"delays by {qdisc.delay_us} us, expected {shape.delay_us} us"
    if abs(qdisc.loss - shape.loss) > LOSS_TOLERANCE:
        return f"loses {qdisc.loss:.4%}, expected {shape.loss:.4%}"
    return None


def rate_words(rate_bps: float) -> str:
    """Return a measured or read rate for a sentence, such as "9.56 Mbit/s"."""
    for unit, size in (("Gbit/s", 1e9), ("Mbit/s", 1e6), ("kbit/s", 1e3)):
        if rate_bps >= size:
            return f"{rate_bps / size:.4g} {unit}"
    return f"{rate_bps:.4g} bit/s"


def _kind_fault(qdisc: Qdisc, shape: Shape, wanted: str) -> str:
    if qdisc.kind == "none":
        return f"has no qdisc, expected {_shape_words(shape)}"
    if wanted == "none":
        return f"has a stale qdisc ({_qdisc_words(qdisc)}) on a link that should be open"
    return f"has the wrong kind of qdisc ({_qdisc_words(qdisc)}), expected {_shape_words(shape)}"


def _rate_fault(rate_bps: int, expected_bps: int) -> str | None:
    if not _differs(rate_bps, expected_bps, RATE_TOLERANCE):
        return None
    words = f"has rate {rate_words(rate_bps)}, expected {rate_words(expected_bps)}"
    if not _differs(rate_bps, 8 * expected_bps, RATE_TOLERANCE):
        return f"{words}: 8 times too fast, bytes were taken for bits (tc reads mbps as megabytes)"
    if not _differs(8 * rate_bps, expected_bps, RATE_TOLERANCE):
        return f"{words}: 8 times too slow, bits were taken for bytes"
    return f"{words}: a stale qdisc, or the one of another node"


def _differs(value: float, expected: float, tolerance: float) -> bool:
    return abs(value - expected) > tolerance * expected


def _shape_words(shape: Shape) -> str:
    parts = [qdisc_kind(shape)]
    if shape.rate_bps is not None:
        parts.append(f"at {rate_words(shape.rate_bps)}")
    return " ".join(parts)


def _qdisc_words(qdisc: Qdisc) -> str:
    return f"{qdisc.kind} at {rate_words(qdisc.rate_bps)}" if qdisc.rate_bps else qdisc.kind


def _tbf_words(shape: Shape) -> Argv:
    # Plain bit, bytes and us: tc's own prefixes are ambiguous (kb is 1024 bytes, mbps is bytes).
    return (
        *("tbf", "rate", f"{shape.rate_bps}bit"),
        *("burst", f"{shape.burst_bytes}b", "latency", f"{shape.queue_us}us"),
    )


def _netem_words(shape: Shape) -> Argv:
    words: Argv = ("netem", "limit", str(_netem_limit(shape)))
    if shape.delay_us:
        words += ("delay", f"{shape.delay_us}us")
    if shape.loss:
        words += ("loss", f"{shape.loss * 100:.10g}%")
    return words


def _netem_limit(shape: Shape) -> int:
    """Return room for all packets on their way, twice over: netem drops what exceeds it."""
    rate_bps = shape.rate_bps or 10_000_000_000
    on_their_way = rate_bps * shape.delay_us // (8 * 1_000_000 * FRAME_BYTES)
    return max(NETEM_QUEUE_PACKETS, 2 * on_their_way)


def _one_qdisc(entries: Sequence[dict[str, Any]]) -> Qdisc:
    root = next((entry for entry in entries if entry.get("root")), entries[0])
    # Queues of our making, the root first; mq's and others' children keep the root's name only.
    chain = [root, *(entry for entry in entries if entry is not root)]
    if root["kind"] not in ("tbf", "netem"):
        chain = [root]
    options = {entry["kind"]: entry.get("options", {}) for entry in reversed(chain)}
    tbf, netem = options.get("tbf", {}), options.get("netem", {})
    return Qdisc(
        kind="+".join(entry["kind"] for entry in chain),
        rate_bps=tbf["rate"] * 8 if "rate" in tbf else None,  # tc -j prints bytes/s
        burst_bytes=tbf.get("burst"),
        latency_us=tbf.get("lat"),
        delay_us=round(netem.get("delay", {}).get("delay", 0) * 1e6),  # seconds
        loss=netem.get("loss-random", {}).get("loss", 0.0),  # a fraction
        sent_bytes=root.get("bytes", 0),
        drops=root.get("drops", 0),  # a parent counts what its child drops
    )
