"""Files on a node by their hash: only what it lacks travels, and it arrives whole or not at all."""

from __future__ import annotations

import hashlib
import io
import shlex
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from testbed.host.group import in_parallel
from testbed.host.ssh import SshHost

STORE = PurePosixPath("/opt/testbed/store")  # on the node: one file per content, named by hash

# Checked before it counts: a file in the store is what its name says.
_RECEIVE = """\
set -eu
mkdir -p "$1/.part"
cd "$1/.part"
tar -x
for name in *; do echo "$name  $name"; done | sha256sum --check --quiet >&2
mv -- * ..
"""


@dataclass(frozen=True, kw_only=True)
class Blob:
    """A file's content and its SHA-256 (64 hex digits)."""

    content: bytes
    sha256: str

    @classmethod
    def of(cls, content: bytes) -> Blob:
        """Return the blob of these bytes."""
        return cls(content=content, sha256=hashlib.sha256(content).hexdigest())


def push_to_all(hosts: Sequence[SshHost], files: Mapping[PurePosixPath, Blob]) -> dict[str, int]:
    """Give every node these files, at these absolute paths; return the bytes sent to each.

    Raises:
        CommandFailed: a node could not keep them (a full disk, a hash that differs).
    """
    archives: dict[frozenset[str], bytes] = {}

    def push(host: SshHost) -> int:
        present = set(host.run(("sh", "-c", f"ls {STORE} 2>&- || :")).stdout.split())
        lacking = {blob.sha256: blob for blob in files.values() if blob.sha256 not in present}
        if lacking:
            key = frozenset(lacking)
            if key not in archives:
                archives[key] = _archive(lacking)
            host.feed(("sh", "-c", _RECEIVE, "receive", str(STORE)), (archives[key],))
        host.run(("sh", "-s"), stdin=_link_script(files))
        return sum(len(blob.content) for blob in lacking.values())

    sent = in_parallel(push, hosts)
    return {host.name: count for host, count in zip(hosts, sent, strict=True)}


def folder_blobs(folder: Path, target: PurePosixPath, *, pattern: str) -> dict[PurePosixPath, Blob]:
    """Return the files below a folder that match, as they are to lie below ``target``; sorted."""
    return {
        target / path.relative_to(folder).as_posix(): Blob.of(path.read_bytes())
        for path in sorted(folder.rglob(pattern))
        if path.is_file()
    }


def _archive(blobs: Mapping[str, Blob]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, blob in sorted(blobs.items()):
            entry = tarfile.TarInfo(name)
            entry.size = len(blob.content)
            archive.addfile(entry, io.BytesIO(blob.content))
    return buffer.getvalue()


def _link_script(files: Mapping[PurePosixPath, Blob]) -> str:
    folders = shlex.join(sorted({str(path.parent) for path in files}))
    lines = ["set -eu", f"mkdir -p -- {folders}"]
    for path, blob in files.items():
        # A hard link made beside and renamed: the path is the old file or the new one. Where it
        # is that very file already, mv would refuse.
        beside, target = shlex.quote(f"{path}.part"), shlex.quote(str(path))
        stored = shlex.quote(str(STORE / blob.sha256))
        lines.append(
            f"[ {target} -ef {stored} ] || "
            f"{{ ln -f -- {stored} {beside}; mv -f -- {beside} {target}; }}"
        )
    return "".join(f"{line}\n" for line in lines)
