"""Commands on live clusters, from ``up`` to ``down``, and on the machine that they live on."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from testbed.network.verdict import Verdict
    from testbed.provision.cluster import Cluster

AsJson = Annotated[bool, typer.Option("--json", help="As JSON on stdout.")]
BackendName = Annotated[
    str, typer.Option("--backend", "-b", envvar="TESTBED_BACKEND", help="lxc or netns.")
]
Name = Annotated[str, typer.Argument(help="Scenario file, its name or tag; may be left out.")]
Of = Annotated[str, typer.Option("--cluster", "-c", help="Which one, if several are up.")]


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    for command in (up, status, verify, ssh, logs, down, clean, doctor):
        app.command()(command)


def up(
    file: Annotated[Path, typer.Argument(help="VNX XML file.")],
    backend: BackendName = "lxc",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check all, say what would be made, make nothing.")
    ] = False,
) -> None:
    """Start the nodes of a scenario file, with their links limited; they stay until ``down``.

    Example:  testbed up scenarios/lan-4n-10mbit.xml
    """
    import time

    from testbed.cli.screen import say
    from testbed.experiment.preflight import check_cluster
    from testbed.provision import leftovers
    from testbed.provision.cluster import bring_up
    from testbed.scenario import vnx
    from testbed.units import format_rate

    scenario = vnx.read(file)
    check_cluster(scenario, backend, say)
    if dry_run:
        for node in scenario.nodes:
            rate = format_rate(node.shape.rate_bps)
            typer.echo(f"{node.name}  {node.address}  {rate} both ways  {backend}")
        return
    leftovers.clean()
    began = time.perf_counter()
    cluster = bring_up(scenario, backend, detached=True)
    try:
        cluster.shape()
    except BaseException:
        cluster.close()
        raise
    spent_s = time.perf_counter() - began
    say(
        f"{len(cluster.nodes)} nodes up in {spent_s:.2f} s on {scenario.lan.switch} "
        f"({cluster.ledger.datapath}): testbed ssh {cluster.nodes[0].name}, testbed verify, "
        "testbed down"
    )
    typer.echo(cluster.ledger.tag)


def status(as_json: AsJson = False) -> None:
    """Show the clusters that are up, and what an interrupted run left.

    Example:  testbed status
    """
    from testbed.cli.screen import show_table
    from testbed.provision.cluster import attached
    from testbed.provision.ledger import ledgers
    from testbed.units import format_rate

    found: list[dict[str, Any]] = []
    for ledger in ledgers():
        known = {"cluster": ledger.scenario, "tag": ledger.tag, "backend": ledger.backend}
        if ledger.dead():
            found.append(known | {"state": "left over: testbed clean"})
        elif not ledger.detached:
            found.append(known | {"state": "in use by a running trial"})
        else:
            cluster = attached(ledger.tag)
            for live in cluster.nodes:
                found.append(
                    known
                    | {
                        "state": "up",
                        "node": live.name,
                        "ssh": live.address,
                        "lan": str(live.node.address),
                        "rate": format_rate(live.node.shape.rate_bps),
                        "switch": f"{cluster.scenario.lan.switch} ({ledger.datapath})",
                    }
                )
    if as_json:
        typer.echo(json.dumps(found, indent=1))
    elif not found:
        typer.echo("no cluster is up, and nothing is left over")
    else:
        columns = ("cluster", "tag", "state", "node", "ssh", "lan", "rate", "backend", "switch")
        show_table(columns, [[row.get(column, "") for column in columns] for row in found])


def verify(name: Name = "", as_json: AsJson = False) -> None:
    """Measure every link of a live cluster with iperf3, read its queues back, give the verdict.

    Exit status 1 if a link is outside its tolerance.

    Example:  testbed up scenarios/lan-4n-10mbit.xml && testbed verify scenarios/lan-4n-10mbit.xml
    """
    from testbed.cli.screen import say
    from testbed.network.verify import verify as measure

    cluster = _attached(name)
    if len(cluster.nodes) > 1:
        say(f"measuring {len(cluster.nodes)} links: pairs both ways, then all at once")
    verdict = measure(cluster.links(), when="before")
    if as_json:
        typer.echo(json.dumps(verdict.to_json(), indent=1))
    else:
        _show_verdict(verdict)
    if verdict.status == "fail":
        raise typer.Exit(1)


def _show_verdict(verdict: Verdict) -> None:
    from testbed.cli.screen import show_table

    rows = []
    for link in verdict.links:
        measured = "-" if link.measured_bps is None else f"{link.measured_bps / 1e6:.3f}"
        expected = "open" if link.expected_bps is None else f"{link.expected_bps / 1e6:.3f}"
        deviation = "" if link.deviation is None else f"{100 * link.deviation:+.1f} %"
        word = "ok" if link.ok else "OUTSIDE"
        again = " (again)" if link.attempt > 1 else ""
        rows.append(
            [
                f"{link.test}{again}",
                f"{link.sender} -> {link.receiver}",
                measured,
                expected,
                deviation,
                "" if link.retransmits is None else str(link.retransmits),
                word,
            ]
        )
    show_table(("test", "link", "Mbit/s", "expected", "deviation", "retransmits", "verdict"), rows)
    for reason in verdict.reasons:
        typer.echo(reason)
    typer.echo(f"verdict: {verdict.status}")


def ssh(
    node: Annotated[str, typer.Argument(help="Name of a node, such as n1.")],
    command: Annotated[
        list[str] | None, typer.Argument(help="A command, after --; a shell without.")
    ] = None,
    cluster: Of = "",
) -> None:
    """Open a shell on a node, or run a command there.

    Example:  testbed ssh n1
    Example:  testbed ssh n1 -- tc -s qdisc show dev eth1
    """
    live = _attached(cluster)
    argv = live.ssh_command(live.node(node), command or [])
    os.execvp(argv[0], argv)  # noqa: S606 - the ssh client takes our place


def logs(
    node: Annotated[str, typer.Argument(help="Name of a node, such as n1.")],
    cluster: Of = "",
) -> None:
    """Show what a node's init and sshd said.

    Logs of trials are in results/SWEEP/logs/TRIAL/NODE.log.

    Example:  testbed logs n1
    """
    typer.echo(_attached(cluster).node(node).log)


def down(
    name: Name = "",
    everything: Annotated[bool, typer.Option("--all", help="All that ``up`` started.")] = False,
) -> None:
    """Stop a cluster that ``up`` started and remove all of it.

    Example:  testbed down
    Example:  testbed down lan-4n-10mbit
    """
    from testbed.experiment.preflight import require_root
    from testbed.provision import leftovers
    from testbed.provision.ledger import ledgers

    require_root()
    found = (
        [ledger for ledger in ledgers() if ledger.detached and ledger.lab_alive()]
        if everything
        else [_attached(name).ledger]
    )
    for ledger in found:
        leftovers.remove(ledger)
        typer.echo(f"removed {ledger.scenario} ({ledger.tag})")


def clean() -> None:
    """Remove what interrupted runs left, and nothing else.

    Clusters that ``up`` started and that still stand are kept: ``testbed down --all``.

    Example:  testbed clean
    """
    from testbed.experiment.preflight import require_root
    from testbed.provision import leftovers

    require_root()
    removed = leftovers.clean()
    for ledger in removed:
        typer.echo(f"removed what {ledger.scenario} ({ledger.tag}) left")
    if not removed:
        typer.echo("nothing was left over")


def doctor(as_json: AsJson = False) -> None:
    """Say what this machine can and cannot do, with the command that mends each gap.

    Example:  testbed doctor
    """
    from dataclasses import asdict

    from testbed.cli.screen import show_table
    from testbed.host.capabilities import probe
    from testbed.host.local import LocalHost

    found = probe(LocalHost())
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in found], indent=1))
        return
    show_table(
        ("", "capability", "found", "needed for"),
        [["yes" if one.found else "NO", one.name, one.detail, one.needed_for] for one in found],
    )
    for one in found:
        if not one.found:
            typer.echo(f"{one.name}: {one.mend}")


def _attached(name: str) -> Cluster:
    """Return the live cluster of a scenario file, name or tag; the only one for an empty name."""
    from testbed.experiment.preflight import require_root
    from testbed.provision.cluster import attached
    from testbed.scenario import vnx

    require_root()
    if Path(name).suffix == ".xml":
        name = vnx.read(Path(name)).name
    return attached(name or None)
