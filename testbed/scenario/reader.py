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
    Lan,
    Node,
    Scenario,
    Shape,
    Switch,
    management_faults,
    node_faults,
)
from testbed.scenario.rules import refused, structure, traps

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
    findings: list[Finding] = []
    net = _only(root, "net", findings)
    hostif = _at_most_one(root, "host/hostif", findings)
    host_address = None if hostif is None else _address(hostif, findings)
    nodes: list[Node] = []
    elements: list[etree._Element] = []
    for vm in root.findall("vm"):
        node = _node(vm, findings)
        if node is not None:
            nodes.append(node)
            elements.append(vm)
    if net is None:
        return None, findings
    try:
        # The rules have checked the mode against the switches.
        switch = cast(Switch, net.get("mode", ""))
        lan = Lan(name=net.get("name", ""), switch=switch, host_address=host_address)
    except ScenarioError as error:
        return None, [*findings, found(net, "error", "scenario", str(error))]
    for index, field, message in node_faults(nodes, lan):
        # A vm that could not be read is missing here: its own fault is already named.
        if index < 0 and len(nodes) < len(root.findall("vm")):
            continue
        at = elements[index] if index >= 0 else root
        ipv4 = at.find("if/ipv4")
        findings.append(_fault(ipv4 if field == "address" and ipv4 is not None else at, message))
    if findings:
        return None, findings
    return _scenario(root, tuple(nodes), lan)


def _scenario(
    root: etree._Element, nodes: tuple[Node, ...], lan: Lan
) -> tuple[Scenario | None, list[Finding]]:
    management = root.find("global/vm_mgmt")
    name = root.find("global/scenario_name")
    automac = root.find("global/automac")
    if management is None or name is None:
        return None, []  # refused.RULES says so
    try:
        network = IPv4Network(
            f"{management.get('network', '192.168.0.0')}/{management.get('mask', '24')}"
        )
        offset = int(management.get("offset", "0"))
        faults = [*management_faults(network, offset, len(nodes))]
        if faults:
            return None, [_fault(management, message) for message in faults]
        return (
            Scenario(
                name=text_of(name),
                nodes=nodes,
                lan=lan,
                management=network,
                management_offset=offset,
                mac_offset=int("0" if automac is None else automac.get("offset", "0")),
            ),
            [],
        )
    except (ScenarioError, ValueError) as error:
        return None, [_fault(management, message) for message in str(error).splitlines()]


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
    return _Reading(findings)(ipv4, lambda: interface(ipv4))


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
