"""What VNX accepts and then does wrong, or not at all (docs/VNX.md).

An error where the cluster would not be the one that the file describes; a warning where
something written has no effect, or fails on VNX alone; a note where nothing can be done.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from lxml import etree

from testbed import units
from testbed.errors import ScenarioError, UnitError
from testbed.scenario.document import Document, Finding, found, interface, text_of, vm_name
from testbed.scenario.model import MAX_NODES, address_fault, default_burst_bytes
from testbed.scenario.rules import Rule
from testbed.scenario.rules.refused import MAX_NAME

MAX_DEVICE_NAME = 15  # IFNAMSIZ - 1, linux/if.h
MAX_AUTOMAC = 255  # VNX writes the vm's number into one byte of its MAC addresses


def net_shaping(document: Document) -> Iterator[Finding]:
    """Rates, delays and losses of a ``<net>`` have no effect on lxc."""
    for element in document.root.iter("net"):
        given = [name for name in ("bw", "delay", "loss") if element.get(name) is not None]
        if given:
            message = f"{', '.join(given)} of a net has no effect on lxc: its links stay open"
            yield found(element, "error", "net-shaping", message, "it in each <if>")


def bandwidth(document: Document) -> Iterator[Finding]:
    """``bw`` has its three fields, in units that tc and we read alike."""
    for element in document.root.iter("if"):
        given = element.get("bw")
        if given is not None and (fault := _bandwidth_fault(given)):
            yield found(element, "error", "bw", *fault)


def _bandwidth_fault(given: str) -> tuple[str, str] | None:
    """Return message and fix for a ``bw`` attribute, or None when it is good."""
    rate, *rest = given.split(",")
    what = f"bw={given[:60]!r}: "
    try:
        rate_bps = units.parse_rate(rate)
        if rate_bps is None:
            return f"{what}an open link has no bw", "<if> without bw"
        fix = f'bw="{rate},{units.format_burst(default_burst_bytes(rate_bps))},50ms"'
        if not rest:
            queue_s = 0.11 * rate_bps / 10**6
            return f"{what}alone gives VNX's queue of {queue_s:.3g} s; expected 3 fields", fix
        if len(rest) != 2:
            return f"{what}VNX ignores it, the link stays open; expected rate,burst,latency", fix
        units.parse_burst(rest[0])
        if not units.parse_delay(rest[1]):
            return f"{what}expected a latency of more than 0", fix
    except UnitError as error:
        return f"{what}{error}", ""
    return None


def delay_and_loss(document: Document) -> Iterator[Finding]:
    """``delay`` and ``loss`` have units."""
    for element in document.root.iter("if"):
        for name, parse in (("delay", units.parse_delay), ("loss", units.parse_loss)):
            try:
                parse(element.get(name, "0ms" if name == "delay" else "0%"))
            except UnitError as error:
                yield found(element, "error", name, f"{name}={element.get(name)!r}: {error}")


def egress_only(document: Document) -> Iterator[Finding]:
    """VNX shapes one direction: said once for a file."""
    for element in document.root.iter("if"):
        if element.get("bw") or element.get("delay") or element.get("loss"):
            message = "VNX shapes only what a node sends; the testbed shapes both directions"
            yield found(element, "note", "egress-only", message)
            return


def missing_architecture(document: Document) -> Iterator[Finding]:
    """Without ``arch``, VNX takes i686."""
    for element in document.root.iter("vm"):
        if not element.get("arch"):
            message = "arch is missing: VNX takes i686 and nothing starts on a 64-bit rootfs"
            yield found(element, "warning", "arch", message, 'arch="x86_64"')


def memory_limit(document: Document) -> Iterator[Finding]:
    """``<mem>`` limits nothing on VNX's lxc: said once for a file."""
    for element in document.root.iterfind("vm/mem"):
        message = "has no effect on VNX's lxc; the testbed's own backends apply it"
        yield found(element, "note", "mem", message)
        return


def cpu_list(document: Document) -> Iterator[Finding]:
    """``vcpu`` names CPUs; it does not count them."""
    for element in document.root.iter("vm"):
        if given := element.get("vcpu"):
            message = f"vcpu={given!r} is a list of CPU numbers on lxc, not a count"
            yield found(element, "error", "vcpu", message, 'vcpu_quota="100%" for one core')


def cpu_quota(document: Document) -> Iterator[Finding]:
    """``vcpu_quota`` is a whole percentage; VNX lets anything pass."""
    said = False
    for element in document.root.iter("vm"):
        given = element.get("vcpu_quota")
        if given is None:
            continue
        if not re.fullmatch(r"[1-9][0-9]{0,5}%", given):
            message = f"vcpu_quota={given!r}: expected a whole percentage of one core"
            yield found(element, "error", "vcpu-quota", message, 'vcpu_quota="40%"')
        elif not said:
            said = True
            message = "VNX sets vcpu_quota by cgroup v1 keys: likely no effect where only v2 is"
            yield found(element, "note", "vcpu-quota", message)


def host_addresses(document: Document) -> Iterator[Finding]:
    """No two interfaces have one address, and none has its network's own."""
    first: dict[object, etree._Element] = {}
    for element in document.root.iter("ipv4"):
        try:
            address = interface(element)
        except ScenarioError:
            continue  # refused.addresses says so
        if fault := address_fault(address):
            yield found(element, "error", "address", fault, "for example 10.10.0.1/24")
        if address.ip in first:
            other = first[address.ip]
            where = vm_name(other) or "host"
            message = f"address {address.ip} is also that of {where}, line {other.sourceline}"
            yield found(element, "error", "address", message, "an address of its own")
        else:
            first[address.ip] = element


