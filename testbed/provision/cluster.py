"""From a scenario to a live cluster whose nodes answer SSH, and back to nothing."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import BinaryIO

from testbed.errors import ProvisionError
from testbed.files import write_whole
from testbed.host.group import in_parallel
from testbed.host.local import LocalHost
from testbed.host.ssh import KeyPair, SshHost, connected, new_key_pair
from testbed.network.iperf3 import Peer
from testbed.network.shape import Endpoint, apply_shapes
from testbed.network.verify import Link
from testbed.provision import leftovers, lxc, netns
from testbed.provision.cgroup import Controllers, NodeCgroup, controllers, run_folders
from testbed.provision.lab import Lab, lab_of, namespace_host, start_lab
from testbed.provision.ledger import Ledger, ledgers, new_ledger
from testbed.provision.skeleton import NodePlan, build, node_log
from testbed.provision.switch import attach, start_switch
from testbed.scenario import vnx
from testbed.scenario.model import Node, Scenario

BACKENDS: dict[str, ModuleType] = {"lxc": lxc, "netns": netns}
_SSH_PORT = 22


@dataclass(frozen=True, kw_only=True)
class LiveNode:
    """A running node. ``inside`` runs the host's programs in the node's network namespace."""

    node: Node
    plan: NodePlan
    inside: LocalHost
    cgroup: NodeCgroup

    @property
    def name(self) -> str:
        """The node's name."""
        return self.node.name

    @property
    def address(self) -> str:
        """Its management address, for SSH from the lab."""
        return str(self.plan.management.ip)

    @property
    def log(self) -> str:
        """The last lines of its init and sshd."""
        return node_log(self.plan.root, lines=40)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """A live cluster. ``provisioned`` makes and ends one; ``attached`` finds one that is up."""

    scenario: Scenario
    ledger: Ledger
    lab: Lab
    nodes: tuple[LiveNode, ...]
    key: KeyPair
    switch_s: float = 0.0  # what starting the switch took, of the whole bring-up
    owner: BinaryIO | None = None  # the locked file that owns the run, while this process does

    def close(self) -> None:
        """Remove every trace of it; may be called twice."""
        leftovers.remove(self.ledger)
        self.lab.close()
        if self.owner is not None:
            self.owner.close()

    @contextmanager
    def sessions(self) -> Iterator[tuple[SshHost, ...]]:
        """Give an SSH session to every node, in their order."""
        with ExitStack() as stack:

            def session(live: LiveNode) -> SshHost:
                return stack.enter_context(self.session(live))

            yield tuple(in_parallel(session, self.nodes))

    @contextmanager
    def session(self, live: LiveNode) -> Iterator[SshHost]:
        """Give an SSH session to one node."""
        with connected(
            live.name,
            live.address,
            connect=self.lab.connect,
            key=self.key,
            host_key=live.plan.host_key.public,
        ) as host:
            yield host

    def node(self, name: str) -> LiveNode:
        """Return a node by its name.

        Raises:
            ProvisionError: there is none of this name.
        """
        for live in self.nodes:
            if live.name == name:
                return live
        names = ", ".join(live.name for live in self.nodes)
        raise ProvisionError(f"no node {name!r} in {self.scenario.name}: it has {names}")

    def ssh_command(self, live: LiveNode, command: Sequence[str]) -> tuple[str, ...]:
        """Return the command that opens a shell on a node, or runs a command there."""
        known = self.ledger.folder / "known_hosts"
        write_whole(known, f"{live.address} {live.plan.host_key.public}\n".encode(), mode=0o600)
        options = (
            f"UserKnownHostsFile={known}",
            "StrictHostKeyChecking=yes",
            "IdentitiesOnly=yes",
            "PasswordAuthentication=no",
            "LogLevel=ERROR",
        )
        return (
            *self.lab.host.prefix,
            "ssh",
            "-F",
            "none",
            "-i",
            str(self.ledger.folder / "key"),
            *(word for option in options for word in ("-o", option)),
            f"root@{live.address}",
            # As ssh does, one word is a line for the node's shell; several are a program's argv.
            *(["--", command[0] if len(command) == 1 else shlex.join(command)] if command else []),
        )

    def links(self) -> tuple[Link, ...]:
        """Return every node's link: who measures over it, its shape, and its switch's end."""
        return tuple(
            Link(
                peer=Peer(
                    name=live.name,
                    host=live.inside,
                    address=str(live.node.address.ip),
                    device=live.node.device,
                ),
                shape=live.node.shape,
                switch_end=Endpoint(host=self.lab.host, device=live.plan.lan_device),
            )
            for live in self.nodes
        )

    def shape(self) -> None:
        """Impose every node's shape on its link, in both directions.

        Raises:
            ShapingError: a queue was refused.
            MissingCapability: the kernel lacks netem, and a shape needs it.
        """
        apply_shapes([end for link in self.links() for end in link.ends()])


