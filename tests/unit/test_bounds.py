"""Bounds against arithmetic on paper and, for the ring, a simulation of its messages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed import bounds

MB = 1_000_000
GOODPUT = 8e6  # 1 MB/s, so that megabytes are seconds


def test_a_perfect_10_mbit_link_carries_9_564_mbit_of_payload() -> None:
    # 1448 bytes of payload in a frame of 1514
    assert bounds.expected_goodput_bps(10_000_000) == pytest.approx(9_564_068, abs=1)


def test_jumbo_frames_waste_less() -> None:
    assert bounds.expected_goodput_bps(1, mtu=9000) == pytest.approx(8948 / 9014)


def test_an_mtu_without_room_for_payload_is_refused() -> None:
    with pytest.raises(ValueError, match="MTU 52"):
        bounds.expected_goodput_bps(10_000_000, mtu=52)


def test_one_node_exchanges_nothing() -> None:
    assert bounds.allreduce_bytes(MB, 1) == 0
    assert bounds.ring_allreduce_s(MB, 1, GOODPUT, latency_s=1.0) == 0
    assert bounds.tree_allreduce_s(MB, 1, GOODPUT, latency_s=1.0) == 0
    assert bounds.halving_doubling_allreduce_s(MB, 1, GOODPUT, latency_s=1.0) == 0


@pytest.mark.parametrize(("nodes", "megabytes"), [(2, 1.0), (4, 1.5), (8, 1.75)])
def test_a_ring_moves_twice_all_but_one_share(nodes: int, megabytes: float) -> None:
    assert bounds.ring_allreduce_s(MB, nodes, GOODPUT) == pytest.approx(megabytes)
    assert bounds.allreduce_lower_bound_s(MB, nodes, GOODPUT) == pytest.approx(megabytes)


def test_a_ring_pays_the_latency_of_each_of_its_messages() -> None:
    assert bounds.ring_allreduce_s(MB, 4, GOODPUT, latency_s=0.01) == pytest.approx(1.5 + 6 * 0.01)


@given(st.integers(1, 40))
def test_the_ring_formula_counts_the_messages_of_a_real_ring(nodes: int) -> None:
    # Reduce-scatter and all-gather: in each of N-1 turns every node passes one chunk of S/N on.
    chunk = 1 / nodes
    sent = sum(chunk for _phase in range(2) for _turn in range(nodes - 1))
    assert bounds.allreduce_bytes(1, nodes) == pytest.approx(sent)


def test_a_full_bucket_shortens_a_small_transfer_as_measured() -> None:
    # docs/network.md: 62 kB over 10 mbit with a burst of 15 kB took 0.76 of the naive bound.
    goodput_bps = bounds.expected_goodput_bps(10_000_000)
    naive_s = bounds.transfer_s(62_000, goodput_bps)
    honest_s = bounds.transfer_s(62_000, goodput_bps, burst_bytes=15_360)
    assert honest_s / naive_s == pytest.approx(0.763, abs=0.001)


def test_each_idle_gap_fills_the_bucket_once_and_no_time_is_negative() -> None:
    full_frames = 1514 * 10  # ten frames, 14480 bytes of payload
    once = bounds.transfer_s(28_960, GOODPUT, burst_bytes=full_frames)
    assert once == pytest.approx(14_480 / MB)
    assert bounds.transfer_s(28_960, GOODPUT, burst_bytes=full_frames, idle_gaps=3) == 0


def test_a_tree_and_halving_doubling_take_their_published_times() -> None:
    assert bounds.tree_allreduce_s(MB, 5, GOODPUT, latency_s=0.1) == pytest.approx(6 * 1.1)
    halving = bounds.halving_doubling_allreduce_s(MB, 8, GOODPUT, latency_s=0.1)
    assert halving == pytest.approx(0.6 + 1.75)


@pytest.mark.parametrize(
    ("workers", "servers", "overlapping", "seconds"),
    [(4, 1, True, 4.0), (4, 1, False, 8.0), (4, 2, True, 2.0), (4, 8, True, 1.0)],
)
def test_a_parameter_server_is_as_slow_as_its_busiest_link(
    workers: int, servers: int, overlapping: bool, seconds: float
) -> None:
    found = bounds.parameter_server_s(
        MB, workers, GOODPUT, servers=servers, overlapping=overlapping
    )
    assert found == pytest.approx(seconds)


@given(
    gradient_bytes=st.floats(1e3, 1e9),
    t1_step_s=st.floats(1e-3, 1e3),
    nodes=st.integers(2, 250),
)
def test_at_break_even_n_nodes_are_as_fast_as_one_whatever_n(
    gradient_bytes: float, t1_step_s: float, nodes: int
) -> None:
    goodput_bps = bounds.break_even_bps(gradient_bytes, t1_step_s)
    assert bounds.synchronous_step_s(
        t1_step_s, gradient_bytes, nodes, goodput_bps
    ) == pytest.approx(t1_step_s)


@given(
    gradient_bytes=st.floats(0, 1e9),
    nodes=st.integers(1, 250),
    goodput_bps=st.floats(1e3, 1e10),
    latency_s=st.floats(0, 1),
)
def test_no_collective_beats_the_lower_bound(
    gradient_bytes: float, nodes: int, goodput_bps: float, latency_s: float
) -> None:
    least_s = bounds.allreduce_lower_bound_s(gradient_bytes, nodes, goodput_bps)
    for collective in (
        bounds.ring_allreduce_s,
        bounds.tree_allreduce_s,
        bounds.halving_doubling_allreduce_s,
    ):
        taken_s = collective(gradient_bytes, nodes, goodput_bps, latency_s=latency_s)
        assert taken_s >= least_s * (1 - 1e-12)


def test_impossible_quantities_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="goodput_bps"):
        bounds.transfer_s(1, 0)
    with pytest.raises(ValueError, match="nodes"):
        bounds.ring_allreduce_s(1, 0, GOODPUT)
    with pytest.raises(ValueError, match="t1_step_s"):
        bounds.break_even_bps(1, 0)
    with pytest.raises(ValueError, match="burst_bytes"):
        bounds.transfer_s(1, 1, burst_bytes=-1)
