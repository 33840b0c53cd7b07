"""What depends on the machine that runs VNX: checked only there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

from testbed.scenario.document import Document, Finding, found, text_of
from testbed.scenario.rules import Rule


def root_filesystems(document: Document) -> Iterator[Finding]:
    """A vm's root filesystem is a folder that exists."""
    for element in document.root.iterfind("vm/filesystem"):
        if not _holds(lambda path: path.is_dir(), Path(text_of(element))):
            message = f"{text_of(element)!r} is not a folder of this machine"
            yield found(element, "error", "rootfs", message, "one made by vnx_download_rootfs")


def keys(document: Document) -> Iterator[Finding]:
    """SSH keys are readable files."""
    for element in document.root.iter("ssh_key"):
        path = Path(text_of(element))
        if not _holds(lambda path: path.is_file() and os.access(path, os.R_OK), path):
            message = f"{text_of(element)!r} is not a file that can be read"
            yield found(element, "error", "ssh-key", message, "an absolute path of a public key")


def sources(document: Document) -> Iterator[Finding]:
    """What is copied or shared into a vm exists; relative paths start at the file's folder."""
    for element in document.root.iter("filetree", "shareddir"):
        given = text_of(element)
        path = Path(given.rstrip("*"))
        if not given or not _holds(lambda path: (document.folder / path).exists(), path):
            yield found(element, "error", "source", f"{given!r} does not exist", "an existing path")


def _holds(test: Callable[[Path], bool], path: Path) -> bool:
    """Return whether a test holds for a path; not for one that cannot even be looked up."""
    try:
        return test(path.expanduser())
    except (OSError, RuntimeError):  # RuntimeError: a ~user that does not exist
        return False


def live_offsets(document: Document) -> Iterator[Finding]:
    """Two running scenarios with one automac offset have the same MAC addresses."""
    offset = "0"
    for element in document.root.iter("automac"):
        offset = element.get("offset", "0")
    message = f"no other running scenario may have the automac offset {offset}"
    yield found(document.root, "note", "automac", message)


RULES: tuple[Rule, ...] = (root_filesystems, keys, sources, live_offsets)
