"""Every fault of a scenario file at once: for the testbed, for VNX's schema, for VNX itself."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from lxml import etree

from testbed.errors import ScenarioError
from testbed.scenario.document import Document, Finding, errors, load, ordered
from testbed.scenario.reader import examine
from testbed.scenario.rules import on_host, structure

INSTALLED_SCHEMA = Path(structure.SCHEMA)

__all__ = ["Finding", "find_schema", "lint"]


def lint(
    content: bytes, *, source: str, on_vnx_host: bool = False, schema: Path | None = None
) -> list[Finding]:
    """Return all that is found in a file, by line; without errors, ``vnx.parse`` accepts it.

    ``schema`` is VNX's own vnx-2.00.xsd; None takes the one that ``find_schema`` finds.
    Rules on files of the machine (root filesystems, keys) hold only ``on_vnx_host``.
    """
    document, findings = load(content, source=source)
    if document is None:
        return ordered(findings)
    _, findings = examine(document)
    schema = schema or find_schema()
    if schema is None:
        findings.append(_no_schema())
    else:
        # Our own messages say what to write instead, so they come first for their line.
        known = {finding.line for finding in errors(findings)}
        official = _official(document, schema)
        findings += [finding for finding in official if finding.line not in known]
    if on_vnx_host:
        findings += [finding for rule in on_host.RULES for finding in rule(document)]
    findings += _for_vnx_only(document)
    return ordered(findings)


def find_schema() -> Path | None:
    """Return VNX's official schema: $VNX_XSD if set, else the installed one, else None."""
    named = os.environ.get("VNX_XSD")
    path = Path(named) if named else INSTALLED_SCHEMA
    return path if path.is_file() else None


def _no_schema() -> Finding:
    named = os.environ.get("VNX_XSD")
    message = f"VNX's official schema was not found at {named or INSTALLED_SCHEMA}"
    return Finding(
        line=1,
        severity="note",
        element="",
        rule="schema",
        message=f"{message}; only the testbed's own checks were made (docs/VNX.md)",
    )


def _official(document: Document, path: Path) -> list[Finding]:
    try:
        parser = etree.XMLParser(resolve_entities=False, no_network=True)
        schema = etree.XMLSchema(etree.fromstring(path.read_bytes(), parser))
    except (OSError, etree.XMLSyntaxError, etree.XMLSchemaParseError) as error:
        raise ScenarioError(f"schema {path} cannot be used: {error}; unset VNX_XSD") from error
    schema.validate(document.root)
    log = cast(Iterable[Any], schema.error_log)  # the stubs know no way through it
    return [
        Finding(line=entry.line, severity="error", element="", rule="schema", message=entry.message)
        for entry in log
    ]


def _for_vnx_only(document: Document) -> list[Finding]:
    """Return a note that lists what the file says to VNX alone, if anything."""
    said: dict[str, None] = {}
    for tag, (attributes, inside) in structure.FOR_VNX.items():
        for element in document.root.iter(tag):
            said.update((f"{tag}@{name}", None) for name in attributes.split() if element.get(name))
            said.update((name, None) for name in inside.split() if element.find(name) is not None)
    if not said:
        return []
    message = f"only VNX uses {', '.join(said)}; the testbed's own backends have no use for them"
    return [Finding(line=1, severity="note", element="vnx", rule="vnx-only", message=message)]
