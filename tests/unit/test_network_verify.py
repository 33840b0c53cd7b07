"""The gate's decisions, over a LAN that behaves."""

import json

import pytest
from fake_lan import FakeLan
from hypothesis import given
from hypothesis import strategies as st

from testbed.network.shape import apply_shape, apply_shapes
from testbed.network.verdict import Verdict
from testbed.network.verify import (
    Link,
    measurement_s,
    merge,
    schedule,
    tolerance,
    verify,
    window_bytes,
)
from testbed.scenario.model import Shape

TEN = Shape(rate_bps=10_000_000)
EIGHTY = Shape(rate_bps=80_000_000, burst_bytes=15_360)


def shaped(lan: FakeLan, *shapes: Shape) -> list[Link]:
    links = lan.links(*shapes)
    apply_shapes([end for link in links for end in link.ends()])
    return links


def verdict(links: list[Link]) -> Verdict:
    return verify(links, when="before")


def only_reason(found: Verdict) -> str:
    assert found.status == "fail"
    assert len(found.reasons) == 1, found.reasons
    return found.reasons[0]


@given(st.integers(2, 65))
def test_every_node_sends_and_receives_once_in_disjoint_pairs_and_once_in_the_ring(
    nodes: int,
) -> None:
    names = [f"n{k}" for k in range(nodes)]
    *pairs, ring = schedule(names)
    assert len(pairs) == 2 + nodes % 2
    for turn in pairs:
        busy = [name for flow in turn.flows for name in flow]
        assert turn.test == "pair"
        assert len(busy) == len(set(busy))
    flows = [flow for turn in pairs for flow in turn.flows]
    for all_flows in (flows, ring.flows):
        assert sorted(sender for sender, _ in all_flows) == sorted(names)
        assert sorted(receiver for _, receiver in all_flows) == sorted(names)
        assert all(sender != receiver for sender, receiver in all_flows)
    assert ring.test == "ring"


def test_the_ring_of_two_is_both_directions_at_once() -> None:
    assert schedule(["a", "b"])[-1].flows == (("a", "b"), ("b", "a"))


def test_one_node_has_no_link_to_verify() -> None:
    assert schedule(["a"]) == ()
    lan = FakeLan(nodes=1)
    assert verify(lan.links(TEN), when="before") == Verdict(status="not_applicable")
    assert lan.hosts["n1"].commands == []


@pytest.mark.parametrize(
    ("rate_bps", "seconds"),
    [(100_000, 20), (500_000, 4), (1_000_000, 2), (10_000_000, 1), (10**9, 1)],
)
def test_slow_links_are_measured_longer(rate_bps: int, seconds: float) -> None:
    assert measurement_s(Shape(rate_bps=rate_bps)) == seconds


def test_a_large_bucket_is_measured_longer() -> None:
    assert measurement_s(Shape(rate_bps=10_000_000, burst_bytes=65_536)) == 3


@pytest.mark.parametrize(
    ("rate_bps", "window"),
    [(1_000_000, 5_685), (10_000_000, 16_384), (100_000_000, 100_000), (10**9, 200_000)],
)
def test_the_window_never_overflows_the_queue(rate_bps: int, window: int) -> None:
    shape = Shape(rate_bps=rate_bps)
    assert window_bytes(shape) == window
    assert window < rate_bps * shape.queue_us / 8e6 + (shape.burst_bytes or 0)


def test_tcp_finds_its_own_window_over_a_delay_and_without_a_rate() -> None:
    assert window_bytes(Shape(rate_bps=10_000_000, delay_us=1)) is None
    assert window_bytes(Shape()) is None


def test_tolerances_widen_upwards_and_in_the_ring() -> None:
    gigabit = Shape(rate_bps=10**9)
    assert (tolerance("pair", TEN), tolerance("pair", gigabit)) == ((-0.05, 0.03), (-0.08, 0.03))
    assert tolerance("ring", TEN) == (-0.09, 0.03)
    assert tolerance("pair", Shape(rate_bps=10_000_000, loss=0.01)) == (-1.0, 0.03)


