"""What root in a node can do to the host, and what the host's network can do to a node: nothing."""

from __future__ import annotations

import os
import shlex
import socket
import stat
import sys
from pathlib import Path

import paramiko
import pytest
from clusters import PROGRAMS, lan, said

from testbed.errors import CommandFailed, Unreachable
from testbed.host.base import Completed
from testbed.host.ssh import Connector, connected, new_key_pair
from testbed.provision.cluster import Cluster, provisioned

pytestmark = [pytest.mark.root, pytest.mark.needs(*PROGRAMS)]

# What nodes see of the host, from its own point of view.
BOUND = tuple(
    dict.fromkeys(str(Path(path).resolve()) for path in ("/usr", sys.base_prefix, sys.prefix))
)
# In a user namespace of its own a process has every capability, as nobody or as its root. (The
# node's root cannot become root there: mapping user 0 needs the capability setfcap.)
_SPACES = ("--mount", "--uts", "--ipc", "--net", "--cgroup")
AS_NOBODY = ("unshare", "--user", "--keep-caps", *_SPACES)
AS_USER = ("setpriv", "--reuid=1000", "--regid=1000", "--clear-groups")
AS_USER_ROOT = (*AS_USER, "unshare", "--user", "--map-root-user", *_SPACES)
WAYS = (
    pytest.param((), id="root"),
    pytest.param(AS_NOBODY, id="all-capabilities"),
    pytest.param((*AS_NOBODY, "--pid", "--fork", "--mount-proc"), id="own-proc"),
    pytest.param(AS_USER_ROOT, id="user-root"),
)


def attempt(cluster: Cluster, *argv: str) -> Completed:
    with cluster.session(cluster.node("n1")) as host:
        return host.run(argv, check=False)


def test_the_tricks_begin_with_every_capability(cluster: Cluster) -> None:
    for way in (AS_NOBODY, AS_USER_ROOT):
        done = attempt(cluster, *way, "mount", "-t", "tmpfs", "tmpfs", "/tmp")
        assert done.exit_status == 0, done.stderr


@pytest.mark.parametrize("path", BOUND)
@pytest.mark.parametrize("way", WAYS)
def test_root_in_a_node_cannot_write_what_is_bound(
    cluster: Cluster, path: str, way: tuple[str, ...]
) -> None:
    trick = """
    try() { "$@" 2>/dev/null; }
    write() { echo broken 2>/dev/null > "$1/testbed-was-here" && echo "written by $2"; }
    write "$1" nothing
    try mount -o remount,rw "$1"; write "$1" remount
    try mount -o remount,bind,rw "$1"; write "$1" "remount of the bind"
    mkdir -p /tmp/mnt
    try mount --bind "$1" /tmp/mnt && write /tmp/mnt bind
    try mount -o remount,bind,rw /tmp/mnt && write /tmp/mnt "remount of a bind of its own"
    try mount --rbind / /tmp/mnt && try mount -o remount,bind,rw "/tmp/mnt$1"
    write "/tmp/mnt$1" "a recursive bind"
    try mount -t ext4 "$(findmnt -no SOURCE "$1")" /tmp/mnt && write /tmp/mnt "the disk"
    try umount -l "$1"; write "$1" umount
    try touch "$1"; try chmod "$(stat -c %a "$1")" "$1" && echo "mode changed"
    exit 0
    """
    before = Path(path).stat()
    done = attempt(cluster, *way, "sh", "-c", trick, "trick", path)
    Path(path, "testbed-was-here").unlink(missing_ok=True)
    assert Path(path).stat().st_ctime_ns == before.st_ctime_ns
    assert done.stdout == ""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "trick",
    [
        "mknod /tmp/disk b 254 0",
        "mknod /tmp/memory c 1 1",
        "mount -t tmpfs tmpfs /mnt && cat /tmp/secret-of-the-host",
        "nsenter --target 1 --mount --net --pid true && cat /tmp/secret-of-the-host",
        "chroot /proc/1/root cat /tmp/secret-of-the-host",
        "cat /proc/*/root/tmp/secret-of-the-host",
        # Each would change nothing if it were let through: the value is the one that is there.
        "echo $(cat /proc/sys/kernel/core_pattern) > /proc/sys/kernel/core_pattern",
        "echo $(cat /proc/sys/kernel/panic) > /proc/sys/kernel/panic",
        "echo h > /proc/sysrq-trigger",
        "echo $(cat /sys/kernel/mm/ksm/run) > /sys/kernel/mm/ksm/run",
        "date --set now",
        "head -c 1 /dev/mem",
        "head -c 1 /dev/vda || head -c 1 /dev/sda",
        "insmod /nothing.ko",
        "kill -0 $HOST_PID && grep -a pytest /proc/$HOST_PID/cmdline",
    ],
)
def test_what_needs_the_hosts_root_is_refused(
    cluster: Cluster, trick: str, way: tuple[str, ...]
) -> None:
    secret = Path("/tmp/secret-of-the-host")
    secret.write_text("secret")
    try:
        line = f"HOST_PID={os.getpid()}; {trick}"
        done = attempt(cluster, *way, "sh", "-c", line)
    finally:
        secret.unlink()
    assert done.exit_status != 0
    assert "secret" not in done.stdout


def test_the_name_of_a_node_is_not_its_own_to_change(cluster: Cluster) -> None:
    for way in ((), ("unshare", "--user", "--keep-caps")):
        assert attempt(cluster, *way, "hostname", "evil").exit_status != 0
    assert said(cluster, "n1", "hostname") == "n1"


