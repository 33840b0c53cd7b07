"""Removing a run: exactly what its ledger names, in an order that may be repeated."""

from __future__ import annotations

import shutil
from pathlib import Path

from testbed.provision import cgroup
from testbed.provision.lab import end_process
from testbed.provision.ledger import Ledger, ledgers


def remove(ledger: Ledger, *, timeout_s: float = 20.0) -> None:
    """Remove a run: its lab with all that is in it, its cgroups, its folder. May run twice."""
    if ledger.lab is not None and ledger.lab_alive():
        end_process(ledger.lab, timeout_s=timeout_s)
    for folder in ledger.cgroups:
        cgroup.remove(Path(folder), timeout_s=timeout_s)
    # The mounts below it were the lab's own and went with it: nothing of the host is in there.
    # The ledger goes last, so that a removal that was itself interrupted can be taken up again.
    if not ledger.folder.exists():
        return
    for path in sorted(ledger.folder.iterdir()):
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in ("ledger.json", "owner"):
            path.unlink()
    shutil.rmtree(ledger.folder)


def dead_runs() -> list[Ledger]:
    """Return the runs whose owner is gone."""
    return [ledger for ledger in ledgers() if ledger.dead()]


def clean() -> list[Ledger]:
    """Remove what dead runs left, and nothing else; return what was removed."""
    dead = dead_runs()
    for ledger in dead:
        remove(ledger)
    return dead
