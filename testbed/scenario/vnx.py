"""A Scenario as a VNX 2.00 file, and back: ``parse(render(scenario)) == scenario``.

The skeletons with a site's defaults lie in ``vnx_templates``: beside the package in a checkout,
under ``share/testbed`` of the Python prefix where the package was installed.
"""

from __future__ import annotations

import copy
import hashlib
import os
import re
import stat
import sys
from pathlib import Path

from lxml import etree

from testbed import units
from testbed.errors import MissingCapability, ScenarioError
from testbed.scenario.document import MAX_BYTES, Finding, errors, load, ordered, too_large
from testbed.scenario.model import Node, Scenario, Shape
from testbed.scenario.reader import examine

MAX_LISTED = 100  # errors in one message
_SEAL = re.compile(rb"<!-- written by testbed; sha256 of all above: ([0-9a-f]{64}) -->\n")


def render(scenario: Scenario, *, ssh_key: Path | None = None) -> bytes:
    """Return the scenario as a file for VNX and for every backend; same input, same bytes.

    ``ssh_key`` is a public key's path, only for a file that VNX itself will run.
    """
    root = _skeleton("scenario")
    settings = _child(root, "global")
    _child(settings, "scenario_name").text = scenario.name
    _child(settings, "automac").set("offset", str(scenario.mac_offset))
    management = _child(settings, "vm_mgmt")
    management.set("network", str(scenario.management.network_address))
    management.set("mask", str(scenario.management.prefixlen))
    management.set("offset", str(scenario.management_offset))
    if ssh_key is not None:
        key = etree.Element("ssh_key")
        key.text = str(ssh_key)
        _child(settings, "scenario_name").addnext(key)
    etree.SubElement(root, "net", name=scenario.lan.name, mode=scenario.lan.switch)
    skeleton = _skeleton("node")
    root.extend(_vm(copy.deepcopy(skeleton), node, scenario.lan.name) for node in scenario.nodes)
    if scenario.lan.host_address is not None:
        host = etree.SubElement(root, "host")
        link = etree.SubElement(host, "hostif", net=scenario.lan.name)
        etree.SubElement(link, "ipv4").text = str(scenario.lan.host_address)
    etree.indent(root, "  ")
    text = etree.tostring(root, xml_declaration=True, encoding="UTF-8") + b"\n"
    digest = hashlib.sha256(text).hexdigest()
    return text + f"<!-- written by testbed; sha256 of all above: {digest} -->\n".encode()


def untouched(content: bytes) -> bool:
    """Return whether a file is as ``render`` made it, and nobody has edited it since."""
    match = None
    for match in _SEAL.finditer(content):  # noqa: B007 - the last one counts
        pass
    if match is None or match.end() != len(content):
        return False
    return hashlib.sha256(content[: match.start()]).hexdigest().encode() == match.group(1)


def parse(content: bytes, *, source: str) -> Scenario:
    """Return the scenario that a file describes. Nothing in it is executed or fetched.

    Raises:
        ScenarioError: it cannot be used; the message lists all errors with their lines.
    """
    document, findings = load(content, source=source)
    scenario = None
    if document is not None:
        scenario, findings = examine(document)
    if scenario is None:
        raise ScenarioError(_listing(findings, source))
    return scenario


def read(path: Path) -> Scenario:
    """Return the scenario of a file.

    Raises:
        ScenarioError: it cannot be read or used; the message lists all errors with their lines.
    """
    return parse(read_bytes(path), source=str(path))


def read_bytes(path: Path) -> bytes:
    """Return a scenario file's bytes; one that is too large for a scenario is not read.

    Raises:
        ScenarioError: no such file, not a plain file, not readable, or too large.
    """
    try:
        # Without O_NONBLOCK a named pipe would keep us waiting for a writer.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ScenarioError(f"{path} is not a plain file: expected a VNX XML file")
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ScenarioError(f"{path}: {reason}; `make scenario` writes one") from error
    if len(content) > MAX_BYTES:
        raise ScenarioError(_listing([too_large()], str(path)))
    return content


def _listing(findings: list[Finding], source: str) -> str:
    faults = ordered(errors(findings))
    lines = [fault.describe(source) for fault in faults[:MAX_LISTED]]
    if len(faults) > MAX_LISTED:
        lines.append(f"{source}: and {len(faults) - MAX_LISTED} more")
    return "\n".join(lines) or f"{source}: cannot be used"


def _vm(vm: etree._Element, node: Node, net: str) -> etree._Element:
    vm.set("name", node.name)
    if node.cpu_cores is not None:
        vm.set("vcpu_quota", units.format_cpu(node.cpu_cores))
    _child(vm, "mem").text = units.format_memory(node.memory_bytes)
    link = _child(vm, "if")
    link.set("id", str(node.interface_id))
    link.set("net", net)
    for name, value in _link_attributes(node.shape).items():
        link.set(name, value)
    _child(link, "ipv4").text = str(node.address)
    return vm


def _link_attributes(shape: Shape) -> dict[str, str]:
    """Return bw, delay and loss of an ``<if>``; an open link has none of them."""
    attributes = {}
    if shape.rate_bps is not None and shape.burst_bytes is not None:
        fields = (
            units.format_rate(shape.rate_bps),
            units.format_burst(shape.burst_bytes),
            units.format_delay(shape.queue_us),
        )
        attributes["bw"] = ",".join(fields)
    if shape.delay_us:
        attributes["delay"] = units.format_delay(shape.delay_us)
    if shape.loss:
        attributes["loss"] = units.format_loss(shape.loss)
    return attributes


def _skeleton(name: str) -> etree._Element:
    """Return a fresh copy of a skeleton, without the indentation it was written with."""
    path = templates_folder() / f"{name}.xml"
    parser = etree.XMLParser(remove_blank_text=True, resolve_entities=False, no_network=True)
    try:
        return etree.fromstring(path.read_bytes(), parser)
    except (OSError, etree.XMLSyntaxError) as error:
        raise ScenarioError(f"skeleton {path}: {error}") from error


def templates_folder() -> Path:
    """Return where the skeletons lie (see the top of this file).

    Raises:
        MissingCapability: they are in neither place.
    """
    beside = Path(__file__).resolve().parents[2] / "vnx_templates"
    installed = Path(sys.prefix) / "share" / "testbed" / "vnx_templates"
    for folder in (beside, installed):
        if (folder / "scenario.xml").is_file():
            return folder
    raise MissingCapability(
        f"no skeletons for scenario files in {beside} or {installed}",
        mend="git checkout -- vnx_templates, or install the package again",
    )


def _child(parent: etree._Element, tag: str) -> etree._Element:
    child = parent.find(tag)
    if child is None:
        raise ScenarioError(f"skeleton in {templates_folder()}: no <{tag}> in <{parent.tag}>")
    return child
