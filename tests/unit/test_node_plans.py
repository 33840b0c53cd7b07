"""What the backends write for a node before anything is started: exact text."""

from __future__ import annotations

import os
import stat
import subprocess
from ipaddress import IPv4Interface
from pathlib import Path

import pytest

from testbed.host.ssh import KeyPair, new_key_pair
from testbed.provision import lxc, netns, skeleton
from testbed.provision.cgroup import Controllers, NodeCgroup
from testbed.provision.skeleton import NodePlan, build, node_log
from testbed.provision.skeleton import python_folders as real_python_folders
from testbed.provision.switch import overload_warning
from testbed.scenario import generate
from testbed.scenario.model import Node, Scenario, Shape

ROOT = Path("/var/lib/testbed/runs/cafe/nodes/n1/rootfs")
PYTHONS = (Path("/home/me/my python"), Path("/srv/.venv"))
LAN = generate.star(2, Shape(rate_bps=10_000_000))


@pytest.fixture(autouse=True)
def pythons(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (lxc, netns, skeleton):
        monkeypatch.setattr(module, "python_folders", lambda: PYTHONS)


def plan_of(scenario: Scenario = LAN, index: int = 0, root: Path = ROOT) -> NodePlan:
    return NodePlan(
        node=scenario.nodes[index],
        index=index,
        root=root,
        management=scenario.management_address(index),
        management_mac=scenario.mac(index, 0),
        lan_mac=scenario.mac(index, scenario.nodes[index].interface_id),
        host_key=KeyPair(private="PRIVATE\n", public="ssh-ed25519 AAAA"),
        cgroup="testbed-cafe/n1",
    )


def test_a_containers_configuration_is_exactly_this() -> None:
    assert (
        lxc.configuration(plan_of(), cgroup_version=1)
        == f"""\
lxc.uts.name = n1
lxc.rootfs.path = dir:{ROOT}
lxc.mount.auto = proc:mixed sys:mixed
lxc.mount.entry = /usr usr none bind,ro 0 0
lxc.mount.entry = /home/me/my\\040python home/me/my\\040python none bind,ro 0 0
lxc.mount.entry = /srv/.venv srv/.venv none bind,ro 0 0
lxc.mount.entry = shm dev/shm tmpfs mode=1777,create=dir 0 0
lxc.cap.keep = chown dac_override fowner fsetid kill setgid setuid net_bind_service net_admin \
net_raw sys_chroot audit_write
lxc.apparmor.profile = unconfined
lxc.init.cmd = /sbin/node-init
lxc.signal.halt = SIGTERM
lxc.cgroup.dir.container = testbed-cafe/n1
lxc.cgroup.dir.container.inner = inside
lxc.cgroup.dir.monitor = testbed-cafe/n1-monitor
lxc.cgroup.memory.limit_in_bytes = 2147483648
lxc.net.0.type = veth
lxc.net.0.veth.pair = n1-e0
lxc.net.0.name = eth0
lxc.net.0.hwaddr = 02:fd:00:07:01:00
lxc.net.0.flags = up
lxc.net.0.ipv4.address = 10.250.0.18/30
lxc.net.1.type = veth
lxc.net.1.veth.pair = n1-e1
lxc.net.1.name = eth1
lxc.net.1.hwaddr = 02:fd:00:07:01:01
lxc.net.1.flags = up
lxc.net.1.ipv4.address = 10.10.0.1/24
"""
    )


def test_under_cgroup_v2_only_the_memory_limit_is_written_otherwise() -> None:
    first, second = (
        lxc.configuration(plan_of(), cgroup_version=version).splitlines() for version in (1, 2)
    )
    changed = [pair for pair in zip(first, second, strict=True) if pair[0] != pair[1]]
    assert changed == [
        (
            "lxc.cgroup.memory.limit_in_bytes = 2147483648",
            "lxc.cgroup2.memory.max = 2147483648",
        )
    ]


def test_an_interface_has_the_number_of_the_scenario_and_is_the_second_of_the_container() -> None:
    node = Node(name="left", address=IPv4Interface("192.168.7.9/28"), interface_id=3)
    own = Scenario(name="own", nodes=(node,))
    text = lxc.configuration(plan_of(own), cgroup_version=1)
    assert "lxc.net.1.name = eth3\n" in text
    assert "lxc.net.1.veth.pair = left-e3\n" in text
    assert "lxc.net.1.hwaddr = 02:fd:00:07:01:03\n" in text
    assert "lxc.net.1.ipv4.address = 192.168.7.9/28\n" in text


def test_a_namespace_nodes_links_are_two_pairs_with_the_scenarios_macs() -> None:
    assert netns.link_commands(plan_of(index=1)) == [
        "netns add n2",
        "link add n2-e0 type veth peer name eth0 address 02:fd:00:07:02:00 netns n2",
        "link add n2-e1 type veth peer name eth1 address 02:fd:00:07:02:01 netns n2",
    ]


def test_a_namespace_nodes_mounts_of_the_host_are_read_only() -> None:
    lines = [line.split() for line in netns.node_fstab(plan_of()).splitlines()]
    from_the_host = {
        source: options for source, _, _, options, *_ in lines if Path(source).is_absolute()
    }
    assert from_the_host.pop(str(ROOT)) == "bind"  # its own
    assert from_the_host.pop("/proc/sys/net") == "bind"  # its own network's
    assert set(from_the_host.values()) == {"bind,ro"}
    assert {"/usr", "/home/me/my\\040python", "/srv/.venv"} <= from_the_host.keys()
    assert all(target.startswith(str(ROOT)) for _, target, *_ in lines)
    assert ["sysfs", f"{ROOT}/sys", "sysfs", "ro", "0", "0"] in lines


def test_a_namespace_nodes_script_leaves_the_host_behind_and_drops_capabilities() -> None:
    lines = netns.node_script(plan_of()).splitlines()
    assert lines[:2] == ["set -eu", "hostname n1"]
    assert "addr add 10.250.0.18/30 dev eth0" in lines
    assert "addr add 10.10.0.1/24 dev eth1" in lines
    order = ["mount --make-rprivate /", "pivot_root . .host", "umount -l .host", "rmdir .host"]
    assert [line for line in lines if line in order] == order
    assert lines[-1] == (
        "exec setpriv --bounding-set=-all,+chown,+dac_override,+fowner,+fsetid,+kill,+setgid,"
        "+setuid,+net_bind_service,+net_admin,+net_raw,+sys_chroot,+audit_write -- /sbin/node-init"
    )


@pytest.mark.parametrize("folder", ["plain", "with blank", "$(touch pwned)", "it's;touch pwned"])
def test_a_folders_name_never_becomes_a_command(folder: str, tmp_path: Path) -> None:
    plan = plan_of(root=tmp_path / folder / "n1" / "rootfs")
    trees = Controllers(version=2, cpu=tmp_path, cpuacct=tmp_path, memory=tmp_path)
    line = netns.start_command(plan, NodeCgroup(controllers=trees, path=f"{folder}/n1"))
    for script in (line, netns.node_script(plan)):
        # The shell reads it whole, and runs none of it.
        subprocess.run(("sh", "-n"), input=script, text=True, check=True, cwd=tmp_path, timeout=20)
    words = subprocess.run(
        ("sh", "-c", f"printf '%s\\n' {line.rpartition(' > ')[0]}"),
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        timeout=20,
    ).stdout.splitlines()
    assert words[-1] == str(tmp_path / folder / "n1" / "inside" / "cgroup.procs")
    assert not (tmp_path / "pwned").exists()


def built(tmp_path: Path, *, checksum_offload: bool = True) -> Path:
    root = tmp_path / "rootfs"
    build(
        plan_of(root=root),
        LAN,
        authorized_key="ssh-ed25519 KEY",
        checksum_offload=checksum_offload,
    )
    return root


def test_a_root_has_its_own_few_files_and_the_hosts_userland_by_links(tmp_path: Path) -> None:
    root = built(tmp_path)
    files = {str(p.relative_to(root)) for p in root.rglob("*") if p.is_file()}
    files = {name for name in files if not (root / name.split("/")[0]).is_symlink()}
    assert files == {
        *("etc/group", "etc/hostname", "etc/hosts", "etc/nsswitch.conf", "etc/passwd"),
        *("etc/shadow", "etc/ssh/host_key", "etc/ssh/sshd_config", "root/.ssh/authorized_keys"),
        "sbin/node-init",
    }
    for name in ("bin", "lib"):
        assert (root / name).readlink() == Path("usr", name)
    for folder in (*PYTHONS, Path("/usr"), Path("/proc"), Path("/dev")):
        target = root / folder.relative_to("/")
        assert target.is_dir()
        assert not list(target.iterdir())
    assert (root / "etc/hosts").read_text() == ("127.0.0.1 localhost\n10.10.0.1 n1\n10.10.0.2 n2\n")
    assert (root / "etc/hostname").read_text() == "n1\n"
    assert (root / "root/.ssh/authorized_keys").read_text() == "ssh-ed25519 KEY\n"


def test_secrets_are_for_root_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        root = built(tmp_path)
    finally:
        os.umask(before)
    modes = {
        name: stat.S_IMODE((root / name).stat().st_mode)
        for name in ("etc/ssh/host_key", "etc/shadow", "root", "root/.ssh", "tmp", "etc/hosts")
    }
    assert modes == {
        "etc/ssh/host_key": 0o600,
        "etc/shadow": 0o600,
        "root": 0o700,
        "root/.ssh": 0o700,
        "tmp": 0o1777,
        "etc/hosts": 0o644,
    }


def test_sshd_takes_keys_alone_and_listens_on_the_management_address_alone(tmp_path: Path) -> None:
    lines = (built(tmp_path) / "etc/ssh/sshd_config").read_text().splitlines()
    options = dict(line.split(" ", 1) for line in lines)
    assert options["ListenAddress"] == "10.250.0.18"
    assert options["PermitRootLogin"] == "prohibit-password"
    assert options["PasswordAuthentication"] == options["KbdInteractiveAuthentication"] == "no"
    assert options["UsePAM"] == "no"
    assert len(options) == len(lines)


def test_the_init_makes_the_lan_cubic_and_drops_offload_where_the_switch_needs_it(
    tmp_path: Path,
) -> None:
    route = (
        "ip route change 10.10.0.0/24 dev eth1 proto kernel scope link src 10.10.0.1 congctl cubic"
    )
    for offload in (True, False):
        init = built(tmp_path / str(offload), checksum_offload=offload) / "sbin/node-init"
        lines = init.read_text().splitlines()
        assert route in lines
        assert ("ethtool -K eth1 tx off > /dev/null" in lines) is not offload
        assert lines[-1] == "exec /usr/sbin/sshd -D -e -f /etc/ssh/sshd_config"
        assert os.access(init, os.X_OK)
        subprocess.run(("sh", "-n", str(init)), check=True, timeout=20)


def test_the_log_of_a_node_is_its_last_lines(tmp_path: Path) -> None:
    assert node_log(tmp_path) == "(it said nothing)"
    (tmp_path / "var/log").mkdir(parents=True)
    log = tmp_path / "var/log/node.log"
    log.write_bytes(b"one\ntwo\nthree \xff\n")
    assert node_log(tmp_path, lines=2) == "two\nthree \N{REPLACEMENT CHARACTER}"


def test_this_python_is_bound_but_never_twice() -> None:
    found = real_python_folders()
    assert all(not folder.is_relative_to("/usr") for folder in found)
    assert found == tuple(sorted(set(found)))
    for folder in found:
        assert not any(folder != other and folder.is_relative_to(other) for other in found)


def test_key_pairs_are_fresh_and_a_private_key_gives_its_public_one() -> None:
    one, two = new_key_pair(), new_key_pair()
    assert one.private != two.private
    assert one.public.startswith("ssh-ed25519 AAAA")
    assert KeyPair.of(one.private) == one


@pytest.mark.parametrize(
    ("nodes", "rate_bps", "datapath", "warned"),
    [
        (5, 100_000_000, "userspace", False),  # 500 mbit in all is safe
        (6, 100_000_000, "userspace", True),
        (2, None, "userspace", True),  # unlimited may ask for anything
        (50, 1_000_000_000, "kernel", False),
        (50, None, "bridge", False),
    ],
)
def test_the_userspace_switch_is_warned_of_when_the_links_may_ask_for_more(
    nodes: int, rate_bps: int | None, datapath: str, warned: bool
) -> None:
    scenario = generate.star(nodes, Shape(rate_bps=rate_bps))
    warning = overload_warning(scenario, datapath)  # type: ignore[arg-type]
    assert (warning is not None) is warned
    if warning:
        assert "500 mbit" in warning
        assert "virtual_bridge" in warning
