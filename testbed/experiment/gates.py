"""What else must hold, beside the links, before a trial's time may be shown (docs/method.md)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from testbed.bounds import allreduce_lower_bound_s, expected_goodput_bps
from testbed.experiment.monitor import HostUse
from testbed.scenario.model import Shape

MIN_IDLE = 0.05  # of the host's processor time, mean over the timed steps
MAX_STEAL = 0.10  # taken by other machines on the same hardware
BUDGET_TOLERANCE = 0.10  # a quota is kept within 5 % (docs/network.md, CPU budgets)
BOUND_TOLERANCE = 0.01  # better than physics by more is a bug in the measurement
# A trial shorter than this holds too few quota periods to judge the budget by.
SHORTEST_JUDGED_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What was measured while the clock ran; times in seconds."""

    mode: str
    train_time_s: float
    step_times_s: Sequence[float]
    gradient_bytes: int
    nodes: int
    slowest: Shape
    cpu_s: Mapping[str, float]
    cpu_cores: Mapping[str, float]
    host: HostUse | None


def communication_bound_s(facts: Facts) -> float | None:
    """Return the least time of a step's all-reduce on the slowest link; None if it is open.

    One tbf burst is subtracted: the bucket fills while the nodes compute.
    """
    shape = facts.slowest
    if facts.nodes < 2 or shape.rate_bps is None:
        return None
    return allreduce_lower_bound_s(
        facts.gradient_bytes,
        facts.nodes,
        expected_goodput_bps(shape.rate_bps),
        burst_bytes=shape.burst_bytes or 0,
    )


def faults(facts: Facts) -> list[str]:
    """Return a sentence for each gate that a trial does not pass."""
    return [*_host(facts), *_budgets(facts), *_bound(facts)]


def _host(facts: Facts) -> Iterator[str]:
    if facts.host is None or facts.mode == "shared":
        return
    if facts.host.idle_mean < MIN_IDLE:
        yield (
            f"the host was idle for {facts.host.idle_mean:.1%} of the training, expected at least "
            f"{MIN_IDLE:.0%}: nodes waited for processors that something else used."
        )
    if facts.host.steal > MAX_STEAL:
        yield (
            f"{facts.host.steal:.1%} of the processor time was stolen by other virtual machines, "
            f"expected at most {MAX_STEAL:.0%}."
        )


def _budgets(facts: Facts) -> Iterator[str]:
    if facts.train_time_s < SHORTEST_JUDGED_S:
        return
    for name, cores in facts.cpu_cores.items():
        used = facts.cpu_s.get(name, 0.0) / facts.train_time_s
        if used > cores * (1 + BUDGET_TOLERANCE):
            yield (
                f"{name} used {used:.2f} cores with a budget of {cores:g}: the limit was not kept."
            )


def _bound(facts: Facts) -> Iterator[str]:
    bound_s = communication_bound_s(facts)
    if bound_s is None or not facts.step_times_s:
        return
    step_s = median(facts.step_times_s)
    if step_s < bound_s * (1 - BOUND_TOLERANCE):
        yield (
            f"a step took {step_s:.4f} s, less than its exchange needs on these links "
            f"({bound_s:.4f} s): too good to be true, so the measurement is wrong."
        )
