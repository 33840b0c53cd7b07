"""What a run owns, written down before it exists, so that nothing can be left behind unseen.

One folder per run, ``STATE/runs/TAG``, holds everything the run keeps on disk; its ``ledger.json``
names what lives elsewhere: the lab's first process and the cgroup folders. While the command that
owns a run lives it holds a lock on that folder, which the kernel frees however the command ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import BinaryIO, Literal

from testbed.errors import ProvisionError
from testbed.files import write_whole

FORMAT = 1
LEDGER = "ledger.json"
OWNER = "owner"  # locked by the command that owns the run
State = Literal["starting", "up"]


def state_folder() -> Path:
    """Return where runs are kept: $TESTBED_STATE, else /var/lib/testbed."""
    return Path(os.environ.get("TESTBED_STATE", "/var/lib/testbed"))


def boot_id() -> str:
    """Return the kernel's name for this boot; a ledger of another boot names dead processes."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@dataclass(frozen=True, kw_only=True)
class ProcessId:
    """A process that cannot be mistaken for a later one of the same number."""

    pid: int
    started: int  # clock ticks after boot: field 22 of /proc/PID/stat, proc(5)

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        """Return the identity of a living process.

        Raises:
            ProcessLookupError: there is none of this number.
        """
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError) as error:
            raise ProcessLookupError(pid) from error
        # The name, field 2, may hold blanks and brackets: count from its end.
        return cls(pid=pid, started=int(stat.rpartition(")")[2].split()[19]))

    def alive(self) -> bool:
        """Whether this very process is still there."""
        try:
            return ProcessId.of(self.pid) == self
        except ProcessLookupError:
            return False


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """One run: who made it, how far it came, and what it has outside its folder."""

    tag: str
    scenario: str
    backend: str
    boot: str
    state: State = "starting"
    detached: bool = False  # made by `testbed up`: outlives the command that made it
    lab: ProcessId | None = None
    cgroups: tuple[str, ...] = ()
    datapath: str = ""

    @property
    def folder(self) -> Path:
        """Everything of this run on disk."""
        return state_folder() / "runs" / self.tag

    def save(self) -> Ledger:
        """Write it whole and return it."""
        content = {"format": FORMAT} | asdict(self)
        write_whole(self.folder / LEDGER, json.dumps(content, indent=1).encode() + b"\n")
        return self

    def lab_alive(self) -> bool:
        """Whether the lab of this run still stands."""
        return self.boot == boot_id() and self.lab is not None and self.lab.alive()

    def stands(self) -> bool:
        """Whether this is a cluster that ``testbed up`` left standing."""
        return self.detached and self.state == "up" and self.lab_alive()

    def dead(self) -> bool:
        """Whether nobody owns this run any more, so that it may be removed."""
        if self.stands():
            return False
        lock = self.lock()
        if lock is None:
            return False
        lock.close()
        return True

    def lock(self) -> BinaryIO | None:
        """Return an open file that owns the run until it is closed.

        None if somebody else owns it, or it is gone.
        """
        try:
            # Never made here: it would stand in the way of one who is removing the folder.
            file = (self.folder / OWNER).open("r+b", buffering=0)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        return file


def new_ledger(*, scenario: str, backend: str, detached: bool) -> tuple[Ledger, BinaryIO]:
    """Create a run's folder and ledger; return it with the open file that owns it.

    Raises:
        ProvisionError: the state folder cannot be written.
    """
    ledger = Ledger(
        tag=secrets.token_hex(4),
        scenario=scenario,
        backend=backend,
        boot=boot_id(),
        detached=detached,
    )
    try:
        ledger.folder.mkdir(parents=True, mode=0o700)
        (ledger.folder / OWNER).touch(mode=0o600)
    except OSError as error:
        raise ProvisionError(
            f"cannot write {state_folder()}: {error.strerror}; nodes need root: try it with sudo"
        ) from error
    owner = ledger.lock()
    if owner is None:
        raise ProvisionError(f"run {ledger.tag} is already owned by another command")
    return ledger.save(), owner


def ledgers() -> Iterator[Ledger]:
    """Yield every run that has a ledger, sorted by tag; a foreign format is refused."""
    for path in sorted((state_folder() / "runs").glob(f"*/{LEDGER}")):
        ledger = read_ledger(path.parent)
        if ledger is not None:
            yield ledger


def read_ledger(folder: Path) -> Ledger | None:
    """Return the ledger of a run's folder, None if it is gone.

    Raises:
        ProvisionError: another version of testbed wrote it.
    """
    try:
        content = json.loads((folder / LEDGER).read_bytes())
    except FileNotFoundError:
        return None
    found = content.pop("format", None)
    if found != FORMAT:
        raise ProvisionError(
            f"{folder / LEDGER}: format {found}, expected {FORMAT}: it was written by another "
            "version of testbed; run `testbed clean` with that version"
        )
    lab = content.pop("lab")
    cgroups = tuple(content.pop("cgroups"))
    return replace(Ledger(**content), lab=ProcessId(**lab) if lab else None, cgroups=cgroups)
