"""One contract for every backend: what a node is, and that nothing of it stays."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any

import pytest
from clusters import PROGRAMS, lan, said
from machine import State, assert_as_before, wait_until

from testbed.errors import CommandFailed, ProvisionError, TestbedError, Unreachable
from testbed.network.shape import qdisc_fault, read_qdisc
from testbed.network.verify import verify
from testbed.provision import cluster as cluster_module
from testbed.provision import skeleton, switch
from testbed.provision.cgroup import INSIDE
from testbed.provision.cluster import Cluster, LiveNode, bring_up, provisioned
from testbed.scenario.model import MIB, Switch

pytestmark = [pytest.mark.root, pytest.mark.needs(*PROGRAMS)]

BACKENDS = ("lxc", "netns")
# capability.h: chown dac_override fowner fsetid kill setgid setuid net_bind_service net_admin
# net_raw sys_chroot audit_write, and nothing else.
CAPABILITIES = sum(1 << number for number in (0, 1, 3, 4, 5, 6, 7, 10, 12, 13, 18, 29))


def test_every_node_answers_ssh_as_itself(cluster: Cluster) -> None:
    with cluster.sessions() as hosts:
        for host, live in zip(hosts, cluster.nodes, strict=True):
            name = live.name
            assert host.run(("hostname",)).stdout.strip() == name
            assert host.get(Path("/etc/hostname")) == f"{name}\n".encode()
            assert host.run(("id", "-un")).stdout.strip() == "root"
            assert host.run(("cat", "/proc/1/comm")).stdout.strip() == "sshd"
            processes = host.run(("sh", "-c", "ls -d /proc/[0-9]*")).stdout.split()
            assert len(processes) < 10
            for kind in ("pid", "net", "uts", "ipc", "mnt"):
                theirs = host.run(("readlink", f"/proc/self/ns/{kind}")).stdout.strip()
                assert theirs != str(Path(f"/proc/self/ns/{kind}").readlink()), kind


def test_nodes_do_not_share_their_files(cluster: Cluster) -> None:
    with cluster.sessions() as (first, second):
        for path in ("/etc/testfile", "/tmp/testfile", "/root/testfile", "/run/testfile"):
            first.put(b"of n1", Path(path))
            with pytest.raises(CommandFailed, match="No such file"):
                second.get(Path(path))
            assert not Path(path).exists()
            first.run(("rm", path))


def test_interfaces_have_the_addresses_and_macs_of_the_scenario(cluster: Cluster) -> None:
    for index, live in enumerate(cluster.nodes):
        found = {
            link["ifname"]: (
                link["address"],
                [f"{a['local']}/{a['prefixlen']}" for a in link["addr_info"]],
            )
            for link in json.loads(said(cluster, live.name, "ip", "-j", "addr"))
        }
        assert found["eth0"] == (
            f"02:fd:00:07:{index + 1:02x}:00",
            [f"10.250.0.{16 + 4 * index + 2}/30"],
        )
        assert found["eth1"] == (f"02:fd:00:07:{index + 1:02x}:01", [f"10.10.0.{index + 1}/24"])
        assert {name for name in found if name.startswith("eth")} == {"eth0", "eth1"}


def test_names_resolve_to_lan_addresses_and_answer_there(cluster: Cluster) -> None:
    assert said(cluster, "n1", "getent", "hosts", "n2").split() == ["10.10.0.2", "n2"]
    assert said(cluster, "n2", "getent", "hosts", "n1").split() == ["10.10.0.1", "n1"]
    assert " dev eth1 " in said(cluster, "n1", "ip", "route", "get", "10.10.0.2")
    assert transfer(cluster, "n2", "n1") == ("cubic", "cubic")


def transfer(cluster: Cluster, source: str, target: str) -> tuple[str, str]:
    """Send a byte over TCP by name; return the congestion control of both ends' sockets."""
    algorithm = "s.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)"
    end = f"print({algorithm}.rstrip(bytes(1)).decode())"
    serve = (
        "import socket; l = socket.create_server(('', 7777)); l.settimeout(20);"
        f"s, _ = l.accept(); s.sendall(s.recv(1)); {end}"
    )
    ask = f"import socket; s = socket.create_connection(('{target}', 7777), 1); "
    ask += f"s.settimeout(5); s.sendall(b'x'); assert s.recv(1) == b'x'; {end}"
    retry = f'for i in 1 2 3 4 5 6 7 8; do {sys.executable} -c "$1" 2>/dev/null && exit; done'
    answers: list[str] = []
    server = threading.Thread(
        target=lambda: answers.append(said(cluster, target, sys.executable, "-c", serve))
    )
    server.start()
    asked = said(cluster, source, "sh", "-c", retry, "retry", ask)
    server.join(20)
    return asked, answers[0]


