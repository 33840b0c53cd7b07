"""Budgets and counters of nodes: cgroup v1 and v2 under one face."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import MissingCapability, ProvisionError

DEFAULT_PERIOD_US = 100_000  # the kernel's own
# The least that the kernel takes, and the finest: a longer period lets a node that waited for the
# network compute a whole period's quota at full speed (docs/decisions/0004-quota-period.md).
QUOTA_US = 1_000
INSIDE = "inside"  # the cgroup below a node's own that its processes live in


@dataclass(frozen=True, kw_only=True)
class CgroupStats:
    """What a node has used since it started."""

    cpu_s: float
    periods: int
    throttled_periods: int
    throttled_s: float
    peak_memory_bytes: int


@dataclass(frozen=True, kw_only=True)
class Controllers:
    """Where this machine's controllers are; v2 has one tree, v1 one per controller."""

    version: int
    cpu: Path
    cpuacct: Path
    memory: Path

    def folders(self) -> tuple[Path, ...]:
        """Return the distinct trees, sorted."""
        return tuple(sorted({self.cpu, self.cpuacct, self.memory}))


@dataclass(frozen=True, kw_only=True)
class NodeCgroup:
    """One node's cgroup, ``path`` below each controller.

    Limits are set there; the node's processes live one level deeper, so that root in the node,
    who can see its own cgroup in a namespace of its own making, finds no limit to lift.
    """

    controllers: Controllers
    path: str

    def make(self, *, memory_bytes: int) -> None:
        """Create it with a memory limit (the netns backend; LXC makes its own)."""
        for tree in self.controllers.folders():
            folder = tree / self.path
            (folder / INSIDE).mkdir(parents=True, exist_ok=True)
            if self.controllers.version == 2:
                for parent in reversed(folder.relative_to(tree).parents):
                    (tree / parent / "cgroup.subtree_control").write_text("+cpu +memory")
        name = "memory.max" if self.controllers.version == 2 else "memory.limit_in_bytes"
        (self.controllers.memory / self.path / name).write_text(str(memory_bytes))

    def entry_files(self) -> tuple[Path, ...]:
        """Return the files that a process writes 0 into to enter the cgroup."""
        return tuple(
            tree / self.path / INSIDE / "cgroup.procs" for tree in self.controllers.folders()
        )

    def first_process(self) -> int:
        """Return the number, as seen here, of the node's process 1.

        Raises:
            ProvisionError: there is none.
        """
        for pid in self._file("cpu", f"{INSIDE}/cgroup.procs").read_text().split():
            try:
                status = Path(f"/proc/{pid}/status").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            inside = next(line for line in status.splitlines() if line.startswith("NSpid:"))
            if inside.split()[-1] == "1":
                return int(pid)
        raise ProvisionError(f"{self.path}: the node has no process 1; it ended after it started")

    def set_cpu_budget(self, cores: float | None) -> None:
        """Limit the node to a share of the processors, or lift the limit."""
        if cores is None:
            quota_us, period_us = -1, DEFAULT_PERIOD_US
        else:
            quota_us, period_us = quota(cores)
        if self.controllers.version == 2:
            limit = "max" if quota_us < 0 else str(quota_us)
            self._file("cpu", "cpu.max").write_text(f"{limit} {period_us}")
        else:
            # Lifted first: the kernel refuses a period that the quota of before would not fit.
            self._file("cpu", "cpu.cfs_quota_us").write_text("-1")
            self._file("cpu", "cpu.cfs_period_us").write_text(str(period_us))
            self._file("cpu", "cpu.cfs_quota_us").write_text(str(quota_us))

    def stats(self) -> CgroupStats:
        """Read the counters."""
        cpu = _table(self._file("cpu", "cpu.stat").read_text())
        if self.controllers.version == 2:
            cpu_s = cpu["usage_usec"] / 1e6
            throttled_s = cpu.get("throttled_usec", 0) / 1e6
            peak = self._file("memory", "memory.peak")
            memory = int((peak if peak.exists() else peak.with_name("memory.current")).read_text())
        else:
            cpu_s = int(self._file("cpuacct", "cpuacct.usage").read_text()) / 1e9
            throttled_s = cpu["throttled_time"] / 1e9
            memory = int(self._file("memory", "memory.max_usage_in_bytes").read_text())
        return CgroupStats(
            cpu_s=cpu_s,
            periods=cpu.get("nr_periods", 0),
            throttled_periods=cpu.get("nr_throttled", 0),
            throttled_s=throttled_s,
            peak_memory_bytes=memory,
        )

    def _file(self, controller: str, name: str) -> Path:
        tree: Path = getattr(self.controllers, controller)
        return tree / self.path / name


