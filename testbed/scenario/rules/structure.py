"""How a VNX 2.00 file is built (docs/VNX.md), and which part of it the testbed realises."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from lxml import etree

from testbed.scenario.document import Document, Finding, children, found
from testbed.scenario.model import SWITCHES
from testbed.scenario.rules import Rule

_XSI = "{http://www.w3.org/2001/XMLSchema-instance}"
SCHEMA = "/usr/share/xml/vnx/vnx-2.00.xsd"

# Children of an element in VNX 2.00. Those in ORDERED come in this order, the others in any.
_ORDERED = {
    "vnx": "global net vm host",
    "net": "bw connection",
    "connection": "vlan",
    "if": "vlan mac ipv4 ipv6 dns",
    "host": "hostif physicalif route forwarding exec",
    "hostif": "vlan ipv4 ipv6",
    "vm_mgmt": "mgmt_net host_mapping",
}
_UNORDERED = {
    "global": "version scenario_name ssh_version ssh_key automac netconfig vm_mgmt tun_device "
    "vm_defaults cmd-seq extension vnx_cfg dynamips_ext olive_ext help",
    "vm": "boot cdrom filesystem storage shareddir mem video kernel conf shell basedir mng_if "
    "console on_boot if route forwarding user filetree exec cmd-seq",
    "vm_defaults": "filesystem mem kernel shell basedir mng_if console forwarding user exec_mode",
    "user": "group ssh_key",
    "vlan": "tag",
    "help": "seq_help",
}
_CHILDREN = {tag: text.split() for tag, text in (_ORDERED | _UNORDERED).items()}

_ONCE = {
    "vnx": "global host",
    "global": "version scenario_name ssh_version automac netconfig vm_mgmt tun_device "
    "vm_defaults vnx_cfg dynamips_ext olive_ext",
    "vm": "filesystem mem video kernel conf shell basedir mng_if on_boot",
    "vm_defaults": "filesystem mem kernel shell basedir mng_if",
    "net": "bw",
    "if": "vlan mac",
    "hostif": "vlan",
    "host": "forwarding",
    "vm_mgmt": "mgmt_net host_mapping",
}
_REQUIRED = {
    "net": "mode name",
    "if": "id net",
    "hostif": "net",
    "exec": "seq type",
    "filetree": "seq root",
    "shareddir": "root",
    "vm": "name type",
    "vm_mgmt": "type",
    "route": "type gw",
    "console": "id",
    "connection": "name",
    "forwarding": "type",
}
_ENUMS = {
    ("net", "mode"): "virtual_bridge uml_switch openvswitch veth",
    ("filesystem", "type"): "direct cow hostfs",
    ("vm_mgmt", "type"): "private net none",
    ("exec", "type"): "verbatim file",
    ("route", "type"): "ipv4 ipv6",
    ("forwarding", "type"): "ip ipv4 ipv6",
    ("connection", "type"): "ovs-patch veth vxlan",
}

# What the testbed builds from a file: element -> (attributes, children).
_REALISED = {
    "vnx": (f"{_XSI}noNamespaceSchemaLocation", "global net vm host"),
    "global": ("", "version scenario_name automac vm_mgmt"),
    "version": ("", ""),
    "scenario_name": ("", ""),
    "automac": ("offset", ""),
    "vm_mgmt": ("type network mask offset", ""),
    "net": ("name mode", ""),
    "vm": ("name type vcpu_quota", "mem if"),
    "mem": ("", ""),
    "if": ("id net bw delay loss", "ipv4"),
    "ipv4": ("mask", ""),
    "host": ("", "hostif"),
    "hostif": ("net", "ipv4"),
}
# What only VNX uses: accepted, and said to be unused elsewhere.
FOR_VNX = {
    "global": ("", "ssh_key vm_defaults"),
    "vm_mgmt": ("", "host_mapping"),
    "vm_defaults": ("", "console exec_mode filesystem"),
    "vm": ("exec_mode arch", "filesystem console"),
}
# Values that are good VNX and that the testbed cannot build: (element, attribute) -> built.
_BUILT = {
    ("vm", "type"): ("lxc",),
    ("net", "mode"): SWITCHES,
    ("vm_mgmt", "type"): ("private",),
}


def known_elements(document: Document) -> Iterator[Finding]:
    """Every element is one of VNX 2.00, in its place and order, and not too often."""
    if document.root.tag != "vnx":
        yield found(document.root, "error", "structure", "expected <vnx> as root", "<vnx>")
        return
    for parent in document.root.iter(*_CHILDREN):
        allowed = _CHILDREN[str(parent.tag)]
        order = [*allowed] if parent.tag in _ORDERED else []
        furthest = 0
        for child in children(parent):
            tag = str(child.tag)
            if tag not in allowed:
                message = f"VNX 2.00 has no <{tag}> in <{parent.tag}>"
                yield found(child, "error", "structure", message, f"one of {' '.join(allowed)}")
            elif order:
                place = order.index(tag)
                if place < furthest:
                    message = f"comes after <{order[furthest]}> in <{parent.tag}>"
                    yield found(child, "error", "structure", message, f"in order {' '.join(order)}")
                furthest = max(furthest, place)


def once_only(document: Document) -> Iterator[Finding]:
    """Elements that VNX wants at most once are there at most once."""
    for parent in document.root.iter(*_ONCE):
        seen: Counter[str] = Counter()
        for child in children(parent):
            tag = str(child.tag)
            seen[tag] += 1
            if tag in _ONCE[str(parent.tag)].split() and seen[tag] == 2:
                message = f"more than one <{tag}> in <{parent.tag}>"
                yield found(child, "error", "structure", message, f"one <{tag}>")


def required_attributes(document: Document) -> Iterator[Finding]:
    """Attributes that VNX requires are there."""
    for element in document.root.iter(*_REQUIRED):
        for name in _REQUIRED[str(element.tag)].split():
            if element.get(name) is None:
                message = f"attribute {name} is missing"
                yield found(element, "error", "structure", message, f'{name}="..."')


def attribute_values(document: Document) -> Iterator[Finding]:
    """Attributes with a fixed choice of values have one of them."""
    for (tag, name), values in _ENUMS.items():
        for element in document.root.iter(tag):
            given = element.get(name)
            if given is not None and given not in values.split():
                message = f"{name}={given!r}: expected one of {', '.join(values.split())}"
                yield found(element, "error", "structure", message)


def stray_text(document: Document) -> Iterator[Finding]:
    """Elements that hold only elements hold no text."""
    for element in document.root.iter(*_CHILDREN):
        texts = [element.text, *(child.tail for child in element)]
        stray = " ".join(text.strip() for text in texts if text and text.strip())
        if stray:
            yield found(element, "error", "structure", f"text {stray[:40]!r} is out of place")


def schema_location(document: Document) -> Iterator[Finding]:
    """The first schema that the file names is VNX 2.00's: VNX takes it even from a comment."""
    match = re.search(rb'="(\S*\.xsd)"', document.content)
    fix = f'xsi:noNamespaceSchemaLocation="{SCHEMA}" in <vnx>'
    if match is None:
        message = "names no schema; VNX refuses such a file"
        yield found(document.root, "error", "schema-location", message, fix)
        return
    first = match.group(1).decode()
    if not first.endswith("vnx-2.00.xsd"):
        message = f"VNX takes the first schema of the file's text, here {first!r}"
        yield found(document.root, "error", "schema-location", message, fix)
    elif document.root.get(f"{_XSI}noNamespaceSchemaLocation") != first:
        message = f"VNX takes {first!r}, which stands in a comment or in another element"
        yield found(document.root, "warning", "schema-location", message, fix)


