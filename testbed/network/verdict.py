"""The verdict on a cluster's links: what was measured and read back, and what is wrong in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from testbed.network.shape import rate_words

When = Literal["before", "after"]
Test = Literal["pair", "ring"]
Status = Literal["pass", "fail", "not_applicable", "not_gated"]


@dataclass(frozen=True, kw_only=True)
class LinkCheck:
    """One flow's measurement against what its link should carry; None is not measured."""

    when: When
    test: Test
    sender: str
    receiver: str
    expected_bps: float | None
    measured_bps: float | None
    deviation: float | None
    tolerance: tuple[float, float] | None
    retransmits: int | None
    seconds: float | None
    received_bytes: int | None
    error: str | None
    ok: bool
    attempt: int


@dataclass(frozen=True, kw_only=True)
class QdiscCheck:
    """One end of a link as read back; ``grew_bytes`` is what it counted during the gate."""

    when: When
    node: str
    end: Literal["node", "switch"]
    host: str
    device: str
    kind: str
    rate_bps: int | None
    burst_bytes: int | None
    latency_us: int | None
    sent_bytes: int
    grew_bytes: int
    drops: int
    fault: str | None
    ok: bool


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Whether the links are what the scenario says, with everything that was measured."""

    status: Status
    reasons: tuple[str, ...] = ()
    links: tuple[LinkCheck, ...] = ()
    qdiscs: tuple[QdiscCheck, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the record's ``verdict``; what was not measured is absent."""
        return {
            "status": self.status,
            "reasons": list(self.reasons),
            "links": [_present(link) for link in self.links],
            "qdiscs": [_present(qdisc) for qdisc in self.qdiscs],
        }


def merge(before: Verdict, after: Verdict) -> Verdict:
    """Return the verdict on a whole trial: it passes only if both gates do."""
    return Verdict(
        status="fail" if "fail" in (before.status, after.status) else before.status,
        reasons=before.reasons + after.reasons,
        links=before.links + after.links,
        qdiscs=before.qdiscs + after.qdiscs,
    )


def qdisc_reasons(qdiscs: Sequence[QdiscCheck]) -> list[str]:
    """Return a sentence for each end of a link whose queue is wrong."""
    reasons: list[str] = []
    for qdisc in qdiscs:
        if qdisc.fault is None:
            continue
        does = "sends" if qdisc.end == "node" else "receives"
        reason = f"what {qdisc.node} {does} is wrong: {qdisc.device} of {qdisc.host} {qdisc.fault}"
        other = [q for q in qdiscs if q.node == qdisc.node and q.end != qdisc.end]
        if other and qdisc.kind == "none":
            both = other[0].kind == "none"
            limited = "neither direction is" if both else "one direction only is"
            reason += f" ({limited} limited)"
        reasons.append(f"{reason}.")
    return reasons


def link_reasons(checks: Sequence[LinkCheck], qdiscs: Sequence[QdiscCheck]) -> list[str]:
    """Return a sentence, with its likely cause, for each flow whose last measurement is wrong."""
    last = {(check.test, check.sender, check.receiver): check for check in checks}
    pairs_ok = all(check.ok for check in last.values() if check.test == "pair")
    queues_ok = all(qdisc.ok for qdisc in qdiscs)
    reasons: list[str] = []
    for check in last.values():
        if check.ok:
            continue
        way = f"{check.sender} -> {check.receiver}"
        alone = "alone" if check.test == "pair" else "with all nodes sending"
        if check.error is not None:
            reasons.append(f"{way} {alone}: nothing was measured ({check.error}).")
            continue
        if check.test == "ring" and pairs_ok and queues_ok:
            cause = (
                "each link alone is right, so the switch or the host's CPU does not carry them "
                "all at once (oversubscribed)"
            )
        else:
            cause = _likely_cause(check, last, queues_ok)
        reasons.append(f"{way} {alone}: {_deviation_words(check)}: {cause}.")
    return reasons


def _deviation_words(check: LinkCheck) -> str:
    if check.measured_bps is None or check.expected_bps is None or check.deviation is None:
        return "not measured"
    low, high = check.tolerance or (0.0, 0.0)
    return (
        f"{rate_words(check.measured_bps)} where {rate_words(check.expected_bps)} were expected "
        f"({check.deviation:+.1%}, tolerance {low:+.0%} to {high:+.0%})"
    )


def _likely_cause(
    check: LinkCheck, last: Mapping[tuple[Test, str, str], LinkCheck], queues_ok: bool
) -> str:
    ratio = 1 + (check.deviation or 0.0)
    if 7.2 <= ratio <= 8.4:
        cause = "8 times too fast, as when bytes are taken for bits"
    elif 7.2 <= 1 / max(ratio, 1e-9) <= 8.8:
        cause = "8 times too slow, as when bits are taken for bytes"
    elif not queues_ok:
        cause = "a queue is missing or wrong, see the reasons above"
    elif ratio > 1:
        cause = "the queues read back right, so something carries traffic past them"
    else:
        cause = "the queues read back right: other traffic on the link, or too little CPU"
    back = last.get((check.test, check.receiver, check.sender))
    if back is not None and back.ok:
        cause += f"; {check.receiver} -> {check.sender} is right, so one direction only is wrong"
    return cause


def _present(value: LinkCheck | QdiscCheck) -> dict[str, Any]:
    pairs = ((field.name, getattr(value, field.name)) for field in fields(value))
    return {
        name: list(item) if isinstance(item, tuple) else item
        for name, item in pairs
        if item is not None
    }