def test_nothing_leads_out_of_the_lan(cluster: Cluster) -> None:
    assert "default" not in said(cluster, "n1", "ip", "route")
    other = str(cluster.node("n2").plan.management.ip)
    for address in ("192.0.2.1", "10.11.0.1", other):
        with pytest.raises(CommandFailed, match="unreachable"):
            said(cluster, "n1", "ip", "route", "get", address)
    assert not said(cluster, "n1", "ip", "-6", "route")


def test_a_node_has_exactly_the_short_list_of_capabilities(cluster: Cluster) -> None:
    for process in ("1", "self"):
        lines = said(cluster, "n1", "cat", f"/proc/{process}/status").splitlines()
        status = dict(line.split(":\t", 1) for line in lines if line.startswith("Cap"))
        assert {int(status[f"Cap{which}"], 16) for which in ("Prm", "Eff", "Bnd")} == {CAPABILITIES}
        assert {int(status[f"Cap{which}"], 16) for which in ("Inh", "Amb")} == {0}


def test_the_memory_limit_of_the_scenario_is_set_and_kept(cluster: Cluster) -> None:
    cgroup = cluster.node("n1").cgroup
    name = "memory.max" if cgroup.controllers.version == 2 else "memory.limit_in_bytes"
    limit = (cgroup.controllers.memory / cgroup.path / name).read_text()
    assert int(limit) == 512 * MIB
    with pytest.raises(CommandFailed):
        said(cluster, "n1", sys.executable, "-c", f"bytearray({600 * MIB}).find(1)")
    assert said(cluster, "n1", "hostname") == "n1"  # only what was too large was ended
    assert cgroup.stats().peak_memory_bytes > 400 * MIB


LIFT_LIMITS = """\
for name in memory cpu; do
    mkdir -p /tmp/$name && mount -t cgroup -o $name none /tmp/$name
    for file in /tmp/$name/memory.limit_in_bytes /tmp/$name/cpu.cfs_quota_us /tmp/$name/*.max; do
        echo -1 > "$file"
        echo max > "$file"
    done
done
"""


def test_root_in_a_node_cannot_lift_the_nodes_limits(cluster: Cluster) -> None:
    live = cluster.node("n1")
    cgroup = live.cgroup
    v2 = cgroup.controllers.version == 2
    memory = (
        cgroup.controllers.memory / cgroup.path / ("memory.max" if v2 else "memory.limit_in_bytes")
    )
    cpu = cgroup.controllers.cpu / cgroup.path / ("cpu.max" if v2 else "cpu.cfs_quota_us")
    cgroup.set_cpu_budget(0.25)
    before = (memory.read_text(), cpu.read_text())
    spaces = ("unshare", "--user", "--keep-caps", "--mount", "--cgroup")
    with cluster.session(live) as host:
        host.run((*spaces, "sh", "-c", LIFT_LIMITS), check=False)
    assert (memory.read_text(), cpu.read_text()) == before
    cgroup.set_cpu_budget(None)


def test_a_cpu_budget_limits_a_busy_node_and_can_be_lifted(cluster: Cluster) -> None:
    live = cluster.node("n1")

    def cores_used() -> float:
        before, began = live.cgroup.stats(), time.perf_counter()
        with cluster.session(live) as host:
            host.run(("timeout", "1.5", *BUSY), check=False)
        return (live.cgroup.stats().cpu_s - before.cpu_s) / (time.perf_counter() - began)

    live.cgroup.set_cpu_budget(0.25)
    throttled = live.cgroup.stats().throttled_periods
    limited = cores_used()
    assert live.cgroup.stats().throttled_periods > throttled + 5
    live.cgroup.set_cpu_budget(None)
    assert 0.10 < limited < 0.30
    assert cores_used() > 1.4 * limited


BUSY = ("sh", "-c", "(while :; do :; done) & while :; do :; done")