@pytest.mark.parametrize("nodes", [2, 3, 4, 7])
def test_clean_links_pass_and_everything_measured_is_kept(nodes: int) -> None:
    lan = FakeLan(nodes=nodes)
    found = verdict(shaped(lan, TEN))
    assert (found.status, found.reasons) == ("pass", ())
    assert len(found.links) == 2 * nodes
    assert len(found.qdiscs) == 2 * nodes
    assert {check.attempt for check in found.links} == {1}
    assert all(check.deviation == pytest.approx(0) for check in found.links)


def test_a_slow_node_slows_only_its_own_links() -> None:
    lan = FakeLan(nodes=4)
    found = verdict(shaped(lan, TEN, TEN, Shape(rate_bps=1_000_000), TEN))
    assert found.status == "pass"
    expected = {(c.sender, c.receiver): round(c.expected_bps or 0) for c in found.links}
    assert expected["n1", "n2"] == 9_564_069
    assert expected["n2", "n3"] == expected["n3", "n4"] == 956_407


def test_an_open_lan_is_measured_but_not_judged() -> None:
    lan = FakeLan(nodes=2)
    found = verdict(shaped(lan, Shape()))
    assert (found.status, found.reasons) == ("not_gated", ())
    written = found.to_json()["links"][0]
    assert written["measured_bps"] > 9e9
    assert not {"expected_bps", "deviation", "tolerance", "error"} & set(written)


def test_an_open_lan_that_carries_nothing_fails() -> None:
    lan = FakeLan(nodes=2, cut={"n2"})
    assert verdict(shaped(lan, Shape())).status == "fail"


def test_an_outlier_is_measured_once_more_for_longer_and_both_are_kept() -> None:
    lan = FakeLan(nodes=2, wobble=[0.9])
    found = verdict(shaped(lan, TEN))
    assert found.status == "pass"
    first, second = found.links[:2]
    assert (first.attempt, first.ok, first.seconds) == (1, False, 1)
    assert (second.attempt, second.ok, second.seconds) == (2, True, 3)
    assert first.sender == second.sender == "n1"


def test_an_outlier_in_the_ring_is_measured_with_all_nodes_again() -> None:
    lan = FakeLan(nodes=4, wobble=[1, 1, 1, 1, 1, 1, 0.8])
    found = verdict(shaped(lan, TEN))
    assert found.status == "pass"
    assert [check.attempt for check in found.links if check.test == "ring"] == [1] * 4 + [2] * 4


def test_one_missing_queue_that_iperf3_cannot_see_fails() -> None:
    lan = FakeLan(nodes=2)
    links = shaped(lan, TEN)
    apply_shape(links[0].ends()[0][0], Shape())
    found = verdict(links)
    assert all(check.ok for check in found.links)  # the switch's end of n2 still limits it
    assert only_reason(found) == (
        "before training: what n1 sends is wrong: eth1 of n1 has no qdisc, expected tbf at "
        "10 Mbit/s (one direction only is limited)."
    )


def test_no_queue_at_all_is_seen_by_both() -> None:
    lan = FakeLan(nodes=2)
    found = verdict(lan.links(TEN))
    text = "\n".join(found.reasons)
    assert found.status == "fail"
    assert "has no qdisc, expected tbf at 10 Mbit/s (neither direction is limited)" in text
    assert "n1 -> n2 alone: 19.13 Gbit/s where 9.564 Mbit/s were expected" in text
    assert "a queue is missing or wrong, see the reasons above" in text


def test_bytes_taken_for_bits_are_named() -> None:
    lan = FakeLan(nodes=2)
    links = lan.links(TEN)
    for link in links:
        for end, _ in link.ends():
            apply_shape(end, EIGHTY)
    text = "\n".join(verdict(links).reasons)
    assert "has rate 80 Mbit/s, expected 10 Mbit/s: 8 times too fast, bytes were taken" in text
    assert "n1 -> n2 alone: 76.51 Mbit/s where 9.564 Mbit/s were expected (+700.0%" in text


