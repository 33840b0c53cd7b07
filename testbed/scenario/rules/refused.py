"""What VNX refuses although its schema accepts it (docs/VNX.md)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from ipaddress import AddressValueError, IPv4Address, IPv4Network

from lxml import etree

from testbed.errors import ScenarioError
from testbed.scenario.document import Document, Finding, children, found, interface, text_of
from testbed.scenario.model import NAME, NAME_RULE, SCENARIO_NAME
from testbed.scenario.rules import Rule

MAX_NAME = 12


def version(document: Document) -> Iterator[Finding]:
    """``<version>`` is 2.0 or 2.0.n."""
    yield from _required_once(document, "version", "<version>2.0</version>")
    for element in document.root.iter("version"):
        if not re.fullmatch(r"2\.0(\.[0-9]+)?", text_of(element)):
            message = f"{text_of(element)!r}: expected 2.0 or 2.0.n"
            yield found(element, "error", "version", message, "2.0")


def scenario_name(document: Document) -> Iterator[Finding]:
    """There is a ``<scenario_name>``, and it can be a folder's name."""
    fix = "<scenario_name>lan-4n-10mbit</scenario_name>"
    yield from _required_once(document, "scenario_name", fix)
    for element in document.root.iter("scenario_name"):
        if not SCENARIO_NAME.fullmatch(text_of(element)):
            given = text_of(element)[:80]
            message = f"{given!r}: expected 1 to 64 of letters, digits, '.', '_' and '-'"
            yield found(element, "error", "scenario-name", message, "for example lan-4n-10mbit")


def management(document: Document) -> Iterator[Finding]:
    """There is a ``<vm_mgmt>`` whose network VNX can cut into a /30 for each vm."""
    fix = '<vm_mgmt type="private" network="10.250.0.0" mask="16" offset="16"/>'
    yield from _required_once(document, "vm_mgmt", fix)
    for element in document.root.iter("vm_mgmt"):
        yield from _management(element)


def _management(element: etree._Element) -> Iterator[Finding]:
    kind = element.get("type")
    inside = {str(child.tag) for child in children(element)}
    if kind == "none":
        if "host_mapping" in inside:
            message = 'type="none" cannot have a <host_mapping>'
            yield found(element, "error", "management", message, "it without <host_mapping>")
        return
    if (kind == "net") != ("mgmt_net" in inside) and kind in ("net", "private"):
        message = "<mgmt_net> belongs to type 'net', which needs one, and to no other"
        yield found(element, "error", "management", message)
    network, mask = element.get("network", "192.168.0.0"), element.get("mask", "24")
    offset = element.get("offset", "0")
    if not re.fullmatch(r"[0-9]{1,2}", mask) or not 8 <= int(mask) <= 30:
        message = f"mask={mask!r}: expected a prefix length from 8 to 30"
        yield found(element, "error", "management", message, 'mask="16"')
        return
    try:
        IPv4Network(f"{network}/{mask}")
    except ValueError:
        message = f"network={network!r} with mask {mask}: expected a network's first address"
        yield found(element, "error", "management", message, 'network="10.250.0.0"')
    if not re.fullmatch(r"[0-9]{1,10}", offset):
        message = f"offset={offset!r}: expected a number"
        yield found(element, "error", "management", message, 'offset="16"')
    elif kind == "private" and int(offset) % 4:
        message = f"offset={offset!r}: expected a multiple of 4"
        yield found(element, "error", "management", message, f'offset="{int(offset) // 4 * 4}"')


def _required_once(document: Document, tag: str, fix: str) -> Iterator[Finding]:
    if document.root.find(f"global/{tag}") is None:
        parent = document.root.find("global")
        at = document.root if parent is None else parent
        yield found(at, "error", tag.replace("_", "-"), f"no <{tag}> in <global>", fix)


def names(document: Document) -> Iterator[Finding]:
    """Names of vms and nets are short, unique, and good host and device names."""
    for tag in ("vm", "net"):
        seen: set[str] = set()
        for element in document.root.iter(tag):
            name = element.get("name")
            if name is None:
                continue  # required_attributes says so
            if name in seen:
                yield found(element, "error", "name", f"name {name!r} is used twice", "another")
            seen.add(name)
            if fault := _name_fault(tag, name):
                fix = "for example n1" if tag == "vm" else "for example lan"
                yield found(element, "error", "name", f"name {name[:40]!r}: {fault}", fix)


def _name_fault(tag: str, name: str) -> str | None:
    if len(name) > MAX_NAME:
        return f"{len(name)} characters; VNX takes {MAX_NAME} at most"
    if re.search(r"\s", name):
        return "has white space, which VNX refuses"
    if tag == "net" and (name == "lo" or name.endswith("_Mgmt")):
        return "is reserved: 'lo' and names ending in '_Mgmt' are VNX's own"
    if not NAME.fullmatch(name):
        return f"breaks host and device names; expected {NAME_RULE}"
    return None