@pytest.mark.parametrize(
    ("backend", "switch_kind", "rates"),
    [
        ("lxc", "openvswitch", (10, 100)),
        ("lxc", "virtual_bridge", (100,)),
        ("netns", "openvswitch", (100,)),
        ("netns", "virtual_bridge", (10, 100)),
    ],
)
def test_links_carry_their_rate_both_ways_and_no_more(
    backend: str, switch_kind: Switch, rates: tuple[int, ...], before: State
) -> None:
    for mbit in rates:
        scenario = lan(rate_bps=mbit * 1_000_000, switch=switch_kind)
        with provisioned(scenario, backend) as up:
            assert all(read_qdisc(end.host, end.device).kind == "none" for end, _ in ends(up))
            up.shape()
            for end, shape in ends(up):
                assert qdisc_fault(read_qdisc(end.host, end.device), shape) is None
            assert passing(up) == ()
            wanted = {"openvswitch": ("kernel", "userspace"), "virtual_bridge": ("bridge",)}
            assert up.ledger.datapath in wanted[switch_kind]
    assert_as_before(before)


def passing(cluster: Cluster) -> tuple[str, ...]:
    """Return why the links do not pass. A busy machine's links are measured again: a wrong one
    never passes (tests/real/test_links.py), a right one may fail when others take the processors.
    """
    for _ in range(3):
        verdict = verify(cluster.links(), when="before")
        if verdict.status == "pass":
            return ()
    return verdict.reasons


def ends(cluster: Cluster) -> list[Any]:
    return [end for link in cluster.links() for end in link.ends()]


def test_the_host_takes_part_in_the_lan_only_if_the_scenario_says_so(
    cluster: Cluster, before: State
) -> None:
    assert "10.10.0." not in cluster.lab.host.run(("ip", "-4", "addr")).stdout
    scenario = lan(switch=cluster.scenario.lan.switch)
    host = replace(scenario.lan, host_address=IPv4Interface("10.10.0.200/24"))
    with provisioned(replace(scenario, lan=host), cluster.ledger.backend) as up:
        assert "10.10.0.200/24" in up.lab.host.run(("ip", "-4", "addr")).stdout
        said(up, "n1", "ping", "-c", "1", "-W", "2", "10.10.0.200")
    assert_as_before(before)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_node_that_ends_does_not_take_the_others_with_it(backend: str, before: State) -> None:
    with provisioned(lan(), backend) as up:
        os.kill(up.node("n1").cgroup.first_process(), signal.SIGKILL)
        assert wait_until(lambda: not inhabited(up.node("n1")), timeout_s=5)
        assert said(up, "n2", "hostname") == "n2"
        with pytest.raises(Unreachable, match="n1"):
            said(up, "n1", "hostname")
    assert_as_before(before)


def inhabited(live: LiveNode) -> bool:
    folder = live.cgroup.controllers.cpu / live.cgroup.path / INSIDE
    return folder.exists() and bool((folder / "cgroup.procs").read_text())


@pytest.mark.parametrize("backend", BACKENDS)
def test_closing_twice_leaves_nothing_and_does_no_harm(backend: str, before: State) -> None:
    up = bring_up(lan(), backend)
    assert said(up, "n1", "hostname") == "n1"
    up.close()
    assert_as_before(before)
    up.close()


def broken_switch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(switch, "_START_OVS", "no-such-program-of-a-switch\n")


def broken_init(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(skeleton, "_INIT", "#!/bin/sh\necho it broke >> /{log}\nexit 3\n")
    wait = cluster_module.wait_for_ssh
    patch.setattr(cluster_module, "wait_for_ssh", lambda lab, plans: wait(lab, plans, timeout_s=1))


def silent_nodes(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(skeleton, "_INIT", "#!/bin/sh\necho I sleep >> /{log}\nexec sleep 600\n")
    wait = cluster_module.wait_for_ssh
    patch.setattr(cluster_module, "wait_for_ssh", lambda lab, plans: wait(lab, plans, timeout_s=1))


def interrupted(patch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    patch.setattr(cluster_module, "wait_for_ssh", stop)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        (broken_switch, ProvisionError, "no-such-program-of-a-switch"),
        (broken_init, TestbedError, "n1(.|\n)*it broke"),
        (silent_nodes, ProvisionError, "n1: no SSH after 1 s(.|\n)*I sleep"),
        (interrupted, KeyboardInterrupt, None),
    ],
)
def test_a_bring_up_that_fails_half_way_leaves_nothing_and_can_be_repeated(
    backend: str,
    fault: Callable[[pytest.MonkeyPatch], None],
    error: type[BaseException],
    message: str | None,
    monkeypatch: pytest.MonkeyPatch,
    before: State,
) -> None:
    with monkeypatch.context() as patch:
        fault(patch)
        for _ in range(2):
            with pytest.raises(error, match=message):
                bring_up(lan(), backend)
            assert_as_before(before)
    with provisioned(lan(), backend) as up:
        assert said(up, "n2", "hostname") == "n2"
    assert_as_before(before)
