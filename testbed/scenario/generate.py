"""From the few numbers that a user types to a whole scenario, and to its file."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Interface
from pathlib import Path

from testbed import units
from testbed.errors import ScenarioError
from testbed.files import write_whole
from testbed.scenario import vnx
from testbed.scenario.model import (
    DEFAULT_MEMORY_BYTES,
    MAX_NODES,
    Lan,
    Node,
    Scenario,
    Shape,
    Switch,
)


def star(
    nodes: int,
    shape: Shape | Sequence[Shape],
    *,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    cpu_cores: float | Sequence[float] | None = None,
    switch: Switch = "openvswitch",
    name: str | None = None,
) -> Scenario:
    """Return n1..nN at 10.10.0.1..N/24 on one switch; one shape and CPU share, or one per node.

    The default name tells nodes and link: ``lan-4n-10mbit``, ``lan-4n-10mbit-20ms-1pct``,
    ``lan-4n-unlimited``, and ``lan-4n-mixed`` where links differ.

    Raises:
        ScenarioError: not 1 to 250 nodes, or a list that has not one value per node.
    """
    if not 1 <= nodes <= MAX_NODES:
        raise ScenarioError(f"{nodes} nodes: expected 1 to {MAX_NODES}")
    shapes = [shape] * nodes if isinstance(shape, Shape) else list(shape)
    shares: list[float | None] = [None] * nodes
    if isinstance(cpu_cores, Sequence):
        shares = list(cpu_cores)
    elif cpu_cores is not None:
        shares = [cpu_cores] * nodes
    for what, given in (("links", len(shapes)), ("CPU shares", len(shares))):
        if given != nodes:
            raise ScenarioError(f"{given} {what} for {nodes} nodes: expected one, or one per node")
    return Scenario(
        name=name or default_name(shapes),
        nodes=tuple(
            Node(
                name=f"n{number}",
                address=IPv4Interface(f"10.10.0.{number}/24"),
                shape=its_shape,
                memory_bytes=memory_bytes,
                cpu_cores=share,
            )
            for number, (its_shape, share) in enumerate(zip(shapes, shares, strict=True), start=1)
        ),
        lan=Lan(switch=switch),
    )


def default_name(shapes: Sequence[Shape]) -> str:
    """Return a scenario's name for these links, such as ``lan-4n-10mbit``."""
    words = [f"lan-{len(shapes)}n"]
    if any(shape != shapes[0] for shape in shapes):
        return "-".join([*words, "mixed"])
    shape = shapes[0]
    words.append(units.format_rate(shape.rate_bps))
    if shape.delay_us:
        words.append(units.format_delay(shape.delay_us))
    if shape.loss:
        words.append(units.format_loss(shape.loss).replace("%", "pct"))
    return "-".join(words)


def write(scenario: Scenario, folder: Path, *, force: bool = False) -> Path:
    """Write the scenario to ``folder/NAME.xml`` and return that path.

    A file there that was edited or written by hand is kept, unless ``force``.

    Raises:
        ScenarioError: such a file is there, or the place cannot be written.
    """
    content = vnx.render(scenario)
    path = folder / f"{scenario.name}.xml"
    if path.exists() and not force:
        present = vnx.read_bytes(path)
        if present == content:
            return path
        if not vnx.untouched(present):
            raise ScenarioError(
                f"{path} was edited by hand: keep it and give another NAME=, "
                "or overwrite it with FORCE=1"
            )
    try:
        write_whole(path, content)
    except OSError as error:
        reason = error.strerror or str(error)
        raise ScenarioError(f"{path} cannot be written: {reason}") from error
    return path
