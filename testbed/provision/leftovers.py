"""Removing a run: exactly what its ledger names, in an order that may be repeated."""

from __future__ import annotations

import contextlib
import shutil
import time
from pathlib import Path

from testbed.provision import cgroup
from testbed.provision.lab import end_process
from testbed.provision.ledger import LEDGER, OWNER, Ledger, ledgers, read_ledger, state_folder

# A folder without a ledger that is younger than this may be a run that is just beginning.
_BEING_MADE_S = 60.0


def remove(ledger: Ledger, *, timeout_s: float = 20.0) -> None:
    """Remove a run: its lab with all that is in it, its cgroups, its folder. May run twice."""
    if ledger.lab is not None and ledger.lab_alive():
        end_process(ledger.lab, timeout_s=timeout_s)
    for folder in ledger.cgroups:
        cgroup.remove(Path(folder), timeout_s=timeout_s)
    while ledger.folder.exists():
        # Not found: another command removes it too, so each turn of this loop has less to do.
        with contextlib.suppress(FileNotFoundError):
            _remove_folder(ledger.folder)


def _remove_folder(folder: Path) -> None:
    # The mounts below it were the lab's own and went with it: nothing of the host is in there.
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in (LEDGER, OWNER):
            path.unlink()
    # The ledger goes last, so that a removal that was itself interrupted can be taken up again.
    for name in (LEDGER, OWNER):
        (folder / name).unlink(missing_ok=True)
    folder.rmdir()


def clean() -> list[Ledger]:
    """Remove what dead runs left, and nothing else; return what was removed.

    Safe beside commands that start, end or clean runs at the same time: what is dead is decided,
    and removed, by the one that owns it.
    """
    removed = []
    for ledger in ledgers():
        owner = ledger.lock()
        if owner is None:
            continue
        with owner:
            # It may have come up, or gone, before it became ours.
            current = read_ledger(ledger.folder)
            if current is None or current.stands():
                continue
            remove(current)
        removed.append(current)
    _remove_folders_without_ledger()
    return removed


def _remove_folders_without_ledger() -> None:
    """Remove what is left of runs that were killed before the first entry, or after the last."""
    for folder in sorted((state_folder() / "runs").glob("*/")):
        if (folder / LEDGER).exists():
            continue
        with contextlib.suppress(FileNotFoundError):  # another command removed it just now
            if time.time() - folder.stat().st_mtime > _BEING_MADE_S:
                shutil.rmtree(folder)
