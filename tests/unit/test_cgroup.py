"""Budgets, limits and counters in trees of files shaped as the kernel's, version 1 and 2."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import MissingCapability, ProvisionError
from testbed.provision import cgroup
from testbed.provision.cgroup import CgroupStats, Controllers, NodeCgroup, controllers, quota

V1_MOUNTS = """\
tmpfs {root} tmpfs rw 0 0
cgroup {root}/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0
cgroup {root}/memory cgroup rw,relatime,memory 0 0
cgroup {root}/systemd cgroup rw,name=systemd 0 0
cgroup2 {root}/unified cgroup2 rw 0 0
"""
V1_OWN = "4:memory:/user/me\n3:cpu,cpuacct:/\n1:name=systemd:/\n0::/\n"


@pytest.fixture
def v1(tmp_path: Path) -> NodeCgroup:
    trees = Controllers(
        version=1, cpu=tmp_path / "cpu", cpuacct=tmp_path / "acct", memory=tmp_path / "memory"
    )
    return NodeCgroup(controllers=trees, path="testbed-cafe/n1")


@pytest.fixture
def v2(tmp_path: Path) -> NodeCgroup:
    trees = Controllers(version=2, cpu=tmp_path, cpuacct=tmp_path, memory=tmp_path)
    return NodeCgroup(controllers=trees, path="testbed-cafe/n1")


def found_in(folder: Path, mounts: str, own: str) -> Controllers:
    (folder / "mounts").write_text(mounts.format(root=folder))
    (folder / "own").write_text(own)
    return controllers(mounts=folder / "mounts", own=folder / "own")


def test_v1_controllers_are_below_this_processs_own(tmp_path: Path) -> None:
    assert found_in(tmp_path, V1_MOUNTS, V1_OWN) == Controllers(
        version=1,
        cpu=tmp_path / "cpu,cpuacct",
        cpuacct=tmp_path / "cpu,cpuacct",
        memory=tmp_path / "memory" / "user/me",
    )


def test_v2_has_one_tree_used_from_its_root(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    found = found_in(tmp_path, "cgroup2 {root} cgroup2 rw 0 0\n", "0::/user.slice/me\n")
    assert found == Controllers(version=2, cpu=tmp_path, cpuacct=tmp_path, memory=tmp_path)
    assert found.folders() == (tmp_path,)


@pytest.mark.parametrize(
    ("mounts", "offered"),
    [
        ("tmpfs {root} tmpfs rw 0 0\n", "cpu memory"),
        ("cgroup2 {root} cgroup2 rw 0 0\n", "cpu io"),
        ("cgroup {root}/cpu cgroup rw,cpu 0 0\n", "cpu memory"),
    ],
    ids=["none", "v2 without memory", "v1 without memory"],
)
def test_a_machine_without_the_controllers_is_told(
    mounts: str, offered: str, tmp_path: Path
) -> None:
    (tmp_path / "cgroup.controllers").write_text(offered)
    with pytest.raises(MissingCapability, match="cpu and memory are not mounted"):
        found_in(tmp_path, mounts, "1:cpu:/\n0::/\n")


def test_a_new_node_has_its_memory_limit_v1(v1: NodeCgroup) -> None:
    v1.make(memory_bytes=2**30)
    limit = v1.controllers.memory / "testbed-cafe/n1/memory.limit_in_bytes"
    assert limit.read_text() == str(2**30)
    assert v1.entry_files() == tuple(
        v1.controllers.cpu.parent / tree / "testbed-cafe/n1/inside/cgroup.procs"
        for tree in ("acct", "cpu", "memory")
    )


def test_a_new_node_has_its_memory_limit_and_controllers_handed_down_v2(v2: NodeCgroup) -> None:
    v2.make(memory_bytes=2**30)
    root = v2.controllers.cpu
    assert (root / "testbed-cafe/n1/memory.max").read_text() == str(2**30)
    for folder in ("", "testbed-cafe"):
        assert (root / folder / "cgroup.subtree_control").read_text() == "+cpu +memory"
    assert not (root / "testbed-cafe/n1/cgroup.subtree_control").exists()
    assert v2.entry_files() == (root / "testbed-cafe/n1/inside/cgroup.procs",)


def test_a_budget_is_a_quota_and_none_lifts_it(v1: NodeCgroup, v2: NodeCgroup) -> None:
    for node in (v1, v2):
        node.make(memory_bytes=2**30)
    own_v1 = v1.controllers.cpu / v1.path
    own_v2 = v2.controllers.cpu / v2.path
    for node in (v1, v2):
        node.set_cpu_budget(0.4)
    quota_us, period_us = quota(0.4)
    assert (own_v1 / "cpu.cfs_quota_us").read_text() == str(quota_us)
    assert (own_v1 / "cpu.cfs_period_us").read_text() == str(period_us)
    assert (own_v2 / "cpu.max").read_text() == f"{quota_us} {period_us}"
    for node in (v1, v2):
        node.set_cpu_budget(None)
    assert (own_v1 / "cpu.cfs_quota_us").read_text() == "-1"
    assert (own_v2 / "cpu.max").read_text() == "max 100000"


@given(st.integers(1, 6400))
def test_every_budget_is_one_that_the_kernel_takes_and_is_that_share(percent: int) -> None:
    quota_us, period_us = quota(percent / 100)
    assert quota_us >= 1000
    assert 1000 <= period_us <= 1_000_000
    assert quota_us / period_us == pytest.approx(percent / 100, rel=1e-3)


def test_counters_are_read_in_seconds_and_bytes(v1: NodeCgroup, v2: NodeCgroup) -> None:
    for node in (v1, v2):
        node.make(memory_bytes=2**30)
    cpu = v1.controllers.cpu / v1.path
    (cpu / "cpu.stat").write_text("nr_periods 40\nnr_throttled 7\nthrottled_time 250000000\n")
    (v1.controllers.cpuacct / v1.path / "cpuacct.usage").write_text("1500000000\n")
    (v1.controllers.memory / v1.path / "memory.max_usage_in_bytes").write_text("123456\n")
    own = v2.controllers.cpu / v2.path
    (own / "cpu.stat").write_text(
        "usage_usec 1500000\nuser_usec 1\nsystem_usec 1\n"
        "nr_periods 40\nnr_throttled 7\nthrottled_usec 250000\n"
    )
    (own / "memory.peak").write_text("123456\n")
    wanted = CgroupStats(
        cpu_s=1.5, periods=40, throttled_periods=7, throttled_s=0.25, peak_memory_bytes=123456
    )
    assert v1.stats() == v2.stats() == wanted


def test_a_kernel_without_a_memory_peak_tells_what_is_used_now(v2: NodeCgroup) -> None:
    v2.make(memory_bytes=2**30)
    own = v2.controllers.cpu / v2.path
    (own / "cpu.stat").write_text("usage_usec 5\n")  # no quota was ever set: no throttling lines
    (own / "memory.current").write_text("77\n")
    found = v2.stats()
    assert (found.peak_memory_bytes, found.periods, found.throttled_s) == (77, 0, 0.0)


def test_a_node_without_a_first_process_is_told(v1: NodeCgroup) -> None:
    v1.make(memory_bytes=2**30)
    (v1.controllers.cpu / v1.path / "inside" / "cgroup.procs").write_text("")
    with pytest.raises(ProvisionError, match="testbed-cafe/n1: the node has no process 1"):
        v1.first_process()


def test_removal_takes_one_runs_folders_and_may_run_twice(tmp_path: Path) -> None:
    for tag in ("cafe", "beef"):
        (tmp_path / f"testbed-{tag}" / "n1" / "inside").mkdir(parents=True)
    cgroup.remove(tmp_path / "testbed-cafe")
    cgroup.remove(tmp_path / "testbed-cafe")
    assert [path.name for path in tmp_path.iterdir()] == ["testbed-beef"]


def test_a_folder_that_stays_in_use_is_told_in_time(tmp_path: Path) -> None:
    (tmp_path / "testbed-cafe").mkdir(parents=True)
    (tmp_path / "testbed-cafe" / "busy").touch()
    with pytest.raises(ProvisionError, match="still in use"):
        cgroup.remove(tmp_path / "testbed-cafe", timeout_s=0.01)


def test_every_cgroup_of_a_run_bears_its_tag() -> None:
    folders = cgroup.run_folders("cafe")
    assert folders == tuple(sorted(set(folders)))
    assert all(folder.endswith("/testbed-cafe") for folder in folders)
