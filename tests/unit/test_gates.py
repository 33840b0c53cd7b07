"""Which trials may be shown, by arithmetic on paper; and what the host did meanwhile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.experiment.gates import Facts, communication_bound_s, faults
from testbed.experiment.monitor import CpuTimes, HostMonitor, HostUse, host_use
from testbed.scenario.model import Shape

QUIET = HostUse(idle_mean=0.3, idle_min=0.1, steal=0.0)
# 1 MB over 10 mbit between two nodes: 8e6 bits less one burst, at 0.9564 of the rate.
GOOD = Facts(
    mode="isolated",
    train_time_s=10.0,
    step_times_s=(1.0, 0.9, 1.1),
    gradient_bytes=1_000_000,
    nodes=2,
    slowest=Shape(rate_bps=10_000_000),
    cpu_s={"n1": 3.9, "n2": 4.1},
    cpu_cores={"n1": 0.4, "n2": 0.4},
    host=QUIET,
)
PAYLOAD = 1448 / 1514
BOUND_S = (1_000_000 - 15 * 1024 * PAYLOAD) * 8 / (10_000_000 * PAYLOAD)


def test_a_good_trial_has_no_faults() -> None:
    assert faults(GOOD) == []


def test_the_bound_is_the_payload_less_a_burst_over_the_goodput() -> None:
    assert communication_bound_s(GOOD) == pytest.approx(BOUND_S)
    # 2(N-1)/N of the gradients: half as much again with four nodes
    four = communication_bound_s(replace(GOOD, nodes=4))
    assert four == pytest.approx(BOUND_S + 500_000 * 8 / (10_000_000 * PAYLOAD))


@pytest.mark.parametrize("change", [{"nodes": 1}, {"slowest": Shape()}])
def test_without_a_limited_link_there_is_no_bound(change: dict[str, object]) -> None:
    open_facts = replace(GOOD, **change, step_times_s=(1e-6,))  # type: ignore[arg-type]
    assert communication_bound_s(open_facts) is None
    assert faults(open_facts) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"host": replace(QUIET, idle_mean=0.04)}, "idle for 4.0% of the training"),
        ({"host": replace(QUIET, steal=0.2)}, "20.0% of the processor time was stolen"),
        ({"cpu_s": {"n1": 4.0, "n2": 4.5}}, "n2 used 0.45 cores with a budget of 0.4"),
        ({"step_times_s": (0.98 * BOUND_S,) * 3}, "too good to be true"),
    ],
)
def test_each_fault_is_told_in_a_sentence(change: dict[str, object], words: str) -> None:
    [told] = faults(replace(GOOD, **change))  # type: ignore[arg-type]
    assert words in told


@pytest.mark.parametrize(
    "change",
    [
        {"host": replace(QUIET, idle_mean=0.05)},
        {"host": replace(QUIET, steal=0.1)},
        {"cpu_s": {"n1": 4.0, "n2": 4.4}},
        {"step_times_s": (0.995 * BOUND_S,) * 3},
        {"host": None},
        {"mode": "shared", "host": replace(QUIET, idle_mean=0.0), "cpu_cores": {}},
        {"train_time_s": 0.5},  # too short to judge a quota by
        {"step_times_s": ()},
    ],
)
def test_what_is_within_the_tolerance_is_no_fault(change: dict[str, object]) -> None:
    assert faults(replace(GOOD, **change)) == []  # type: ignore[arg-type]


def test_one_fast_step_is_no_fault_but_a_fast_median_is() -> None:
    fast = 0.5 * BOUND_S
    assert faults(replace(GOOD, step_times_s=(fast, 1.0, 1.0))) == []
    assert len(faults(replace(GOOD, step_times_s=(fast, fast, 1.0)))) == 1


def test_all_faults_are_told_at_once() -> None:
    bad = replace(
        GOOD,
        host=HostUse(idle_mean=0.0, idle_min=0.0, steal=0.5),
        cpu_s={"n1": 9.0, "n2": 9.0},
        step_times_s=(0.01,),
    )
    assert len(faults(bad)) == 5


def times(idle: int, busy: int, steal: int = 0) -> CpuTimes:
    return CpuTimes(idle=idle, steal=steal, total=idle + busy + steal)


def test_the_hosts_use_is_between_the_first_and_the_last_sample() -> None:
    samples = [times(1000, 1000), times(1090, 1010), times(1100, 1100), times(1150, 1150)]
    found = host_use(samples)
    assert found is not None
    assert found.idle_mean == pytest.approx(150 / 300)
    assert found.idle_min == pytest.approx(10 / 100)
    assert found.steal == 0.0


def test_stolen_time_is_a_share_of_all_time() -> None:
    found = host_use([times(0, 0), times(50, 30, 20)])
    assert found == HostUse(idle_mean=0.5, idle_min=0.5, steal=0.2)


def test_samples_of_the_same_tick_say_nothing() -> None:
    assert host_use([]) is None
    assert host_use([times(5, 5)]) is None
    assert host_use([times(5, 5), times(5, 5)]) is None
    assert host_use([times(0, 0), times(0, 0), times(1, 1), times(1, 1)]) is not None


@given(st.lists(st.tuples(*[st.integers(0, 1000)] * 3), min_size=2, max_size=20))
def test_shares_are_between_0_and_1(steps: list[tuple[int, int, int]]) -> None:
    samples = [times(0, 0)]
    for idle, busy, steal in steps:
        last = samples[-1]
        samples.append(
            CpuTimes(
                idle=last.idle + idle,
                steal=last.steal + steal,
                total=last.total + idle + busy + steal,
            )
        )
    found = host_use(samples)
    if found is not None:
        assert 0 <= found.idle_min <= found.idle_mean + 1e-9
        assert found.idle_mean + found.steal <= 1 + 1e-9


def test_proc_stat_is_read_by_its_columns(tmp_path: Path) -> None:
    file = tmp_path / "stat"
    # user nice system idle iowait irq softirq steal guest guest_nice; guests are within user
    file.write_text("cpu  1 2 3 40 5 6 7 8 9 10\ncpu0 1 2 3 40 5 6 7 8 9 10\n")
    assert CpuTimes.read(file) == CpuTimes(idle=45, steal=8, total=72)


def test_the_monitor_samples_this_host_and_ends() -> None:
    with HostMonitor() as monitor:
        pass
    assert not monitor._thread.is_alive()
    found = monitor.use()
    assert found is None or 0 <= found.idle_mean <= 1
