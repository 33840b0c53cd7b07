"""What tc is told, whole, and what is understood of its answers."""

import dataclasses
import json

import pytest
from fake_lan import FakeLan
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import MissingCapability, ShapingError
from testbed.network.shape import (
    Endpoint,
    Qdisc,
    apply_shape,
    apply_shapes,
    ingress_shape,
    parse_qdiscs,
    qdisc_fault,
    qdisc_kind,
    read_qdisc,
    tc_batch,
    tc_commands,
)
from testbed.scenario.model import Shape

TEN = Shape(rate_bps=10_000_000)
CLEAN = Qdisc(kind="tbf", rate_bps=10_000_000, burst_bytes=15_360, latency_us=50_000)


def test_a_rate_is_one_tbf_in_bits_bytes_and_microseconds() -> None:
    assert [" ".join(words) for words in tc_commands("eth1", TEN)] == [
        "qdisc replace dev eth1 root tbf rate 10000000bit burst 15360b latency 50000us"
    ]


def test_an_open_link_is_made_by_explicit_removal() -> None:
    assert [" ".join(words) for words in tc_commands("eth1", Shape())] == [
        "qdisc replace dev eth1 root pfifo",
        "qdisc del dev eth1 root",
    ]


def test_delay_and_loss_are_a_netem_over_the_tbf() -> None:
    shape = Shape(rate_bps=10_000_000, delay_us=20_000, loss=0.01)
    assert [" ".join(words) for words in tc_commands("eth1", shape)] == [
        "qdisc replace dev eth1 root handle 7b: netem limit 1000 delay 20000us loss 1%",
        "qdisc replace dev eth1 parent 7b:1 handle 7c: "
        "tbf rate 10000000bit burst 15360b latency 50000us",
    ]


def test_loss_without_a_rate_is_netem_alone() -> None:
    assert [" ".join(words) for words in tc_commands("eth1", Shape(loss=0.001))] == [
        "qdisc replace dev eth1 root handle 7b: netem limit 1000 loss 0.1%"
    ]


def test_netem_has_room_for_all_packets_on_their_way() -> None:
    # 1 gbit x 100 ms = 12.5 MB = 8256 frames of 1514 bytes, twice over
    words = tc_commands("eth1", Shape(rate_bps=1_000_000_000, delay_us=100_000))[0]
    assert words[words.index("limit") + 1] == "16512"


def test_many_devices_are_one_batch() -> None:
    assert tc_batch([("h1", TEN), ("h2", Shape())]).splitlines() == [
        "qdisc replace dev h1 root tbf rate 10000000bit burst 15360b latency 50000us",
        "qdisc replace dev h2 root pfifo",
        "qdisc del dev h2 root",
    ]


def test_delay_and_loss_are_imposed_once_where_the_node_sends() -> None:
    shape = Shape(rate_bps=10_000_000, delay_us=20_000, loss=0.01)
    assert ingress_shape(shape) == TEN


def test_64_links_are_one_tc_process_per_machine() -> None:
    lan = FakeLan(nodes=64)
    apply_shapes([end for link in lan.links(TEN) for end in link.ends()])
    assert [host.commands for host in lan.hosts.values()] == [[("tc", "-batch", "-")]] * 65
    assert qdisc_fault(read_qdisc(lan.hosts["lab"], "h64"), TEN) is None


def test_shaping_may_be_repeated_and_removed_twice() -> None:
    end = Endpoint(host=FakeLan(nodes=2).hosts["n1"], device="eth1")
    for shape in (TEN, TEN, Shape(), Shape(), Shape(rate_bps=1_000_000)):
        apply_shape(end, shape)
        assert qdisc_fault(read_qdisc(end.host, "eth1"), shape) is None


def test_a_refusal_of_tc_says_what_was_asked_and_what_it_answered() -> None:
    end = Endpoint(host=FakeLan(nodes=2).hosts["n1"], device="eth1")
    with pytest.raises(ShapingError, match="kind is unknown") as caught:
        apply_shape(end, Shape(loss=0.5))  # the fake has the module, and still refuses
    assert "tc qdisc replace dev eth1 root handle 7b: netem" in str(caught.value)


def test_delay_without_netem_is_refused_before_anything_is_touched() -> None:
    lan = FakeLan(nodes=2, has_netem=False)
    slow = Shape(rate_bps=10_000_000, delay_us=20_000)
    with pytest.raises(MissingCapability, match="sch_netem"):
        apply_shapes([end for link in lan.links(TEN, slow) for end in link.ends()])
    assert not any("-batch" in words for host in lan.hosts.values() for words in host.commands)


# What `tc -j -s qdisc show` wrote (iproute2 6.1, Linux 6.18).
REAL = """[{"kind":"tbf","handle":"8008:","dev":"eth1","root":true,"refcnt":3,
"options":{"rate":1250000,"burst":15360,"lat":50000},"bytes":1372277,"packets":930,"drops":4,
"overlimits":1745,"requeues":0,"backlog":0,"qlen":0},
{"kind":"noqueue","handle":"0:","dev":"lo","root":true,"refcnt":2,"options":{}},
{"kind":"ingress","handle":"ffff:","dev":"h9","parent":"ffff:fff1","options":{}}]"""


