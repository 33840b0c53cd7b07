"""From a checked document to a Scenario: the part of the file that the testbed builds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from ipaddress import IPv4Interface, IPv4Network
from typing import TypeVar, cast

from lxml import etree

from testbed import units
from testbed.errors import InputError, ScenarioError
from testbed.scenario.document import Document, Finding, errors, found, interface, line_of, text_of
from testbed.scenario.model import (
    DEFAULT_MEMORY_BYTES,
    MAX_NODES,
    Lan,
    Node,
    Scenario,
    Shape,
    Switch,
    address_fault,
    management_faults,
    node_faults,
)
from testbed.scenario.rules import refused, structure, traps
from testbed.scenario.rules.traps import MAX_AUTOMAC

T = TypeVar("T")

_RULES = (*structure.RULES, *refused.RULES, *traps.RULES)


def examine(document: Document) -> tuple[Scenario | None, list[Finding]]:
    """Return the scenario, if the file has no errors, and all that was found in it."""
    if document.root.tag != "vnx":
        return None, list(structure.known_elements(document))
    findings = [finding for rule in _RULES for finding in rule(document)]
    known = {finding.line for finding in errors(findings)}
    scenario, faults = _read(document.root)
    # A value that a rule has named already is not named again.
    findings += [fault for fault in faults if fault.line not in known]
    return (None if any(errors(findings)) else scenario), findings


def _read(root: etree._Element) -> tuple[Scenario | None, list[Finding]]:
    """Return the scenario, or all reasons why the values of the file make none."""
    findings: list[Finding] = []
    nodes: list[Node] = []
    elements: list[etree._Element] = []
    for vm in root.findall("vm"):
        node = _node(vm, findings)
        if node is not None:
            nodes.append(node)
            elements.append(vm)
    lan = _lan(root, findings)
    # Without a LAN the nodes are compared all the same.
    for index, field, message in node_faults(nodes, lan or Lan(name="lan")):
        if field == "count" and root.find("vm") is not None:
            if len(nodes) > MAX_NODES:
                return None, findings  # traps.vm_count says so
            continue  # each vm that could not be read has its own fault
        at = elements[index] if index >= 0 else root
        place = {"address": "if/ipv4", "host": "host/hostif/ipv4"}.get(field, ".")
        findings.append(_fault(_first(at, place), message))
    management = _management(root, nodes, findings)
    name = root.find("global/scenario_name")
    offset = _mac_offset(root)
    if findings or lan is None or management is None or name is None or offset is None:
        return None, findings
    network, management_offset = management
    scenario = _Reading(findings)(
        name,
        lambda: Scenario(
            name=text_of(name),
            nodes=tuple(nodes),
            lan=lan,
            management=network,
            management_offset=management_offset,
            mac_offset=offset,
        ),
    )
    return scenario, findings


def _lan(root: etree._Element, findings: list[Finding]) -> Lan | None:
    net = _only(root, "net", findings)
    hostif = _at_most_one(root, "host/hostif", findings)
    host_address = None if hostif is None else _address(hostif, findings)
    if net is None:
        return None
    # Lan itself refuses a mode that is not a switch.
    switch = cast(Switch, net.get("mode", ""))
    name = net.get("name", "")
    return _Reading(findings)(net, lambda: Lan(name=name, switch=switch, host_address=host_address))


def _management(
    root: etree._Element, nodes: list[Node], findings: list[Finding]
) -> tuple[IPv4Network, int] | None:
    """Return the management network and its offset; VNX's defaults hold for what is left out."""
    element = root.find("global/vm_mgmt")
    if element is None:
        return None  # refused.management says so
    try:
        network = IPv4Network(
            f"{element.get('network', '192.168.0.0')}/{element.get('mask', '24')}"
        )
        offset = int(element.get("offset", "0"))
    except ValueError as error:
        findings.append(_fault(element, str(error)))
        return None
    faults = [*management_faults(network, offset, len(nodes))]
    if any(network.overlaps(node.address.network) for node in nodes):
        faults.append(f"the management network {network} overlaps the nodes' LAN")
    findings.extend(_fault(element, message) for message in faults)
    return network, offset


