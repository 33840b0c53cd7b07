"""Clusters of each backend, started once for each file of tests that looks at them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from clusters import lan
from machine import State, assert_as_before, machine_state

from testbed.provision.cluster import Cluster, provisioned
from testbed.scenario.model import Switch


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("lxc", "openvswitch"), id="lxc-openvswitch"),
        pytest.param(("netns", "virtual_bridge"), id="netns-bridge"),
    ],
)
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Two nodes n1 and n2, unshaped; nothing of them is left in the end."""
    backend: str
    switch: Switch
    backend, switch = request.param
    before = machine_state()
    with provisioned(lan(switch=switch), backend) as up:
        yield up
    assert_as_before(before)


@pytest.fixture
def before() -> State:
    """What the machine held when the test began."""
    return machine_state()