def quota(cores: float) -> tuple[int, int]:
    """Return (quota, period) in microseconds for a share of the processors: the finest there is."""
    period_us = max(QUOTA_US, round(QUOTA_US / cores))
    return round(cores * period_us), period_us


def controllers(
    *, mounts: Path = Path("/proc/self/mounts"), own: Path = Path("/proc/self/cgroup")
) -> Controllers:
    """Return where cgroups can be made.

    v1: below this process's own, where LXC makes its containers too. v2: at the root, because a
    cgroup with processes of its own cannot hand its controllers on (cgroups(7)).

    Raises:
        MissingCapability: a controller is not mounted.
    """
    found: dict[str, Path] = {}
    below = _below(own)
    unified: Path | None = None
    for line in mounts.read_text().splitlines():
        _, folder, kind, options = line.split()[:4]
        if kind == "cgroup2":
            unified = unified or Path(folder)
        elif kind == "cgroup":
            for name in options.split(","):
                if name in ("cpu", "cpuacct", "memory") and name not in found:
                    found[name] = Path(folder) / below[name].lstrip("/")
    if len(found) == 3:
        return Controllers(version=1, **found)
    if unified is not None:
        available = (unified / "cgroup.controllers").read_text().split()
        if {"cpu", "memory"} <= set(available):
            return Controllers(version=2, cpu=unified, cpuacct=unified, memory=unified)
    raise MissingCapability(
        "the cgroup controllers cpu and memory are not mounted: nodes would have no budgets",
        mend="mount them (systemd does), or boot with systemd.unified_cgroup_hierarchy=1",
    )


def run_folders(tag: str) -> tuple[str, ...]:
    """Return every cgroup folder that a run of this tag may make, in all mounted trees."""
    own = _below(Path("/proc/self/cgroup"))
    folders = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, folder, kind, options = line.split()[:4]
        names = {"cgroup": options.split(","), "cgroup2": [""]}.get(kind, [])
        for name in names:
            if name in own:
                bases = {Path(folder), Path(folder) / own[name].lstrip("/")}
                folders += [str(base / f"testbed-{tag}") for base in sorted(bases)]
    return tuple(sorted(set(folders)))


def remove(folder: Path, *, timeout_s: float = 10.0) -> None:
    """Remove a run's empty cgroups.

    Raises:
        ProvisionError: processes are still in it.
    """
    deadline = time.monotonic() + timeout_s
    for path, _, _ in os.walk(folder, topdown=False):
        while True:
            try:
                Path(path).rmdir()
                break
            except FileNotFoundError:
                break
            except OSError as error:
                # The kernel empties a cgroup a moment after its last process has ended.
                if time.monotonic() > deadline:
                    raise ProvisionError(f"cgroup {path} is still in use: {error}") from error
                time.sleep(0.002)


def _below(own: Path) -> dict[str, str]:
    """Return a process's path below each controller; v2's has the name ""."""
    found: dict[str, str] = {}
    for line in own.read_text().splitlines():
        _, names, path = line.split(":", 2)
        found |= dict.fromkeys(names.split(","), path)
    return found


def _table(text: str) -> dict[str, int]:
    return {key: int(value) for key, value in (line.split() for line in text.splitlines())}
