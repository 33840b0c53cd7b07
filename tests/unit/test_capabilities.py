"""What doctor finds on machines that lack things, and what it tells their users to type."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

import pytest

from testbed.errors import HostError
from testbed.host.base import Completed
from testbed.host.capabilities import PROGRAMS, Capability, probe, qdisc_kind_works
from testbed.host.local import LocalHost

FILES = {
    "/proc/sys/net/ipv4/tcp_available_congestion_control": "reno cubic\n",
    "/sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory pids\n",
    "/proc/meminfo": "MemTotal: 8000000 kB\nMemFree: 1 kB\nMemAvailable: 4000000 kB\n",
}


@dataclass
class FakeMachine:
    """A machine with these programs, files, modules and queue kinds, and no others."""

    name: str = "fake"
    uid: str = "0"
    programs: frozenset[str] = frozenset(PROGRAMS)
    files: dict[str, str] = field(default_factory=lambda: dict(FILES))
    paths: frozenset[str] = frozenset({"/usr/share/datasets/fashion-mnist"})
    modules: frozenset[str] = frozenset({"openvswitch"})
    kinds: frozenset[str] = frozenset({"tbf", "netem"})
    may_unshare: bool = True

    def run(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float = 30.0,
        stdin: str = "",
        check: bool = True,
    ) -> Completed:
        match tuple(argv):
            case ("id", "-u"):
                return _answer(self.uid)
            case ("nproc",):
                return _answer("4")
            case ("sh", "-c", _, "which", *programs):
                found = (f"{p}=/usr/sbin/{p}" if p in self.programs else f"{p}=" for p in programs)
                return _answer("\n".join(found))
            case ("cat", path):
                return _answer(self.files.get(path))
            case ("ls", "-d", path):
                return _answer(path if path.removeprefix("/sys/module/") in self.modules else None)
            case ("ls", path):
                return _answer(path if path in self.paths else None)
            case ("modprobe", "-n", "-q", module):
                return _answer("" if module in self.modules else None)
            case ("unshare", *words):
                if not self.may_unshare:
                    return Completed(exit_status=1, stdout="", stderr="unshare: not permitted")
                assert ("--user" in words) == (self.uid != "0")
                assert "lo" in words
                return _answer("" if self.kinds & set(words) else None)
            case (path, ("--version" | "-V")):
                assert path.rsplit("/", 1)[1] in self.programs
                return _answer("version 1.2.3\nand more")
        raise HostError(f"no program {argv[0]!r}")

    def put(self, content: bytes, path: PurePosixPath, *, mode: int = 0o644) -> None:
        raise AssertionError("a probe writes nothing")

    def get(self, path: PurePosixPath) -> bytes:
        raise AssertionError("a probe reads by cat")


def _answer(stdout: str | None) -> Completed:
    return Completed(exit_status=0 if stdout is not None else 1, stdout=stdout or "", stderr="no")


def found(machine: FakeMachine) -> dict[str, Capability]:
    return {capability.name: capability for capability in probe(machine)}


def test_a_whole_machine_has_no_gap_but_what_python_lacks() -> None:
    gaps = {name for name, c in found(FakeMachine()).items() if not c.found}
    assert gaps <= {"TensorFlow", "Python"}


def test_every_gap_has_a_command_and_nothing_else_has() -> None:
    bare = FakeMachine(
        uid="1000",
        programs=frozenset(),
        files={},
        paths=frozenset(),
        modules=frozenset(),
        kinds=frozenset(),
    )
    for capability in (*probe(bare), *probe(FakeMachine())):
        assert bool(capability.mend) != capability.found, capability
        assert capability.detail
        assert capability.needed_for


@pytest.mark.parametrize(
    ("program", "name", "package"),
    [
        ("lxc-start", "LXC", "lxc"),
        ("ovsdb-server", "Open vSwitch", "openvswitch-switch"),
        ("tc", "iproute2", "iproute2"),
        ("iperf3", "iperf3", "iperf3"),
        ("sshd", "sshd", "openssh-server"),
        ("ethtool", "ethtool", "ethtool"),
    ],
)
def test_a_missing_program_names_its_package(program: str, name: str, package: str) -> None:
    gap = found(FakeMachine(programs=frozenset(PROGRAMS) - {program}))[name]
    assert not gap.found
    assert gap.detail == f"no {program}"
    assert gap.mend == f"sudo apt-get install --no-install-recommends {package}"


def test_without_the_kernel_module_the_userspace_datapath_is_announced() -> None:
    gap = found(FakeMachine(modules=frozenset()))["Open vSwitch kernel datapath"]
    assert not gap.found
    assert "userspace datapath" in gap.detail
    assert "SWITCH=virtual_bridge" in gap.mend


def test_missing_netem_names_the_module() -> None:
    gap = found(FakeMachine(kinds=frozenset({"tbf"})))["tc netem"]
    assert not gap.found
    assert "sch_netem" in gap.detail
    assert "linux-modules-extra-$(uname -r)" in gap.mend


def test_queues_are_tried_without_root_in_a_user_namespace() -> None:
    assert qdisc_kind_works(FakeMachine(uid="1000"), "netem")


@pytest.mark.parametrize("there", [True, False])
def test_where_no_namespace_may_be_made_the_module_decides(there: bool) -> None:
    modules = frozenset({"sch_netem"} if there else set())
    machine = FakeMachine(may_unshare=False, modules=modules)
    assert qdisc_kind_works(machine, "netem") is there


def test_both_cgroup_versions_are_understood() -> None:
    old = FakeMachine(
        files={path: text for path, text in FILES.items() if "cgroup" not in path},
        paths=frozenset({"/sys/fs/cgroup/cpu/cpu.cfs_quota_us"}),
    )
    assert found(FakeMachine())["cgroup cpu"].detail == "cgroup v2"
    assert found(old)["cgroup cpu"].detail == "cgroup v1"
    assert not found(old)["cgroup memory"].found


def test_memory_is_counted_in_workers() -> None:
    memory = found(FakeMachine())["memory"]
    assert memory.detail == "8.2 GB, 4.1 GB available: about 5 TensorFlow workers"
    tight = FILES | {"/proc/meminfo": "MemTotal: 8000000 kB\nMemAvailable: 900000 kB\n"}
    assert not found(FakeMachine(files=tight))["memory"].found


def test_this_machine_is_probed_within_2_s() -> None:
    started = time.perf_counter()
    names = [capability.name for capability in probe(LocalHost())]
    assert time.perf_counter() - started < 2.0
    assert len(names) == len(set(names)) >= 15
