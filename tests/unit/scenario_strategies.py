"""Hypothesis strategies for whole scenarios."""

from __future__ import annotations

from ipaddress import IPv4Interface, IPv4Network

from hypothesis import strategies as st

from testbed import units
from testbed.scenario.model import (
    MIN_RATE_BPS,
    RESERVED_NAMES,
    SWITCHES,
    Lan,
    Node,
    Scenario,
    Shape,
)

names = st.from_regex(r"[a-z]([a-z0-9-]{0,10}[a-z0-9])?", fullmatch=True).filter(
    lambda name: name not in RESERVED_NAMES
)
scenario_names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", fullmatch=True)


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    delay_us = draw(st.just(0) | st.integers(0, units.MAX_DELAY_US))
    loss = draw(st.just(0.0) | st.floats(0, 1, exclude_max=True))
    if draw(st.booleans()):
        return Shape(delay_us=delay_us, loss=loss)
    return Shape(
        rate_bps=draw(st.integers(MIN_RATE_BPS, units.MAX_RATE_BPS)),
        burst_bytes=draw(st.none() | st.integers(1, units.MAX_BURST_BYTES)),
        queue_us=draw(st.integers(1, units.MAX_DELAY_US)),
        delay_us=delay_us,
        loss=loss,
    )


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    count = draw(st.integers(1, 5))
    prefix = draw(st.integers(24, 28))
    network = IPv4Network((draw(st.sampled_from(["10.10.0.0", "192.168.7.0"])), prefix))
    hosts = draw(
        st.lists(
            st.integers(1, network.num_addresses - 2),
            min_size=count + 1,
            max_size=count + 1,
            unique=True,
        )
    )
    addresses = [IPv4Interface((network[host], prefix)) for host in hosts]
    node_names = draw(st.lists(names, min_size=count, max_size=count, unique=True))
    nodes = tuple(
        Node(
            name=name,
            address=address,
            shape=draw(shapes()),
            memory_bytes=draw(st.integers(1, 2**20)) * 1024**2,
            cpu_cores=draw(st.none() | st.integers(1, 102_400).map(lambda cent: cent / 100)),
            interface_id=draw(st.integers(1, 9)),
        )
        for name, address in zip(node_names, addresses[1:], strict=True)
    )
    devices = {f"{node.name}-e{number}" for node in nodes for number in (0, node.interface_id)}
    offset = 4 * draw(st.integers(0, 10))
    return Scenario(
        name=draw(scenario_names),
        nodes=nodes,
        lan=Lan(
            name=draw(names.filter(lambda name: name not in devices)),
            switch=draw(st.sampled_from(SWITCHES)),
            host_address=draw(st.none() | st.just(addresses[0])),
        ),
        management=draw(
            st.sampled_from([IPv4Network("10.250.0.0/16"), IPv4Network("172.16.4.0/26")])
        ),
        management_offset=offset,
        mac_offset=draw(st.integers(0, 255)),
    )