def _mac_offset(root: etree._Element) -> int | None:
    """Return automac's offset, or None where traps.mac_offset says why it is none."""
    element = root.find("global/automac")
    given = "0" if element is None else element.get("offset", "0")
    return int(given) if re.fullmatch(r"[0-9]{1,3}", given) and int(given) <= MAX_AUTOMAC else None


def _node(vm: etree._Element, findings: list[Finding]) -> Node | None:
    link = _only(vm, "if", findings)
    if link is None:
        return None
    memory, quota = vm.find("mem"), vm.get("vcpu_quota")
    read = _Reading(findings)
    address = _address(link, findings)
    shape = read(link, lambda: _shape(link))
    interface_id = read(link, lambda: _interface_id(link))
    memory_bytes: int | None = DEFAULT_MEMORY_BYTES
    if memory is not None:
        memory_bytes = read(memory, lambda: units.parse_memory(text_of(memory)))
    cpu_cores = None if quota is None else read(vm, lambda: units.parse_cpu(quota))
    if address is None or shape is None or interface_id is None or memory_bytes is None:
        return None
    return read(
        vm,
        lambda: Node(
            name=vm.get("name", ""),
            address=address,
            shape=shape,
            memory_bytes=memory_bytes,
            cpu_cores=cpu_cores,
            interface_id=interface_id,
        ),
    )


def _interface_id(link: etree._Element) -> int:
    given = link.get("id", "")
    if not re.fullmatch(r"[1-9]", given):
        raise ScenarioError(f"id={given!r}: expected 1 to 9 (eth0 is management)")
    return int(given)


def _shape(link: etree._Element) -> Shape:
    """Return the shape of an ``<if>``: ``bw`` is rate,burst,latency, or there is none."""
    delay_us = units.parse_delay(link.get("delay", "0ms"))
    loss = units.parse_loss(link.get("loss", "0%"))
    given = link.get("bw")
    if given is None:
        return Shape(delay_us=delay_us, loss=loss)
    fields = given.split(",")
    if len(fields) != 3:
        raise ScenarioError(f"bw={given!r}: expected rate,burst,latency")
    return Shape(
        rate_bps=units.parse_rate(fields[0]),
        burst_bytes=units.parse_burst(fields[1]),
        queue_us=units.parse_delay(fields[2]),
        delay_us=delay_us,
        loss=loss,
    )


def _address(link: etree._Element, findings: list[Finding]) -> IPv4Interface | None:
    ipv4 = _only(link, "ipv4", findings)
    if ipv4 is None:
        return None
    return _Reading(findings)(ipv4, lambda: _host_address(ipv4))


def _host_address(ipv4: etree._Element) -> IPv4Interface:
    address = interface(ipv4)
    if fault := address_fault(address):
        raise ScenarioError(fault)
    return address


def _only(parent: etree._Element, tag: str, findings: list[Finding]) -> etree._Element | None:
    """Return the one child of a tag; none at all, or a second, is a fault."""
    if parent.find(tag) is None:
        message = f"no <{tag}>: expected exactly one in <{parent.tag}>"
        findings.append(found(parent, "error", "not-realised", message))
        return None
    return _at_most_one(parent, tag, findings)


def _at_most_one(
    parent: etree._Element, path: str, findings: list[Finding]
) -> etree._Element | None:
    all_of_them = parent.findall(path)
    findings.extend(_too_many(all_of_them[1:]))
    return all_of_them[0] if all_of_them else None


def _first(element: etree._Element, path: str) -> etree._Element:
    inside = element.find(path)
    return element if inside is None else inside


def _too_many(elements: list[etree._Element]) -> Iterator[Finding]:
    for element in elements:
        message = f"the testbed realises one <{element.tag}> here"
        yield found(element, "error", "not-realised", message, "the file without this one")


class _Reading:
    """Reads a value; when it is wrong, notes why at its element and gives None."""

    def __init__(self, findings: list[Finding]) -> None:
        self._findings = findings

    def __call__(self, element: etree._Element, value: Callable[[], T]) -> T | None:
        try:
            return value()
        except InputError as error:
            self._findings.append(_fault(element, str(error)))
            return None


def _fault(element: etree._Element, message: str) -> Finding:
    return Finding(
        line=line_of(element),
        severity="error",
        element=str(element.tag),
        rule="scenario",
        message=message,
    )