def test_a_chroot_is_no_way_out(cluster: Cluster) -> None:
    climb = (
        "import os; top = os.open('/', os.O_RDONLY); os.mkdir('/tmp/pit'); os.chroot('/tmp/pit');"
        "os.fchdir(top); [os.chdir('..') for _ in range(64)]; os.chroot('.');"
        "print(open('/etc/hostname').read())"
    )
    assert said(cluster, "n1", sys.executable, "-c", climb) == "n1"


def test_a_node_sees_only_its_own_processes(cluster: Cluster) -> None:
    seen = said(cluster, "n1", "sh", "-c", "cat /proc/[0-9]*/comm").split()
    assert set(seen) <= {"sshd", "sh", "cat"}


def test_of_roots_home_a_node_sees_the_way_to_python_at_most(cluster: Cluster) -> None:
    bound = [word for path in BOUND for word in ("-path", path, "-prune", "-o")]
    listed = said(cluster, "n1", "find", "/root", "-mindepth", "1", *bound, "-print").splitlines()
    for path in listed:
        way = any(Path(bound).is_relative_to(path) for bound in BOUND)
        assert way or path in ("/root/.ssh", "/root/.ssh/authorized_keys")
    theirs = said(cluster, "n1", "cat", "/root/.ssh/authorized_keys")
    assert theirs == cluster.key.public


def test_a_node_sees_nothing_else_of_the_hosts_files(cluster: Cluster) -> None:
    mounts = said(cluster, "n1", "cat", "/proc/self/mountinfo").splitlines()
    own_root = f"{cluster.ledger.folder.name}/nodes/n1/rootfs"
    for mount in mounts:
        words = mount.split()
        root, target, kind = words[3], words[4], words[words.index("-") + 1]
        if target == "/":
            assert root.endswith(own_root)
        elif kind not in ("proc", "sysfs", "tmpfs", "devpts", "mqueue"):
            assert target in BOUND
            assert "ro" in words[5].split(",")
    assert set(said(cluster, "n1", "ls", "/etc").split()) == {
        *("group", "hostname", "hosts", "nsswitch.conf", "passwd", "shadow", "ssh")
    }


def test_sshd_listens_on_the_management_address_alone(cluster: Cluster) -> None:
    for live in cluster.nodes:
        lines = said(cluster, live.name, "ss", "-Hltun").splitlines()
        assert [line.split()[4] for line in lines] == [f"{live.address}:22"]
    knock = "import socket; socket.create_connection(('n1', 22), 2)"
    with pytest.raises(CommandFailed, match="refused"):
        said(cluster, "n2", sys.executable, "-c", knock)


def test_passwords_are_refused_and_only_the_runs_own_key_is_taken(cluster: Cluster) -> None:
    live = cluster.node("n1")
    with paramiko.Transport(cluster.lab.connect(live.address, 22, 5.0)) as transport:
        transport.start_client(timeout=10)
        with pytest.raises(paramiko.BadAuthenticationType) as refused:
            transport.auth_password("root", "")
        assert refused.value.allowed_types == ["publickey"]
    for name, key in (("n1", new_key_pair()), ("n1", live.plan.host_key)):
        with (
            pytest.raises(Unreachable, match=r"n1 .*no SSH session"),
            connected(
                name,
                live.address,
                connect=cluster.lab.connect,
                key=key,
                host_key=live.plan.host_key.public,
            ),
        ):
            pass


def test_a_machine_with_another_host_key_is_refused(cluster: Cluster) -> None:
    first, second = cluster.nodes
    with (
        pytest.raises(Unreachable, match="another host key"),
        connected(
            "n1",
            second.address,
            connect=cluster.lab.connect,
            key=cluster.key,
            host_key=first.plan.host_key.public,
        ),
    ):
        pass


def test_keys_are_for_their_owner_alone_and_go_with_the_run(cluster: Cluster) -> None:
    with provisioned(lan(switch=cluster.scenario.lan.switch), cluster.ledger.backend) as up:
        folder = up.ledger.folder
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        keys = [folder / "key", *(live.plan.root / "etc/ssh/host_key" for live in up.nodes)]
        for path in keys:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
        up.ssh_command(up.nodes[0], ())
        assert stat.S_IMODE((folder / "known_hosts").stat().st_mode) == 0o600
        assert up.key.private != cluster.key.private
        privates = {path.read_text() for path in keys}
        assert len(privates) == len(keys)
    assert not folder.exists()


def test_the_hosts_own_network_does_not_reach_a_node(cluster: Cluster) -> None:
    def greeting(connect: Connector, address: str) -> bytes:
        # A gateway of the host's network may take any connection: what it says counts.
        try:
            with connect(address, 22, 1.0) as connection:
                connection.settimeout(0.5)
                return connection.recv(4)
        except OSError:
            return b""

    def from_the_host(address: str, port: int, timeout_s: float) -> socket.socket:
        return socket.create_connection((address, port), timeout_s)

    for live in cluster.nodes:
        assert greeting(cluster.lab.connect, live.address) == b"SSH-"
        for address in (live.address, str(live.node.address.ip)):
            assert greeting(from_the_host, address) == b""


def test_a_command_reaches_a_node_as_words_and_nothing_is_expanded(cluster: Cluster) -> None:
    words = ["a b", "$(id)", "`id`", "'", '"', "\n", "*", "~", "\\", "", ";id", "é"]
    script = "import sys; print(sys.argv[1:])"
    assert said(cluster, "n1", sys.executable, "-c", script, *words) == repr(words)
    command = shlex.join(cluster.ssh_command(cluster.nodes[0], ("printf", "%s|", *words)))
    assert "UserKnownHostsFile" in command
