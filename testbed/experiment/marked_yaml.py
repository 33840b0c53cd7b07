"""YAML read into plain values, with the line of every key and item, and every fault at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from testbed.errors import ConfigError

MAX_BYTES = 256 * 1024  # a matrix is some kilobytes; more is a mistake or an attack
Where = tuple[str | int, ...]  # a value's place in the file: ("matrix", "nodes", 2)


@dataclass(frozen=True, order=True)
class Fault:
    """One thing to mend in a file: its line (from 1) and what to write instead."""

    line: int
    message: str


@dataclass(frozen=True, kw_only=True)
class Marked:
    """A file's content: plain values, and the line of each by its path."""

    source: str
    value: dict[str, Any]
    lines: dict[Where, int] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()
    unread: frozenset[Where] = frozenset()  # values that are None here because of such a fault
    first_line: int = 1  # of the first key
    indent: int = 0  # of the first key

    def line(self, where: Where) -> int:
        """Return the line of a value, or of the nearest thing around it that is written."""
        while where and where not in self.lines:
            where = where[:-1]
        return self.lines.get(where, 1)


def refuse(source: str, faults: Iterable[Fault]) -> ConfigError:
    """Return the error that lists all faults, in the order of their lines."""
    unique = sorted(set(faults))
    count = "1 fault" if len(unique) == 1 else f"{len(unique)} faults"
    listed = "\n".join(f"  {source}:{fault.line}: {fault.message}" for fault in unique)
    return ConfigError(f"{source}: {count}; nothing was started\n{listed}")


def read_bounded(path: Path) -> bytes:
    """Return a file's bytes.

    Raises:
        ConfigError: there is no such file, it cannot be read, or it is absurdly large.
    """
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: no such file; the sweeps that come with the testbed are in scenarios/"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    if len(content) > MAX_BYTES:
        raise ConfigError(f"{path}: larger than {MAX_BYTES // 1024} KiB: not a sweep file")
    return content


def parse(content: bytes, *, source: str) -> Marked:
    """Return the mapping in a YAML document; its own faults (duplicate keys) are listed in it.

    Raises:
        ConfigError: it is not YAML, or not one mapping written one key per line.
    """
    try:
        root = yaml.compose(content.decode("utf-8-sig"), Loader=yaml.SafeLoader)
    except UnicodeDecodeError:
        raise refuse(source, [Fault(1, "not text in UTF-8; save it as UTF-8")]) from None
    except RecursionError:
        raise refuse(source, [Fault(1, "nested too deeply")]) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = 1 if mark is None else mark.line + 1
        problem = " ".join(str(part) for part in (error.context, error.problem) if part)
        raise refuse(source, [Fault(line, f"not valid YAML: {problem}")]) from error
    except yaml.YAMLError as error:
        raise refuse(source, [Fault(1, f"not valid YAML: {error}".splitlines()[0])]) from error
    if not isinstance(root, yaml.MappingNode) or root.flow_style:
        line = 1 if root is None else root.start_mark.line + 1
        what = "empty" if root is None else "not a list of `key: value` lines"
        raise refuse(source, [Fault(line, f"{what}; begin with `format: 1` and `matrix:`")])
    reader = _Reader()
    value = reader.mapping(root, ())
    return Marked(
        source=source,
        value=value,
        lines=reader.lines,
        faults=tuple(reader.faults),
        unread=frozenset(reader.unread),
        first_line=root.start_mark.line + 1,
        indent=root.start_mark.column,
    )


class _Reader:
    """Walks the node tree once; collects lines and faults."""

    def __init__(self) -> None:
        self.lines: dict[Where, int] = {}
        self.faults: list[Fault] = []
        self.unread: set[Where] = set()
        self._seen: set[int] = set()
        self._scalars = yaml.constructor.SafeConstructor()

    def mapping(self, node: yaml.MappingNode, where: Where) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                self.faults.append(Fault(line, "a key must be a word"))
                continue
            key = str(key_node.value)
            if key in found:
                first = self.lines[(*where, key)]
                self.faults.append(
                    Fault(line, f"key {key!r} is given twice (line {first}): keep one of the two")
                )
                continue
            self.lines[(*where, key)] = line
            found[key] = self._value(value_node, (*where, key))
        return found

    def _value(self, node: yaml.Node, where: Where) -> Any:
        self.lines.setdefault(where, node.start_mark.line + 1)
        if id(node) in self._seen:  # an alias is the anchored node itself, cycles included
            return self._unread(node, where, "anchors and aliases (&, *) are not used here")
        self._seen.add(id(node))
        match node:
            case yaml.MappingNode(tag="tag:yaml.org,2002:map"):
                return self.mapping(node, where)
            case yaml.SequenceNode(tag="tag:yaml.org,2002:seq"):
                return [self._value(item, (*where, index)) for index, item in enumerate(node.value)]
            case yaml.ScalarNode():
                try:
                    return self._scalars.construct_object(node)
                except (yaml.YAMLError, ValueError, OverflowError):
                    return self._unread(node, where, f"{node.value!r:.60} is no {node.tag}")
        return self._unread(node, where, f"{node.tag} is not used here")

    def _unread(self, node: yaml.Node, where: Where, message: str) -> None:
        self.faults.append(Fault(node.start_mark.line + 1, message))
        self.unread.add(where)