def test_one_direction_only_is_named() -> None:
    lan = FakeLan(nodes=2)
    links = shaped(lan, TEN)
    (n1_sends, _), _ = links[0].ends()
    _, (n2_receives, _) = links[1].ends()
    for end in (n1_sends, n2_receives):
        apply_shape(end, Shape())
    text = "\n".join(verdict(links).reasons)
    assert "n1 -> n2 alone" in text
    assert "n2 -> n1 is right, so one direction only is wrong" in text
    assert "n2 -> n1 alone" not in text


def test_a_stale_queue_is_named() -> None:
    lan = FakeLan(nodes=2)
    links = shaped(lan, TEN)
    apply_shape(links[1].ends()[1][0], Shape(rate_bps=100_000_000))
    assert "h2 of lab has rate 100 Mbit/s, expected 10 Mbit/s: a stale qdisc" in only_reason(
        verdict(links)
    )


def test_a_stale_queue_on_an_open_link_is_named() -> None:
    lan = FakeLan(nodes=2)
    shaped(lan, TEN)
    found = verdict(lan.links(Shape()))
    assert found.status == "fail"
    assert "has a stale qdisc (tbf at 10 Mbit/s) on a link that should be open" in found.reasons[0]


def test_the_wrong_interface_is_named() -> None:
    lan = FakeLan(nodes=2)
    links = shaped(lan, TEN)
    queues = lan.hosts["n1"].queues
    (queue,) = queues.pop("eth1")
    queues["eth0"] = [queue | {"dev": "eth0"}]
    assert "but eth0 has it: the wrong interface was shaped" in only_reason(verdict(links))


def test_traffic_that_leaves_by_another_interface_is_caught_by_its_bytes() -> None:
    lan = FakeLan(nodes=2, detours={"n1": "eth0"})
    reason = only_reason(verdict(shaped(lan, TEN)))
    assert "eth1 of n1 counted 0 bytes while iperf3 moved 250000" in reason


def test_an_oversubscribed_switch_is_told_from_bad_links() -> None:
    lan = FakeLan(nodes=4, capacity_bps=30_000_000)  # two pairs fit, four flows do not
    found = verdict(shaped(lan, TEN))
    assert found.status == "fail"
    assert len(found.reasons) == 4
    assert "each link alone is right" in found.reasons[0]
    assert "oversubscribed" in found.reasons[0]


def test_a_node_that_nobody_reaches_is_a_reason_not_a_crash() -> None:
    lan = FakeLan(nodes=3, cut={"n2"})
    found = verdict(shaped(lan, TEN))
    assert found.status == "fail"
    assert "n1 -> n2 alone: nothing was measured (iperf3: unable to connect" in found.reasons[0]
    failed = next(check for check in found.to_json()["links"] if not check["ok"])
    assert "measured_bps" not in failed  # what is not measured is absent


def test_a_far_end_that_nobody_can_read_is_left_out() -> None:
    lan = FakeLan(nodes=2)
    links = [Link(peer=link.peer, shape=TEN) for link in lan.links(TEN)]
    apply_shapes([end for link in links for end in link.ends()])
    found = verdict(links)
    assert found.status == "pass"
    assert [check.end for check in found.qdiscs] == ["node", "node"]


def test_a_trial_passes_only_if_both_gates_do() -> None:
    good, bad = Verdict(status="pass"), Verdict(status="fail", reasons=("slow",))
    assert merge(good, good).status == "pass"
    assert merge(good, bad) == merge(bad, good) == Verdict(status="fail", reasons=("slow",))
    alone = Verdict(status="not_applicable")
    assert merge(alone, alone) == alone


def test_a_verdict_is_written_as_json_with_the_agreed_keys() -> None:
    lan = FakeLan(nodes=2)
    written = json.loads(json.dumps(verdict(shaped(lan, TEN)).to_json()))
    assert set(written) == {"status", "reasons", "links", "qdiscs"}
    agreed = {"when", "test", "sender", "receiver", "expected_bps", "measured_bps", "deviation"}
    agreed |= {"tolerance", "retransmits", "ok", "attempt"}
    assert agreed <= set(written["links"][0])
    agreed = {"when", "host", "device", "kind", "rate_bps", "burst_bytes", "sent_bytes", "drops"}
    assert agreed | {"ok"} <= set(written["qdiscs"][0])
    assert written["links"][0]["tolerance"] == [-0.05, 0.03]
