"""What a killed owner leaves is removed whole, and what only looks like it is not touched."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from clusters import PROGRAMS, lan, said
from machine import State, assert_as_before, machine_state, our_processes, wait_until

from testbed.provision import leftovers
from testbed.provision.cgroup import controllers, run_folders
from testbed.provision.cluster import provisioned
from testbed.provision.ledger import ProcessId, ledgers, new_ledger, state_folder

pytestmark = [pytest.mark.root, pytest.mark.needs(*PROGRAMS)]

HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def own_state(monkeypatch: pytest.MonkeyPatch, state_folder: Path, request: object) -> Path:
    """Runs of each test are by themselves; the name of the session's folder stays in the path."""
    folder = state_folder / f"leftovers-{time.monotonic_ns()}" / state_folder.name
    monkeypatch.setenv("TESTBED_STATE", str(folder))
    return folder


@contextmanager
def owner(moment: str, backend: str) -> Iterator[subprocess.Popen[str]]:
    """Give a process that has brought a cluster up to this moment."""
    with subprocess.Popen(
        (sys.executable, str(HERE / "run_until.py"), moment, backend),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": f"{HERE}:{HERE.parent.parent}"},
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "here\n"
            yield process
        finally:
            process.kill()


@dataclass
class Decoys:
    """Things of the host's own that look like a run's."""

    process: subprocess.Popen[bytes]
    cgroup: Path
    file: Path

    def assert_untouched(self) -> None:
        assert self.process.poll() is None
        assert str(self.process.pid) in (self.cgroup / "cgroup.procs").read_text().split()
        assert self.file.read_text() == "mine"
        assert ip("netns", "exec", "decoy-n1", "ip", "link", "show", "eth1").returncode == 0
        for device in ("n1-e9", "decoylan"):
            assert ip("link", "show", device).returncode == 0


def ip(*words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(("ip", *words), capture_output=True, timeout=20)


@pytest.fixture
def decoys(own_state: Path) -> Iterator[Decoys]:
    cgroup = controllers().cpu / "testbed-decoy" / "deadbeef" / "n1"
    file = own_state / "deadbeef" / "ledger.json"
    with ExitStack() as stack:
        for undo, *do in (
            (("netns", "del", "decoy-n1"), "netns", "add", "decoy-n1"),
            (
                ("link", "del", "n1-e9"),
                *("link", "add", "n1-e9", "type", "veth", "peer", "eth1", "netns", "decoy-n1"),
            ),
            (("link", "del", "decoylan"), "link", "add", "decoylan", "type", "bridge"),
        ):
            assert ip(*do).returncode == 0
            stack.callback(ip, *undo)
        cgroup.mkdir(parents=True)
        stack.callback(cgroup.parent.parent.rmdir)
        stack.callback(cgroup.parent.rmdir)
        stack.callback(cgroup.rmdir)
        file.parent.mkdir(parents=True)
        file.write_text("mine")
        process = stack.enter_context(
            subprocess.Popen(("lxc-start -P runs -n n1 -d", "600"), executable="sleep")
        )
        (cgroup / "cgroup.procs").write_text(str(process.pid))
        stack.callback(lambda: wait_until(lambda: empty(cgroup), timeout_s=5))
        stack.callback(process.kill)
        yield Decoys(process, cgroup, file)


def empty(cgroup: Path) -> bool:
    return not (cgroup / "cgroup.procs").read_text()


MOMENTS = (
    ("ledger", "lxc"),
    ("lab", "lxc"),
    ("switch", "netns"),
    ("nodes", "lxc"),
    ("nodes", "netns"),
    ("detached-nodes", "lxc"),
    ("up", "lxc"),
    ("up", "netns"),
    ("removing", "netns"),
)


@pytest.mark.parametrize(("moment", "backend"), MOMENTS)
def test_what_a_killed_owner_leaves_is_removed_and_nothing_else(
    moment: str, backend: str, decoys: Decoys
) -> None:
    before = machine_state()
    with owner(moment, backend) as process:
        assert leftovers.clean() == []  # its owner lives
        [ledger] = ledgers()
        assert not ledger.dead()
        process.kill()
        process.wait(10)
        assert wait_until(ledger.dead, timeout_s=10)
        assert [removed.tag for removed in leftovers.clean()] == [ledger.tag]
    assert_as_before(before)
    decoys.assert_untouched()
    assert leftovers.clean() == []


def test_the_nodes_of_a_killed_owner_end_by_themselves() -> None:
    with owner("up", "lxc") as process:
        assert our_processes()
        process.kill()
        process.wait(10)
        assert wait_until(lambda: not our_processes(), timeout_s=10)
    leftovers.clean()


def test_a_removal_that_was_interrupted_is_taken_up_again(
    monkeypatch: pytest.MonkeyPatch, before: State
) -> None:
    ledger, lock = new_ledger(scenario="lan", backend="lxc", detached=False)
    ledger = replace(ledger, cgroups=run_folders(ledger.tag)).save()
    for folder in ledger.cgroups[:2]:
        Path(folder, "n1").mkdir(parents=True)
    (ledger.folder / "nodes" / "n1").mkdir(parents=True)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with lock, monkeypatch.context() as patch:
        patch.setattr(leftovers.shutil, "rmtree", interrupt)
        with pytest.raises(KeyboardInterrupt):
            leftovers.remove(ledger)
    assert [removed.tag for removed in leftovers.clean()] == [ledger.tag]
    assert_as_before(before)


def test_a_folder_without_a_ledger_is_removed_when_it_cannot_be_a_beginning() -> None:
    runs = state_folder() / "runs"
    for name in ("00000000", "11111111"):
        (runs / name).mkdir(parents=True)
        (runs / name / "owner").touch()
    hour_ago = time.time() - 3600
    os.utime(runs / "00000000", (hour_ago, hour_ago))
    leftovers.clean()
    assert [path.name for path in runs.iterdir()] == ["11111111"]
    (runs / "11111111" / "owner").unlink()


@pytest.mark.parametrize("changed", ["started", "boot"])
def test_a_process_that_only_has_the_number_of_a_lab_is_not_ended(changed: str) -> None:
    with subprocess.Popen(("sleep", "600")) as bystander:
        try:
            lab = ProcessId.of(bystander.pid)
            ledger, lock = new_ledger(scenario="lan", backend="lxc", detached=False)
            if changed == "started":
                replace(ledger, lab=replace(lab, started=lab.started - 1)).save()
            else:
                replace(ledger, lab=lab, boot="another boot").save()
            lock.close()
            assert len(leftovers.clean()) == 1
            assert bystander.poll() is None
        finally:
            bystander.kill()


def test_two_runs_of_one_scenario_live_side_by_side(before: State) -> None:
    with provisioned(lan(), "lxc") as first:
        with provisioned(lan(), "netns") as second:
            for up in (first, second):
                assert said(up, "n1", "hostname") == "n1"
            tags = {up.ledger.tag for up in (first, second)}
            roots = {said(up, "n2", "cat", "/root/.ssh/authorized_keys") for up in (first, second)}
            assert len(tags) == len(roots) == 2
            assert leftovers.clean() == []
        assert said(first, "n1", "getent", "hosts", "n2").split()[0] == "10.10.0.2"
        said(first, "n1", "ping", "-c", "1", "-W", "2", "n2")
    assert_as_before(before)


def test_many_commands_may_clean_at_once() -> None:
    for _ in range(6):
        _, lock = new_ledger(scenario="lan", backend="lxc", detached=False)
        lock.close()
    with ThreadPoolExecutor(8) as pool:
        removed = [
            tag for found in pool.map(lambda _: leftovers.clean(), range(8)) for tag in found
        ]
    assert len(removed) == 6
    assert not list(ledgers())


def test_a_cluster_that_came_up_since_it_was_seen_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(("sleep", "600")) as lab:
        try:
            seen, lock = new_ledger(scenario="lan", backend="lxc", detached=True)
            up = replace(seen, state="up", lab=ProcessId.of(lab.pid)).save()
            lock.close()
            with monkeypatch.context() as patch:
                patch.setattr(leftovers, "ledgers", lambda: iter((seen,)))
                assert leftovers.clean() == []
            assert lab.poll() is None
            assert list(ledgers()) == [up]
        finally:
            lab.kill()
    assert leftovers.clean() == [up]
