"""Writing files whole, and for the person who started us.

Under sudo we are root, but what lands in scenarios/ and results/ belongs to the user who
typed the command: otherwise they could not delete their own results.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path


def owner() -> tuple[int, int] | None:
    """Return the (uid, gid) of the user behind sudo, or None when there is nobody to give to."""
    if os.geteuid() != 0:
        return None
    uid, gid = os.environ.get("SUDO_UID", ""), os.environ.get("SUDO_GID", "")
    # Digits only: int() would also take "-1", which chown reads as "leave it as it is".
    if not (uid.isascii() and uid.isdecimal() and gid.isascii() and gid.isdecimal()):
        return None
    return int(uid), int(gid)


def write_whole(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Write a file so that every reader sees either the old content or the new, never a part.

    Written beside the target, synced, then renamed over it; missing parent folders are made.
    Safe against power loss: the folder is synced too. Nothing is left behind by a failure.
    """
    make_folder(path.parent)
    beside = path.with_name(f".{path.name[:200]}.{secrets.token_hex(6)}.part")
    # O_EXCL: as root in a folder of somebody else, never follow a link that waits there.
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            if person := owner():
                os.fchown(file.fileno(), *person)
            os.fchmod(file.fileno(), mode)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            beside.unlink()
        raise
    _sync_folder(path.parent)


def make_folder(path: Path) -> None:
    """Make a folder and its missing parents; those made belong to the user behind sudo."""
    missing: list[Path] = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for folder in reversed(missing):
        try:
            folder.mkdir()
        except FileExistsError:
            if not folder.is_dir():
                raise
            continue  # somebody else made it meanwhile, and it is theirs
        if person := owner():
            os.chown(folder, *person, follow_symlinks=False)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
