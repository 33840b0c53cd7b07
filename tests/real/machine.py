"""What a machine holds that a run could leave behind, as seen from the host."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

State = dict[str, frozenset[str]]


def machine_state() -> State:
    """Return named network namespaces, links, mounts, our cgroups and our processes."""
    links = subprocess.run(("ip", "-j", "link"), capture_output=True, check=True, timeout=20)
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return {
        "namespaces": frozenset(path.name for path in _listed(Path("/run/netns"))),
        "links": frozenset(link["ifname"] for link in json.loads(links.stdout)),
        "mounts": frozenset(line.split()[4] for line in mounts),
        "cgroups": frozenset(map(str, empty_cgroups())),
        "processes": frozenset(our_processes()),
        "runs": frozenset(map(str, _listed(_state_folder() / "runs"))),
    }


def assert_as_before(before: State, *, timeout_s: float = 10.0) -> None:
    """Wait until nothing is there that was not there before, and nothing is gone."""

    def changes() -> dict[str, list[str]]:
        after = machine_state()
        found = {kind: sorted(after[kind] ^ before[kind]) for kind in after}
        # A node that stands all the while has sessions that come and go.
        return found | {"processes": sorted(after["processes"] - before["processes"])}

    last: list[dict[str, list[str]]] = []

    def unchanged() -> bool:
        last[:] = [changes()]
        return not any(last[0].values())

    # The kernel takes namespaces, devices and cgroups away a moment after their last process.
    assert wait_until(unchanged, timeout_s=timeout_s), last[0]


def wait_until(condition: Callable[[], bool], *, timeout_s: float) -> bool:
    """Return whether the condition came true in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def our_processes() -> list[str]:
    """Return processes of runs of these tests: by environment, arguments, or what they mount.

    The state folder's name is unique, and the root of each node lies in it.
    """
    mark = _state_folder().name.encode()
    found = []
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or process.name == str(os.getpid()):
            continue
        try:
            texts = [(process / name).read_bytes() for name in ("environ", "cmdline", "mountinfo")]
        except OSError:
            continue  # it ended meanwhile, or is a thread of the kernel
        if any(mark in text for text in texts):
            found.append(f"{process.name} {texts[1].replace(bytes(1), b' ').decode()}")
    return found


_OURS = re.compile(r"testbed-[0-9a-f]{8}")


def empty_cgroups() -> list[Path]:
    """Return the testbed's cgroups without a process; another command's living ones have some."""
    empty = []
    for tree in {Path(line.split()[1]) for line in _cgroup_mounts()}:
        for folder, _, _ in os.walk(tree):
            parts = Path(folder).relative_to(tree).parts
            if any(_OURS.fullmatch(part) for part in parts) and not _inhabited(Path(folder)):
                empty.append(Path(folder))
    return sorted(empty)


def _cgroup_mounts() -> list[str]:
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [line for line in lines if line.split()[2] in ("cgroup", "cgroup2")]


def _inhabited(folder: Path) -> bool:
    try:
        return any(path.read_text() for path in folder.rglob("cgroup.procs"))
    except OSError:
        return True  # it is being removed right now


def _listed(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []


def _state_folder() -> Path:
    return Path(os.environ["TESTBED_STATE"])
