"""A scenario file as checked text: loaded safely, and what is found in it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Literal

from lxml import etree

from testbed.errors import ScenarioError

MAX_BYTES = 4 * 1024**2  # 250 nodes take 0.1 MB

Severity = Literal["error", "warning", "note"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "note")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing found in a file. An error stops a run; ``fix`` is what to write instead."""

    line: int
    severity: Severity
    element: str
    rule: str
    message: str
    fix: str = ""

    def describe(self, source: str) -> str:
        """Return the finding as one line, as compilers print them."""
        where = f"{source}:{self.line}: {self.severity}: "
        what = f"<{self.element}>: {self.message}" if self.element else self.message
        text = f"{where}{what}{f'; write {self.fix}' if self.fix else ''} [{self.rule}]"
        # A file may hold any character; a terminal must not be steered by one.
        return "".join(letter if letter.isprintable() else "?" for letter in text)


@dataclass(frozen=True, kw_only=True)
class Document:
    """A file that is well-formed XML: its text, its root, and the folder it lies in."""

    content: bytes
    root: etree._Element
    folder: Path


def found(
    element: etree._Element, severity: Severity, rule: str, message: str, fix: str = ""
) -> Finding:
    """Return a finding at an element of the file."""
    return Finding(
        line=line_of(element),
        severity=severity,
        element=str(element.tag),
        rule=rule,
        message=message,
        fix=fix,
    )


def line_of(element: etree._Element) -> int:
    """Return the line on which an element's start tag ends (as libxml2 counts), from 1."""
    line = element.sourceline
    return line if isinstance(line, int) else 1


def children(element: etree._Element) -> list[etree._Element]:
    """Return the child elements, without comments and processing instructions."""
    return [child for child in element if isinstance(child.tag, str)]


def text_of(element: etree._Element) -> str:
    """Return an element's text without comments and surrounding white space."""
    return "".join([element.text or "", *(child.tail or "" for child in element)]).strip()


def vm_name(element: etree._Element) -> str:
    """Return the name of the vm around an element, or '' outside of any."""
    for around in (element, *element.iterancestors()):
        if around.tag == "vm":
            return around.get("name", "")
    return ""


def interface(ipv4: etree._Element) -> IPv4Interface:
    """Return the address of an ``<ipv4>``, whichever of VNX's mask forms it has.

    Raises:
        ScenarioError: it is none; the message says what is wrong.
    """
    text, mask = text_of(ipv4), ipv4.get("mask")
    if "/" in text and mask is not None:
        raise ScenarioError(f"address {text!r} and mask={mask!r}: expected one mask, not two")
    if mask is not None and not re.fullmatch(r"/[0-9]{1,2}|[0-9.]{7,15}", mask):
        raise ScenarioError(f"mask {mask!r}: expected '/24' or '255.255.255.0'")
    whole = text if "/" in text else f"{text}/{(mask or '255.255.255.0').lstrip('/')}"
    if not re.fullmatch(r"[0-9.]{7,15}/[0-9.]{1,15}", whole):
        raise ScenarioError(f"address {text!r}: expected four numbers and a prefix length")
    try:
        return IPv4Interface(whole)
    except ValueError as error:
        raise ScenarioError(f"address {whole!r}: {error}") from error


def load(content: bytes, *, source: str) -> tuple[Document | None, list[Finding]]:
    """Return the file as XML, or the reasons why it is not read.

    Nothing outside of ``content`` is ever read: no DTD, no entity, no network.
    """
    if refused := _refusal(content):
        return None, [refused]
    # The encoding is forced to the one in which _refusal has looked for a DTD.
    parser = etree.XMLParser(
        encoding="utf-8",
        resolve_entities=False,
        no_network=True,
        load_dtd=False,
        dtd_validation=False,
        huge_tree=False,
        remove_pis=True,
    )
    try:
        root = etree.fromstring(content, parser)
    except etree.XMLSyntaxError as error:
        faults = [(entry.line, entry.message) for entry in parser.error_log]
        return None, [
            _file_finding(line, "not-xml", f"not XML: {message.strip()}")
            for line, message in faults or [(error.lineno or 1, str(error))]
        ]
    return Document(content=content, root=root, folder=Path(source).parent), []


def ordered(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings by line, errors first within one, each only once."""
    unique = dict.fromkeys(findings)
    return sorted(unique, key=lambda one: (one.line, SEVERITIES.index(one.severity)))


def errors(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield those findings that stop a run."""
    return (one for one in findings if one.severity == "error")


_NO_DTD = "the file without <!DOCTYPE> and <!ENTITY>"


def _refusal(content: bytes) -> Finding | None:
    """Return why bytes are not even given to the XML parser."""
    if len(content) > MAX_BYTES:
        return too_large()
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        return _file_finding(line, "not-xml", "not UTF-8 text", "the file in UTF-8")
    if b"\0" in content:
        return _file_finding(1, "not-xml", "a binary or UTF-16 file", "the file in UTF-8")
    if match := re.search(rb"<!(DOCTYPE|ENTITY)", content):
        line = content.count(b"\n", 0, match.start()) + 1
        return _file_finding(line, "dtd", "a document type definition (DTD)", _NO_DTD)
    return None


def too_large() -> Finding:
    """Return the finding for a file beyond the size that is read."""
    return _file_finding(1, "size", f"larger than {MAX_BYTES // 1024**2} MB: not a scenario")


def _file_finding(line: int, rule: str, message: str, fix: str = "") -> Finding:
    return Finding(line=line, severity="error", element="", rule=rule, message=message, fix=fix)