def unique_ids(document: Document) -> Iterator[Finding]:
    """Interface and console ids are numbers, and unique in their vm."""
    for parent in document.root.iter("vm", "vm_defaults"):
        seen: set[tuple[str, str]] = set()
        for element in children(parent):
            given = element.get("id")
            if element.tag not in ("if", "console") or given is None:
                continue
            if not re.fullmatch(r"[0-9]{1,4}", given):
                yield found(element, "error", "id", f"id={given!r}: expected a number", 'id="1"')
            if (str(element.tag), given) in seen:
                message = f"id={given!r} is used twice in {_owner(parent)}"
                yield found(element, "error", "id", message, "another id")
            seen.add((str(element.tag), given))


def _owner(parent: etree._Element) -> str:
    return f"vm {parent.get('name', '?')}" if parent.tag == "vm" else "<vm_defaults>"


def existing_nets(document: Document) -> Iterator[Finding]:
    """Interfaces are on nets that the file defines."""
    nets = [net.get("name", "") for net in document.root.iter("net")]
    for element in document.root.iter("if", "hostif"):
        given = element.get("net")
        if given is not None and given not in nets:
            message = f"net={given!r}: the file defines no such net"
            fix = f'net="{nets[0]}"' if nets else '<net name="lan" mode="openvswitch"/> first'
            yield found(element, "error", "net", message, fix)


def net_bandwidth(document: Document) -> Iterator[Finding]:
    """A LAN has no ``<bw>`` child: only point-to-point nets do."""
    for element in document.root.iterfind("net/bw"):
        net = element.getparent()
        if net is not None and net.get("type", "lan") == "lan":
            message = "VNX refuses <bw> in a LAN"
            yield found(element, "error", "net-bw", message, 'bw="10mbit,15kb,50ms" in each <if>')


def architecture(document: Document) -> Iterator[Finding]:
    """``arch`` is one that VNX knows."""
    for element in document.root.iter("vm"):
        given = element.get("arch", "")
        if given not in ("", "i686", "x86_64"):
            message = f"arch={given!r}: expected i686 or x86_64"
            yield found(element, "error", "arch", message, 'arch="x86_64"')


def memory(document: Document) -> Iterator[Finding]:
    """``<mem>`` ends in M or G."""
    for element in document.root.iter("mem"):
        if not re.fullmatch(r"[0-9]+[MG]", text_of(element)):
            message = f"{text_of(element)[:40]!r}: expected a whole number and M or G"
            yield found(element, "error", "mem", message, "2G")


def filesystem_type(document: Document) -> Iterator[Finding]:
    """A vm's ``<filesystem>`` has a type."""
    for element in document.root.iterfind("vm/filesystem"):
        if element.get("type") is None:
            message = "attribute type is missing"
            yield found(element, "error", "filesystem", message, 'type="cow"')


def absolute_roots(document: Document) -> Iterator[Finding]:
    """What is copied or shared into a vm has an absolute place there."""
    for element in document.root.iter("filetree", "shareddir"):
        root = element.get("root")
        if root is not None and not root.startswith("/"):
            message = f"root={root!r}: expected an absolute path"
            yield found(element, "error", "root", message, f'root="/{root}"')


def addresses(document: Document) -> Iterator[Finding]:
    """Every ``<ipv4>`` is an address with exactly one mask."""
    for element in document.root.iter("ipv4"):
        try:
            interface(element)
        except ScenarioError as error:
            yield found(element, "error", "ipv4", str(error), "for example 10.10.0.1/24")


def routes(document: Document) -> Iterator[Finding]:
    """IPv4 routes have a destination with a mask (or ``default``) and a gateway."""
    for element in document.root.iter("route"):
        if element.get("type") != "ipv4":
            continue
        to, gateway = text_of(element), element.get("gw", "")
        try:
            if to != "default" and "/" not in to:
                raise ValueError("no mask")
            if to != "default":
                IPv4Network(to, strict=False)
        except ValueError:
            message = f"destination {to!r}: expected network/mask, or default"
            yield found(element, "error", "route", message, "for example 10.11.0.0/24")
        try:
            IPv4Address(gateway)
        except AddressValueError:
            message = f"gw={gateway!r}: expected an IPv4 address"
            yield found(element, "error", "route", message, 'for example gw="10.10.0.254"')


RULES: tuple[Rule, ...] = (
    version,
    scenario_name,
    management,
    names,
    unique_ids,
    existing_nets,
    net_bandwidth,
    architecture,
    memory,
    filesystem_type,
    absolute_roots,
    addresses,
    routes,
)
