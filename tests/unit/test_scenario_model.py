from __future__ import annotations

from ipaddress import IPv4Interface, IPv4Network
from typing import Any

import pytest

from testbed.errors import ScenarioError
from testbed.scenario.model import Lan, Node, Scenario, Shape, default_burst_bytes


def node(index: int, **other: Any) -> Node:
    given = {"name": f"n{index}", "address": IPv4Interface(f"10.10.0.{index}/24"), **other}
    return Node(**given)


def cluster(**other: Any) -> Scenario:
    return Scenario(**{"name": "s", "nodes": (node(1), node(2)), **other})


@pytest.mark.parametrize(("rate_bps", "kib"), [(10**6, 5), (10**7, 15), (10**8, 25), (10**9, 245)])
def test_the_default_burst_is_two_milliseconds_with_a_floor(rate_bps: int, kib: int) -> None:
    assert default_burst_bytes(rate_bps) == kib * 1024


@pytest.mark.parametrize(
    "given",
    [
        {"rate_bps": 0},
        {"rate_bps": -5},
        {"rate_bps": 999},
        {"burst_bytes": 5000},
        {"queue_us": 20_000},
        {"rate_bps": 10**7, "burst_bytes": 0},
        {"rate_bps": 10**7, "queue_us": 0},
        {"delay_us": -1},
        {"loss": 1.0},
        {"loss": float("nan")},
    ],
)
def test_a_shape_cannot_be_built_wrong(given: dict[str, Any]) -> None:
    with pytest.raises(ScenarioError, match=r"expected|without"):
        Shape(**given)


@pytest.mark.parametrize(
    "given",
    [
        {"name": "a" * 13},
        {"name": "N1"},
        {"name": "n_1"},
        {"name": "n1-"},
        {"name": "n1\n"},
        {"name": "knöten"},
        {"name": "localhost"},
        {"memory_bytes": 0},
        {"memory_bytes": 1024**2 + 1},
        {"cpu_cores": 0.0},
        {"cpu_cores": 0.125},
        {"cpu_cores": float("nan")},
        {"interface_id": 0},
        {"interface_id": 10},
        {"address": IPv4Interface("10.10.0.0/24")},
        {"address": IPv4Interface("10.10.0.255/24")},
        {"address": IPv4Interface("10.10.0.1/31")},
        {"address": IPv4Interface("127.0.0.1/8")},
        {"address": IPv4Interface("224.0.0.5/24")},
    ],
)
def test_a_node_cannot_be_built_wrong(given: dict[str, Any]) -> None:
    with pytest.raises(ScenarioError):
        node(1, **given)


def test_cores_lose_their_rounding_noise() -> None:
    assert node(1, cpu_cores=0.1 + 0.2).cpu_cores == 0.3


@pytest.mark.parametrize("name", ["a" * 13, "lo", "br_Mgmt", "LAN"])
def test_a_net_name_that_cannot_be_a_bridge_is_refused(name: str) -> None:
    with pytest.raises(ScenarioError, match="net name"):
        Lan(name=name)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"nodes": ()}, "0 nodes"),
        ({"name": "a b"}, "scenario name"),
        ({"name": "../up"}, "scenario name"),
        ({"nodes": (node(1), node(1))}, "address 10.10.0.1 is also that of n1"),
        ({"nodes": (node(1), node(2, name="n1"))}, "name 'n1' is used twice"),
        (
            {"nodes": (node(1), node(2, address=IPv4Interface("10.11.0.2/24")))},
            "not in 10.10.0.0/24",
        ),
        (
            {"lan": Lan(host_address=IPv4Interface("10.10.0.1/24"))},
            "also that of n1",
        ),
        ({"lan": Lan(host_address=IPv4Interface("10.9.0.9/24"))}, "host's address"),
        ({"lan": Lan(name="n1-e1")}, "named as the net"),
        ({"management": IPv4Network("10.250.0.0/28")}, "need 24 addresses"),
        ({"management": IPv4Network("10.0.0.0/7")}, "/8 to /30"),
        ({"management": IPv4Network("10.10.0.0/16")}, "overlaps"),
        ({"management_offset": 3}, "multiple of 4"),
        ({"mac_offset": 256}, "0 to 255"),
    ],
)
def test_a_scenario_cannot_be_built_wrong(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        cluster(**given)


def test_all_faults_of_a_scenario_come_at_once() -> None:
    with pytest.raises(ScenarioError) as caught:
        cluster(name="a b", mac_offset=256, management_offset=3)
    assert len(str(caught.value).splitlines()) == 3


def test_management_addresses_are_those_that_vnx_gives() -> None:
    assert str(cluster().management_address(1)) == "10.250.0.22/30"
    assert str(cluster().management_peer(1)) == "10.250.0.21/30"
    assert cluster().mac(0, 1) == "02:fd:00:07:01:01"
