"""The gate over real links: namespaces, veth, a Linux bridge, tc and iperf3. Root only."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from testbed.errors import MissingCapability, ShapingError
from testbed.host.capabilities import qdisc_kind_works
from testbed.host.local import LocalHost
from testbed.network.iperf3 import Peer
from testbed.network.shape import Endpoint, apply_shape, apply_shapes, qdisc_fault, read_qdisc
from testbed.network.verify import Link, verify
from testbed.scenario.model import Shape

MISSING = [program for program in ("ip", "tc", "ss", "iperf3") if not shutil.which(program)]
pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.skipif(bool(MISSING), reason=f"no {', '.join(MISSING)}"),
]

TEN = Shape(rate_bps=10_000_000)
Build = Callable[..., list[Link]]


def ip(*words: str, batch: str = "") -> None:
    subprocess.run(("ip", *words), input=batch, text=True, check=True, timeout=20)


@pytest.fixture
def lan() -> Iterator[Build]:
    """Builds nodes n1..nN with eth0 and eth1 on one bridge; removes what it built, in any case."""
    made: list[str] = []

    def build(shape: Shape, nodes: int = 2) -> list[Link]:
        tag = f"tl{secrets.token_hex(3)}"
        names = [f"{tag}-lab", *(f"{tag}-n{k}" for k in range(1, nodes + 1))]
        for name in names:
            ip("netns", "add", name)
            made.append(name)
        batch = ["link add br0 type bridge", "link set br0 up"]
        for k, name in enumerate(names[1:], start=1):
            batch += [f"link add h{k} type veth peer name eth1 netns {name}"]
            batch += [f"link set h{k} master br0 up"]
        ip("-n", names[0], "-batch", "-", batch="\n".join(batch))
        for k, name in enumerate(names[1:], start=1):
            batch = [f"addr add 10.10.0.{k}/24 dev eth1", "link set eth1 up", "link set lo up"]
            batch += ["link add eth0 type veth peer name unused", "link set eth0 up"]
            ip("-n", name, "-batch", "-", batch="\n".join(batch))
        lab, *hosts = (
            LocalHost(name=name.removeprefix(f"{tag}-"), prefix=("ip", "netns", "exec", name))
            for name in names
        )
        links = [
            Link(
                peer=Peer(name=host.name, host=host, address=f"10.10.0.{k}", device="eth1"),
                shape=shape,
                switch_end=Endpoint(host=lab, device=f"h{k}"),
            )
            for k, host in enumerate(hosts, start=1)
        ]
        apply_shapes([end for link in links for end in link.ends()])
        return links

    yield build
    for name in made:
        ip("netns", "del", name)


def node_end(link: Link) -> Endpoint:
    return link.ends()[0][0]


def switch_end(link: Link) -> Endpoint:
    return link.ends()[1][0]


def failed(links: list[Link]) -> str:
    found = verify(links, when="before")
    assert found.status == "fail", found.to_json()
    return "\n".join(found.reasons)


@pytest.mark.parametrize("rate_bps", [10_000_000, 100_000_000])
def test_clean_links_of_three_nodes_pass(lan: Build, rate_bps: int) -> None:
    links = lan(Shape(rate_bps=rate_bps), nodes=3)
    found = verify(links, when="before")
    assert found.status == "pass", found.reasons
    assert len([check for check in found.links if check.attempt == 1]) == 6
    for qdisc in found.qdiscs:
        assert (qdisc.kind, qdisc.rate_bps, qdisc.ok) == ("tbf", rate_bps, True)
        assert qdisc.grew_bytes > rate_bps / 8  # sent for 1 s in a pair and 1 s in the ring


def test_an_open_lan_is_measured_and_not_gated(lan: Build) -> None:
    found = verify(lan(Shape()), when="before")
    assert (found.status, found.reasons) == ("not_gated", ())
    assert all((check.measured_bps or 0) > 200_000_000 for check in found.links)


def test_a_queue_missing_at_one_end_is_found_though_iperf3_sees_nothing(lan: Build) -> None:
    links = lan(TEN)
    apply_shape(node_end(links[0]), Shape())
    found = verify(links, when="before")
    assert all((check.deviation or 0) < 0.03 for check in found.links)  # n2's other end limits it
    assert found.status == "fail"
    assert found.reasons[0] == (
        "before training: what n1 sends is wrong: eth1 of n1 has no qdisc, expected tbf at "
        "10 Mbit/s (one direction only is limited)."
    )


def test_no_queue_at_either_end_fails(lan: Build) -> None:
    links = [replace(link, shape=TEN) for link in lan(Shape())]
    text = failed(links)
    assert "n2 receives is wrong: h2 of lab has no qdisc" in text
    assert "neither direction is limited" in text
    assert "n1 -> n2 alone:" in text


def test_a_rate_8_times_too_fast_is_named(lan: Build) -> None:
    links = [replace(link, shape=TEN) for link in lan(Shape(rate_bps=80_000_000))]
    text = failed(links)
    assert "has rate 80 Mbit/s, expected 10 Mbit/s: 8 times too fast, bytes were taken" in text
    assert "n2 -> n1 alone: " in text
    assert "8 times too fast, as when bytes are taken for bits" in text


def test_a_stale_queue_of_another_rate_is_named(lan: Build) -> None:
    links = lan(TEN)
    apply_shape(switch_end(links[1]), Shape(rate_bps=100_000_000))
    text = failed(links)
    assert "what n2 receives is wrong: h2 of lab has rate 100 Mbit/s" in text
    assert "a stale qdisc" in text


def test_the_wrong_interface_is_named(lan: Build) -> None:
    links = lan(TEN)
    apply_shape(node_end(links[0]), Shape())
    apply_shape(Endpoint(host=links[0].peer.host, device="eth0"), TEN)
    assert "eth1 of n1 has no qdisc, expected tbf at 10 Mbit/s; but eth0 has it" in failed(links)


def test_one_direction_only_is_named(lan: Build) -> None:
    links = lan(TEN)
    apply_shape(node_end(links[0]), Shape())
    apply_shape(switch_end(links[1]), Shape())
    text = failed(links)
    assert "n1 -> n2 alone" in text
    assert "n2 -> n1 alone" not in text
    assert "n2 -> n1 is right, so one direction only is wrong" in text


def test_a_switch_that_cannot_carry_all_at_once_is_named(lan: Build) -> None:
    links = lan(TEN, nodes=4)
    lab = switch_end(links[0]).host
    # n1 and n2 on one bridge, n3 and n4 on another, 5 mbit between them: the pairs see nothing.
    lab.run(("ip", "link", "add", "br1", "type", "bridge"))
    lab.run(("ip", "link", "add", "trunk0", "type", "veth", "peer", "name", "trunk1"))
    for device, bridge in (("trunk0", "br0"), ("trunk1", "br1"), ("h3", "br1"), ("h4", "br1")):
        lab.run(("ip", "link", "set", device, "master", bridge, "up"))
    lab.run(("ip", "link", "set", "br1", "up"))
    for device in ("trunk0", "trunk1"):
        apply_shape(Endpoint(host=lab, device=device), Shape(rate_bps=5_000_000))
    text = failed(links)
    assert "n2 -> n3 with all nodes sending" in text
    assert "each link alone is right" in text
    assert "alone:" not in text


def test_what_tc_makes_of_a_shape_reads_back_as_that_shape(lan: Build) -> None:
    end = node_end(lan(TEN)[0])
    for rate_bps in (1_234_567, 100_000, 30_000_000, 2_500_000_000):
        shape = Shape(rate_bps=rate_bps)
        apply_shape(end, shape)
        assert qdisc_fault(read_qdisc(end.host, end.device), shape) is None
    for _ in range(2):
        apply_shape(end, Shape())
        assert read_qdisc(end.host, end.device).kind == "none"


def test_a_device_that_is_not_there_is_a_shaping_error_with_tcs_words(lan: Build) -> None:
    end = node_end(lan(TEN)[0])
    with pytest.raises(ShapingError, match='Cannot find device "eth9"'):
        apply_shape(replace(end, device="eth9"), TEN)


def test_delay_works_or_is_refused_by_naming_the_module(lan: Build) -> None:
    end = node_end(lan(TEN)[0])
    shape = replace(TEN, delay_us=20_000, loss=0.01)
    if not qdisc_kind_works(LocalHost(), "netem"):
        with pytest.raises(MissingCapability, match="sch_netem"):
            apply_shape(end, shape)
        assert qdisc_fault(read_qdisc(end.host, end.device), TEN) is None  # untouched
        return
    apply_shape(end, shape)
    assert qdisc_fault(read_qdisc(end.host, end.device), shape) is None