def mac_addresses(document: Document) -> Iterator[Finding]:
    """A ``<mac>`` is one: with a bad one the vm does not start, and VNX reports success."""
    for element in document.root.iter("mac"):
        given = text_of(element)
        octets = re.fullmatch(r"[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){5}", given)
        if octets is None or int(given[:2], 16) & 1:
            message = f"{given!r}: expected the MAC address of one machine"
            yield found(element, "error", "mac", message, "for example 02:fd:00:07:01:01")


def device_names(document: Document) -> Iterator[Finding]:
    """The host end ``<vm>-e<id>`` of a link fits into a device name."""
    for element in document.root.iter("if"):
        device = f"{vm_name(element)}-e{element.get('id', '')}"
        # A vm name that is itself too long is refused.names' matter.
        if len(device) > MAX_DEVICE_NAME and len(vm_name(element)) <= MAX_NAME:
            message = f"device {device[:40]} has {len(device)} characters, Linux takes 15"
            yield found(element, "error", "device-name", message, "a shorter vm name or an id < 10")


def management_room(document: Document) -> Iterator[Finding]:
    """The management network has a /30 for each vm."""
    vms = len(document.root.findall("vm"))
    for element in document.root.iter("vm_mgmt"):
        mask, offset = element.get("mask", "24"), element.get("offset", "0")
        numbers = all(re.fullmatch(r"[0-9]{1,10}", text) for text in (mask, offset))
        if element.get("type") != "private" or not numbers or not 8 <= int(mask) <= 30:
            continue
        room = max(0, (2 ** (32 - int(mask)) - int(offset)) // 4)
        if vms > room:
            message = f"room for {room} vms (a /30 each after the offset), the file has {vms}"
            yield found(element, "error", "management-room", message, 'mask="16"')


def vm_count(document: Document) -> Iterator[Finding]:
    """There are as many vms as VNX has MAC addresses for."""
    vms = document.root.findall("vm")
    if len(vms) > MAX_NODES:
        message = f"{len(vms)} vms: expected at most {MAX_NODES} (their number is one MAC byte)"
        yield found(vms[MAX_NODES], "error", "vm-count", message, "fewer vms")


def mac_offset(document: Document) -> Iterator[Finding]:
    """``<automac offset>`` fits into the byte that VNX writes it to."""
    for element in document.root.iter("automac"):
        given = element.get("offset", "0")
        if not re.fullmatch(r"[0-9]{1,3}", given) or int(given) > MAX_AUTOMAC:
            message = f"offset={given!r}: expected a number from 0 to {MAX_AUTOMAC}"
            yield found(element, "error", "automac", message, 'offset="7"')


def net_mtu(document: Document) -> Iterator[Finding]:
    """``<net mtu>`` reaches the switch only; large frames vanish."""
    for element in document.root.iter("net"):
        if element.get("mtu") is not None:
            message = "mtu sets the switch's side only; eth inside stays 1500, large frames vanish"
            yield found(element, "error", "mtu", message, "<net> without mtu")


def management_bridge(document: Document) -> Iterator[Finding]:
    """Management of type net needs a net that is not openvswitch."""
    modes = {net.get("mode") for net in document.root.iter("net")}
    for element in document.root.iter("vm_mgmt"):
        if element.get("type") == "net" and modes <= {"openvswitch"}:
            message = 'type="net" with only openvswitch nets: VNX creates no management bridge'
            yield found(element, "error", "management-bridge", message, 'type="private"')


def commands(document: Document) -> Iterator[Finding]:
    """Commands survive the ``;`` that VNX adds to every line."""
    for element in document.root.iter("exec"):
        lines = [line.strip() for line in text_of(element).splitlines() if line.strip()]
        blocks = any(re.match(r"(for|if|while|until|case)\b", line) for line in lines)
        open_end = any(line.endswith(("&&", "||", "|", "\\")) for line in lines)
        if len(lines) > 1 and (blocks or open_end):
            message = "VNX adds ';' to each line, which breaks a command over several lines"
            yield found(element, "error", "exec", message, "one line, or a script by filetree")
        elif open_end:
            message = "VNX adds ';' to the line, which breaks a command that does not end there"
            yield found(element, "error", "exec", message, "the whole command on one line")
        for name in ("user", "type"):
            if element.get(name) not in (None, "verbatim"):
                message = f"{name}={element.get(name)!r} is ignored on lxc (root, cwd /, no HOME)"
                yield found(element, "warning", "exec", message, 'type="verbatim" and no user')


def file_trees(document: Document) -> Iterator[Finding]:
    """A folder to copy ends in ``/``, and so does where it goes."""
    for element in document.root.iter("filetree"):
        source, root = text_of(element), element.get("root", "")
        if source.endswith("*"):
            message = f"{source!r} copies only the first file"
            yield found(element, "warning", "filetree", message, f"{source.rstrip('*')}")
        elif not source.endswith("/"):
            message = f"{source!r} copies its siblings too if it is a folder"
            yield found(element, "warning", "filetree", message, f"{source}/ for a folder")
        elif not root.endswith("/"):
            message = f"root={root!r} does not end in '/', as a folder's place must"
            yield found(element, "warning", "filetree", message, f'root="{root}/"')


RULES: tuple[Rule, ...] = (
    net_shaping,
    bandwidth,
    delay_and_loss,
    egress_only,
    missing_architecture,
    memory_limit,
    cpu_list,
    cpu_quota,
    host_addresses,
    mac_addresses,
    device_names,
    management_room,
    vm_count,
    mac_offset,
    net_mtu,
    management_bridge,
    commands,
    file_trees,
)