def realised(document: Document) -> Iterator[Finding]:
    """Everything in the file is built by the testbed, or is known to be for VNX only."""
    yield from _unrealised(document.root)


def _unrealised(element: etree._Element) -> Iterator[Finding]:
    tag = str(element.tag)
    attributes, inside = _REALISED.get(tag, ("", ""))
    more_attributes, skipped = FOR_VNX.get(tag, ("", ""))
    for name in map(str, element.attrib):
        if name not in f"{attributes} {more_attributes}".split():
            message = f"attribute {name} is not realised by the testbed"
            yield found(element, "error", "not-realised", message, f"<{tag}> without it")
        elif _is_foreign(tag, name, element.get(name, "")):
            built = " or ".join(f'{name}="{value}"' for value in _BUILT[tag, name])
            message = f"{name}={element.get(name)!r} is not realised by the testbed"
            yield found(element, "error", "not-realised", message, built)
    for child in children(element):
        if child.tag in inside.split():
            yield from _unrealised(child)
        elif child.tag == "vm_defaults":
            yield from _unrealised_defaults(child)
        elif child.tag not in skipped.split() and str(child.tag) in _CHILDREN.get(tag, ()):
            message = f"not realised by the testbed in <{tag}>"
            yield found(child, "error", "not-realised", message, f"<{tag}> without it")


def _is_foreign(tag: str, name: str, value: str) -> bool:
    """Return whether a value is good VNX, but not among those that the testbed builds."""
    built = _BUILT.get((tag, name))
    known = _ENUMS.get((tag, name))
    return built is not None and value not in built and (known is None or value in known.split())


def _unrealised_defaults(element: etree._Element) -> Iterator[Finding]:
    """Defaults for VNX's own matters are fine; others would have to hold here too."""
    for child in children(element):
        if child.tag not in FOR_VNX["vm_defaults"][1].split():
            message = "not realised by the testbed in <vm_defaults>"
            yield found(child, "error", "not-realised", message, "it in each <vm>")


RULES: tuple[Rule, ...] = (
    known_elements,
    once_only,
    required_attributes,
    attribute_values,
    stray_text,
    schema_location,
    realised,
)
