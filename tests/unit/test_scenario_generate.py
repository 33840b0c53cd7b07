from __future__ import annotations

from pathlib import Path

import pytest

from testbed.errors import ScenarioError
from testbed.scenario import generate, vnx
from testbed.scenario.model import Shape

TEN_MBIT = Shape(rate_bps=10**7)


@pytest.mark.parametrize(
    ("shape", "name"),
    [
        (TEN_MBIT, "lan-4n-10mbit"),
        (Shape(rate_bps=2_500_000), "lan-4n-2500kbit"),
        (Shape(), "lan-4n-unlimited"),
        (Shape(rate_bps=10**7, delay_us=20_000, loss=0.01), "lan-4n-10mbit-20ms-1pct"),
        (Shape(loss=0.005), "lan-4n-unlimited-0.5pct"),
    ],
)
def test_the_name_tells_nodes_and_link(shape: Shape, name: str) -> None:
    assert generate.star(4, shape).name == name


def test_nodes_are_numbered_from_one_in_name_and_address() -> None:
    scenario = generate.star(250, TEN_MBIT)
    assert [node.name for node in scenario.nodes[:2]] == ["n1", "n2"]
    assert str(scenario.nodes[249].address) == "10.10.0.250/24"
    assert {node.device for node in scenario.nodes} == {"eth1"}


@pytest.mark.parametrize("nodes", [0, -1, 251])
def test_a_number_of_nodes_that_cannot_be_is_refused(nodes: int) -> None:
    with pytest.raises(ScenarioError, match="expected 1 to 250"):
        generate.star(nodes, TEN_MBIT)


def test_nodes_may_differ_on_purpose() -> None:
    shapes = [TEN_MBIT, TEN_MBIT, Shape(rate_bps=10**6)]
    scenario = generate.star(3, shapes, cpu_cores=[0.4, 0.4, 0.1])
    assert [node.cpu_cores for node in scenario.nodes] == [0.4, 0.4, 0.1]
    assert [node.shape for node in scenario.nodes] == shapes
    assert scenario.name == "lan-3n-mixed"


def test_a_list_with_not_one_value_per_node_is_refused() -> None:
    with pytest.raises(ScenarioError, match="2 CPU shares for 3 nodes"):
        generate.star(3, TEN_MBIT, cpu_cores=[0.4, 0.4])
    with pytest.raises(ScenarioError, match="1 links for 2 nodes"):
        generate.star(2, [TEN_MBIT])


def test_a_scenario_is_written_and_read_back(tmp_path: Path) -> None:
    scenario = generate.star(4, TEN_MBIT, cpu_cores=0.4)
    path = generate.write(scenario, tmp_path / "scenarios")
    assert path == tmp_path / "scenarios" / "lan-4n-10mbit.xml"
    assert vnx.read(path) == scenario


def test_a_generated_file_is_replaced_by_a_newer_one(tmp_path: Path) -> None:
    path = generate.write(generate.star(4, TEN_MBIT, cpu_cores=0.4), tmp_path)
    newer = generate.star(4, TEN_MBIT, cpu_cores=0.2)
    assert generate.write(newer, tmp_path) == path
    assert vnx.read(path) == newer


@pytest.mark.parametrize(
    "edit",
    [
        lambda content: content.replace(b"10mbit", b"20mbit"),
        lambda content: content + b"<!-- mine -->\n",
        lambda content: b"<vnx/>\n",
        lambda content: b"",
        lambda content: content.replace(b"\n", b"\r\n"),
    ],
)
def test_a_file_edited_by_hand_is_kept_unless_forced(tmp_path: Path, edit: object) -> None:
    assert callable(edit)
    scenario = generate.star(4, TEN_MBIT)
    path = generate.write(scenario, tmp_path)
    edited = edit(path.read_bytes())
    path.write_bytes(edited)
    with pytest.raises(ScenarioError, match=r"edited by hand.*FORCE=1"):
        generate.write(scenario, tmp_path)
    assert path.read_bytes() == edited
    generate.write(scenario, tmp_path, force=True)
    assert vnx.read(path) == scenario


def test_writing_again_changes_nothing(tmp_path: Path) -> None:
    path = generate.write(generate.star(4, TEN_MBIT), tmp_path)
    before = path.stat().st_mtime_ns
    generate.write(generate.star(4, TEN_MBIT), tmp_path)
    assert path.stat().st_mtime_ns == before


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ScenarioError, match="cannot be written"):
        generate.write(generate.star(1, TEN_MBIT), tmp_path / "file" / "below")