def bring_up(scenario: Scenario, backend: str, *, detached: bool = False) -> Cluster:
    """Return a live cluster whose nodes all answer SSH; its links are not yet shaped.

    It lives until ``close``, or as long as this process; ``detached`` ones stay.

    Raises:
        ProvisionError: it did not come up; what was made is gone again.
        MissingCapability: the machine lacks what the backend or the switch needs.
    """
    where = controllers()
    ledger, owner = new_ledger(scenario=scenario.name, backend=backend, detached=detached)
    lab: Lab | None = None
    try:
        ledger = replace(ledger, cgroups=run_folders(ledger.tag)).save()
        write_whole(ledger.folder / "scenario.xml", vnx.render(scenario), mode=0o600)
        lab = start_lab()
        ledger = replace(ledger, lab=lab.first).save()
        cluster = _start_nodes(scenario, ledger, lab, where)
        if not detached:
            return replace(cluster, owner=owner)
        up = replace(cluster.ledger, state="up").save()
        lab.stay()
    except BaseException:
        leftovers.remove(ledger)
        if lab is not None:
            lab.close()
        owner.close()
        raise
    owner.close()
    return replace(cluster, ledger=up)


@contextmanager
def provisioned(scenario: Scenario, backend: str) -> Iterator[Cluster]:
    """Give a live cluster and remove every trace of it at the end, however it ends."""
    cluster = bring_up(scenario, backend)
    try:
        yield cluster
    finally:
        cluster.close()


def attached(name: str | None = None) -> Cluster:
    """Return a cluster that ``testbed up`` left running: by name or tag, or the only one.

    Raises:
        ProvisionError: there is none of that name, or several.
    """
    running = [ledger for ledger in ledgers() if ledger.detached and ledger.lab_alive()]
    found = [led for led in running if name in (None, led.scenario, led.tag)]
    if len(found) != 1:
        known = ", ".join(f"{led.scenario} ({led.tag})" for led in running) or "none"
        asked = f"no single cluster {name!r}" if name else "which cluster?"
        raise ProvisionError(
            f"{asked} Running: {known}. Start one with `testbed up FILE`, or name one of these."
        )
    ledger = found[0]
    if ledger.lab is None:
        raise ProvisionError(f"{ledger.scenario}: its lab was never recorded")
    scenario = vnx.read(ledger.folder / "scenario.xml")
    lab = lab_of(ledger.lab, ledger.folder)
    plans = [_plan(scenario, ledger, index, None) for index in range(len(scenario.nodes))]
    key = _read_key(ledger.folder / "key")
    return _live(scenario, ledger, lab, plans, key, controllers())


def _start_nodes(scenario: Scenario, ledger: Ledger, lab: Lab, where: Controllers) -> Cluster:
    key = new_key_pair()
    write_whole(ledger.folder / "key", key.private.encode(), mode=0o600)
    began = time.perf_counter()
    datapath = start_switch(lab, scenario.lan)
    switch_s = time.perf_counter() - began
    ledger = replace(ledger, datapath=datapath).save()
    plans = [_plan(scenario, ledger, index, new_key_pair()) for index in range(len(scenario.nodes))]
    for plan in plans:
        build(
            plan,
            scenario,
            authorized_key=key.public,
            checksum_offload=datapath != "userspace",
        )
    cgroups = [NodeCgroup(controllers=where, path=plan.cgroup) for plan in plans]
    BACKENDS[ledger.backend].start(lab, plans, cgroups)
    attach(lab, scenario, plans, datapath)
    wait_for_ssh(lab, plans)
    return replace(_live(scenario, ledger, lab, plans, key, where), switch_s=switch_s)


def _live(
    scenario: Scenario,
    ledger: Ledger,
    lab: Lab,
    plans: Sequence[NodePlan],
    key: KeyPair,
    where: Controllers,
) -> Cluster:
    nodes = []
    for plan in plans:
        cgroup = NodeCgroup(controllers=where, path=plan.cgroup)
        inside = namespace_host(plan.node.name, lab, cgroup.first_process())
        nodes.append(LiveNode(node=plan.node, plan=plan, inside=inside, cgroup=cgroup))
    return Cluster(scenario=scenario, ledger=ledger, lab=lab, nodes=tuple(nodes), key=key)


def _plan(scenario: Scenario, ledger: Ledger, index: int, host_key: KeyPair | None) -> NodePlan:
    node = scenario.nodes[index]
    root = ledger.folder / "nodes" / node.name / "rootfs"
    return NodePlan(
        node=node,
        index=index,
        root=root,
        management=scenario.management_address(index),
        management_mac=scenario.mac(index, 0),
        lan_mac=scenario.mac(index, node.interface_id),
        host_key=host_key or _read_key(root / "etc/ssh/host_key"),
        cgroup=f"testbed-{ledger.tag}/{node.name}",
    )


def _read_key(path: Path) -> KeyPair:
    return KeyPair.of(path.read_text())


def wait_for_ssh(lab: Lab, plans: Sequence[NodePlan], *, timeout_s: float = 30.0) -> None:
    """Return when every node has sent its SSH banner.

    Raises:
        ProvisionError: one did not in ``timeout_s``; says what the node's log says.
    """
    deadline = time.monotonic() + timeout_s

    def wait(plan: NodePlan) -> None:
        while True:
            try:
                with lab.connect(str(plan.management.ip), _SSH_PORT, 0.2) as connection:
                    connection.settimeout(2.0)
                    if connection.recv(4) == b"SSH-":
                        return
            except OSError as error:
                problem = error
            else:
                problem = OSError("it closed the connection")
            if time.monotonic() > deadline:
                raise ProvisionError(
                    f"{plan.node.name}: no SSH after {timeout_s:g} s ({problem}); its log ends:\n"
                    f"{node_log(plan.root)}"
                )
            time.sleep(0.01)

    in_parallel(wait, plans)
