"""Commands on scenario files: ``scenario`` writes one, ``lint`` reads some."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

if TYPE_CHECKING:
    from testbed.scenario.model import Scenario

FOLDER = Path("scenarios")

Value = TypeVar("Value")


def whole_number(given: str | int) -> int:
    """Return what was typed as a number; typer's own message leaves out what was given."""
    text = str(given)  # typer passes the default through here too
    if not (text.isascii() and text.removeprefix("-").isdecimal()):
        raise typer.BadParameter(f"{text!r}: expected a whole number, such as 4")
    return int(text)


# Shared with `run`. The make targets hand their variables over as TESTBED_..., as data.
Nodes = Annotated[
    int,
    typer.Option(
        "--nodes",
        "-n",
        envvar="TESTBED_NODES",
        parser=whole_number,
        metavar="N",
        help="How many nodes, 1 to 250.",
    ),
]
Bandwidth = Annotated[
    str,
    typer.Option(
        "--bandwidth",
        "--bw",
        envvar="TESTBED_BW",
        help="Of every link, both ways: 10mbit, 1gbit, ... or unlimited.",
    ),
]
Cpu = Annotated[
    str,
    typer.Option("--cpu", envvar="TESTBED_CPU", help="Cores per node, such as 0.4 or 40%."),
]
Memory = Annotated[
    str, typer.Option("--memory", "--mem", envvar="TESTBED_MEM", help="Per node: 2G, 512M.")
]
Delay = Annotated[
    str, typer.Option("--delay", envvar="TESTBED_DELAY", help="Of what a node sends: 20ms, 500us.")
]
Loss = Annotated[
    str, typer.Option("--loss", envvar="TESTBED_LOSS", help="Of what a node sends: 1%.")
]
SwitchKind = Annotated[
    str,
    typer.Option("--switch", envvar="TESTBED_SWITCH", help="openvswitch or virtual_bridge."),
]


def register(app: typer.Typer) -> None:
    """Add this module's commands."""
    app.command()(scenario)
    app.command()(lint)


def scenario(
    nodes: Nodes = 4,
    bandwidth: Bandwidth = "10mbit",
    cpu: Cpu = "",
    memory: Memory = "2G",
    delay: Delay = "",
    loss: Loss = "",
    switch: SwitchKind = "openvswitch",
    name: Annotated[
        str, typer.Option("--name", envvar="TESTBED_NAME", help="Instead of lan-4n-10mbit.")
    ] = "",
    force: Annotated[
        bool,
        typer.Option("--force", envvar="TESTBED_FORCE", help="Overwrite a file edited by hand."),
    ] = False,
    folder: Annotated[Path, typer.Option(help="Where to write it.")] = FOLDER,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print it, write nothing.")] = False,
) -> None:
    """Write a cluster as a VNX 2.00 XML file and print its path.

    Example:  testbed scenario --nodes 4 --bw 10mbit
    Example:  testbed scenario -n 8 --bw 100mbit --cpu 20% --delay 5ms --switch virtual_bridge
    """
    from testbed.scenario import generate, vnx
    from testbed.scenario.lint import lint as findings_of

    made = described(nodes, bandwidth, cpu, memory, delay, loss, switch, name)
    content = vnx.render(made)
    for finding in findings_of(content, source=f"{made.name}.xml"):
        if finding.severity != "note":
            typer.echo(finding.describe(f"{made.name}.xml"), err=True)
    if dry_run:
        typer.echo(content.decode(), nl=False)
        return
    typer.echo(generate.write(made, folder, force=force))


def described(
    nodes: int,
    bandwidth: str,
    cpu: str,
    memory: str,
    delay: str,
    loss: str,
    switch: str,
    name: str = "",
) -> Scenario:
    """Return the scenario that was typed; all that is wrong is said at once.

    Raises:
        InputError: lists every value that cannot be read.
    """
    from testbed import units
    from testbed.errors import InputError
    from testbed.scenario import generate
    from testbed.scenario.model import MAX_NODES, SWITCHES, Shape

    faults: list[str] = []

    def read(parse: Callable[[str], Value], text: str, otherwise: Value) -> Value:
        try:
            return parse(text) if text else otherwise
        except InputError as error:
            faults.append(str(error))
            return otherwise

    rate_bps = read(units.parse_rate, bandwidth, None)
    delay_us = read(units.parse_delay, delay, 0)
    loss_share = read(units.parse_loss, loss, 0.0)
    memory_bytes = read(units.parse_memory, memory, 0)
    cpu_cores = read(units.parse_cpu, cpu, None)
    kind = next((known for known in SWITCHES if known == switch), None)
    if kind is None:
        faults.append(f"switch {switch!r}: expected {' or '.join(SWITCHES)}")
    if not 1 <= nodes <= MAX_NODES:
        faults.append(f"nodes {nodes}: expected 1 to {MAX_NODES}")
    if faults or kind is None:
        raise InputError("\n       ".join(faults))
    return generate.star(
        nodes,
        Shape(rate_bps=rate_bps, delay_us=delay_us, loss=loss_share),
        memory_bytes=memory_bytes,
        cpu_cores=cpu_cores,
        switch=kind,
        name=name or None,
    )


def lint(
    files: Annotated[list[Path], typer.Argument(help="VNX XML files.", metavar="FILE...")],
    on_vnx_host: Annotated[
        bool,
        typer.Option(
            "--on-vnx-host", help="Also what depends on the VNX host: root filesystems, keys."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Findings as JSON.")] = False,
) -> None:
    """Say everything that is wrong with scenario files, each with line and what to write instead.

    Exit status 1 if any has an error; warnings and notes do not count.

    Example:  testbed lint scenarios/lan-4n-10mbit.xml
    """
    from dataclasses import asdict

    from testbed.scenario import vnx
    from testbed.scenario.lint import lint as findings_of

    found = [
        (file, finding)
        for file in files
        for finding in findings_of(vnx.read_bytes(file), source=str(file), on_vnx_host=on_vnx_host)
    ]
    if as_json:
        typer.echo(json.dumps([{"file": str(file)} | asdict(one) for file, one in found], indent=1))
    else:
        for file, one in found:
            typer.echo(one.describe(str(file)))
    errors = sum(one.severity == "error" for _, one in found)
    warnings = sum(one.severity == "warning" for _, one in found)
    typer.echo(f"{len(files)} files: {errors} errors, {warnings} warnings", err=True)
    if errors:
        raise typer.Exit(1)
