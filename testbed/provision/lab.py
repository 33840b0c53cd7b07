"""The lab: a network, mount, PID and IPC namespace of its own that holds one run's whole cluster.

Switch, node ends, daemons and mounts live inside it, so that ending its first process ends them
all and the kernel takes the devices and mounts away: nothing can survive it, and nothing outside
can be touched. Only cgroup folders and the run's folder remain, and the ledger names both.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import subprocess
import threading
from pathlib import Path

from testbed.errors import MissingCapability, ProvisionError
from testbed.host.local import LocalHost
from testbed.provision.ledger import ProcessId

_CLONE_NEWNET = 0x40000000  # sched.h
_LIBC = ctypes.CDLL(None, use_errno=True)  # os.setns came with Python 3.12

# The first process: prepares the mounts, says its number outside, and then lives as long as its
# standard input, which the owner holds; told "stay" it lives on without it (`testbed up`).
# LXC reads /sys/class/net, so /sys must be this namespace's own, with the cgroups bound back.
# /run is fresh: locks, sockets and pid files of LXC and OVS never meet the host's.
# The shell waits for a child and not in `read`: it must bury orphans, such as a node that has
# ended, and SIGCHLD would end dash's `read` and with it the lab.
_FIRST_PROCESS = """\
set -eu
read -r outside rest < /proc/self/stat
mount --make-rprivate /
mount -t tmpfs -o mode=755 testbed-run /run
mount -t proc proc /proc
mkdir -p /run/lock /run/netns /run/openvswitch /run/cgroup
mount --rbind /sys/fs/cgroup /run/cgroup
mount -t sysfs sysfs /sys
mount --rbind /run/cgroup /sys/fs/cgroup
umount -l /run/cgroup
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then echo 0 > /sys/fs/cgroup/cgroup.procs; fi
ip link set lo up
if [ -e /proc/sys/net/ipv6 ]; then echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6; fi
echo "lab $outside"
word=$(head -n 1)
if [ "$word" = stay ]; then sleep infinity; fi
"""


class Lab:
    """A living lab. ``host`` runs commands inside it."""

    def __init__(self, first: ProcessId, owner: subprocess.Popen[str] | None = None) -> None:
        self.first = first
        self._owner = owner
        self.host = LocalHost(
            name="lab",
            prefix=(
                "nsenter",
                f"--target={first.pid}",
                "--net",
                "--mount",
                "--pid",
                "--ipc",
                "--",
            ),
        )

    def stay(self) -> None:
        """Let it outlive this command."""
        if self._owner is not None and self._owner.stdin is not None:
            self._owner.stdin.write("stay\n")
            self._owner.stdin.close()
            self._owner.stdin = None

    def connect(self, address: str, port: int, timeout_s: float) -> socket.socket:
        """Return a TCP connection opened from inside the lab.

        A socket stays in the network namespace it was made in; only the short-lived thread that
        makes it enters the lab.

        Raises:
            OSError: no connection in ``timeout_s``.
        """
        outcome: list[socket.socket | OSError] = []

        def enter_and_connect() -> None:
            try:
                namespace = os.open(f"/proc/{self.first.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
                try:
                    if _LIBC.setns(namespace, _CLONE_NEWNET) != 0:
                        raise OSError(ctypes.get_errno(), "setns into the lab's network failed")
                finally:
                    os.close(namespace)
                outcome.append(socket.create_connection((address, port), timeout=timeout_s))
            except OSError as error:
                outcome.append(error)

        thread = threading.Thread(target=enter_and_connect)
        thread.start()
        thread.join()
        if isinstance(outcome[0], OSError):
            raise outcome[0]
        return outcome[0]

    def close(self, *, timeout_s: float = 20.0) -> None:
        """End everything in the lab and wait until it is gone; may be called twice."""
        end_process(self.first, timeout_s=timeout_s)
        if self._owner is not None:
            self._owner.communicate()


def start_lab() -> Lab:
    """Make a lab that lives as long as this process, or until ``stay``.

    Raises:
        MissingCapability: namespaces are refused here.
    """
    process = subprocess.Popen(
        ("unshare", "--net", "--mount", "--pid", "--ipc", "--fork", "sh", "-c", _FIRST_PROCESS),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        cwd="/",
    )
    if process.stdout is None:
        raise ProvisionError("the lab's first process has no output")
    word, _, pid = process.stdout.readline().strip().partition(" ")
    if word != "lab":
        _, said = process.communicate()
        raise MissingCapability(
            f"cannot make a lab of namespaces: {said.strip() or 'unshare said nothing'}",
            mend="run it as root (sudo); `testbed doctor` says what else is missing",
        )
    return Lab(ProcessId.of(int(pid)), process)


def end_process(process: ProcessId, *, timeout_s: float) -> None:
    """Kill exactly this process and wait until it is gone; nothing happens if it is not there.

    Raises:
        ProvisionError: it is still there after ``timeout_s``.
    """
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        # The descriptor holds one process; only now is it certain which.
        if not process.alive():
            return
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        if not select.select([descriptor], [], [], timeout_s)[0]:
            raise ProvisionError(f"process {process.pid} did not end in {timeout_s:g} s")
    finally:
        os.close(descriptor)


def namespace_host(name: str, lab: Lab, pid: int) -> LocalHost:
    """Return a host whose commands run in a node's network, with the host's own programs.

    They are in the lab's PID namespace too: an iperf3 server must not outlive the lab.
    """
    network = f"--net=/proc/{pid}/ns/net"
    return LocalHost(
        name=name, prefix=("nsenter", f"--target={lab.first.pid}", "--pid", network, "--")
    )


def lab_of(first: ProcessId, folder: Path) -> Lab:
    """Return the lab that another command left standing.

    Raises:
        ProvisionError: it is gone.
    """
    if not first.alive():
        raise ProvisionError(f"the cluster of {folder} is gone; `testbed clean` removes its rest")
    return Lab(first)