def test_tc_prints_rates_in_bytes_per_second() -> None:
    found = parse_qdiscs(REAL)
    assert found["eth1"] == dataclasses.replace(CLEAN, sent_bytes=1_372_277, drops=4)


def test_a_device_without_a_queue_of_its_own_has_none() -> None:
    found = parse_qdiscs(REAL)
    assert {found[device].kind for device in ("lo", "h9", "unheard-of")} == {"none"}
    assert parse_qdiscs("")["eth1"].kind == "none"


def test_a_tbf_under_a_netem_is_read_as_both() -> None:
    netem = {
        "kind": "netem",
        "handle": "7b:",
        "dev": "eth1",
        "root": True,
        "options": {"limit": 1000, "delay": {"delay": 0.02}, "loss-random": {"loss": 0.01}},
        "bytes": 7,
        "drops": 2,
    }
    tbf = {
        "kind": "tbf",
        "handle": "7c:",
        "dev": "eth1",
        "parent": "7b:1",
        "options": {"rate": 1_250_000, "burst": 15_360, "lat": 50_000},
    }
    shape = Shape(rate_bps=10_000_000, delay_us=20_000, loss=0.01)
    found = parse_qdiscs(json.dumps([tbf, netem]))["eth1"]
    assert (found.kind, found.delay_us, found.loss) == ("netem+tbf", 20_000, 0.01)
    assert (found.rate_bps, found.sent_bytes, found.drops) == (10_000_000, 7, 2)
    assert qdisc_fault(found, shape) is None
    for wanted, words in (
        (dataclasses.replace(shape, delay_us=1), "delays by 20000 us, expected 1 us"),
        (dataclasses.replace(shape, loss=0.02), "loses 1.0000%, expected 2.0000%"),
    ):
        assert qdisc_fault(found, wanted) == words


def test_a_stale_child_under_our_tbf_is_noticed() -> None:
    child = {"kind": "netem", "handle": "10:", "dev": "eth1", "parent": "8008:1", "options": {}}
    entries = [*json.loads(REAL), child]
    fault = qdisc_fault(parse_qdiscs(json.dumps(entries))["eth1"], TEN)
    assert fault is not None
    assert "wrong kind of qdisc (tbf+netem" in fault


@pytest.mark.parametrize(
    ("there", "shape", "words"),
    [
        (Qdisc(kind="none"), TEN, "has no qdisc, expected tbf at 10 Mbit/s"),
        (CLEAN, Shape(), "stale qdisc (tbf at 10 Mbit/s)"),
        (Qdisc(kind="htb"), TEN, "wrong kind of qdisc (htb)"),
        (dataclasses.replace(CLEAN, rate_bps=80_000_000), TEN, "8 times too fast"),
        (dataclasses.replace(CLEAN, rate_bps=1_250_000), TEN, "8 times too slow"),
        (dataclasses.replace(CLEAN, rate_bps=100_000_000), TEN, "a stale qdisc"),
        (dataclasses.replace(CLEAN, burst_bytes=1_600), TEN, "burst of 1600 bytes, expected 15360"),
    ],
)
def test_each_wrong_queue_is_named(there: Qdisc, shape: Shape, words: str) -> None:
    assert words in (qdisc_fault(there, shape) or "")


def test_what_the_kernel_rounds_is_no_fault() -> None:
    gigabit = Shape(rate_bps=1_000_000_000, burst_bytes=262_144)
    read = Qdisc(kind="tbf", rate_bps=1_000_000_000, burst_bytes=262_125)
    assert qdisc_fault(read, gigabit) is None
    odd = Shape(rate_bps=1_234_567)
    assert odd.burst_bytes == 5_120
    assert qdisc_fault(Qdisc(kind="tbf", rate_bps=1_234_560, burst_bytes=5_119), odd) is None


@given(
    rate_bps=st.none() | st.integers(1_000, 10**10),
    delay_us=st.integers(0, 10**6),
    loss=st.floats(0, 0.99),
)
def test_every_shape_replaces_the_root_and_names_its_device_in_each_command(
    rate_bps: int | None, delay_us: int, loss: float
) -> None:
    shape = Shape(rate_bps=rate_bps, delay_us=delay_us, loss=loss)
    commands = tc_commands("eth7", shape)
    assert commands[0][:5] == ("qdisc", "replace", "dev", "eth7", "root")
    assert all(words[2:4] == ("dev", "eth7") for words in commands)
    spoken = {word for words in commands for word in words}
    assert ("tbf" in spoken, "netem" in spoken) == (
        rate_bps is not None,
        bool(delay_us or loss),
    )
    assert set(qdisc_kind(shape).split("+")) - {"none"} == spoken & {"tbf", "netem"}
