from __future__ import annotations

import os
import subprocess
import sys
import tracemalloc
from ipaddress import IPv4Interface
from pathlib import Path

import pytest
from hypothesis import given, settings
from lxml import etree
from scenario_strategies import scenarios

from testbed.errors import MissingCapability, ScenarioError
from testbed.scenario import generate, vnx
from testbed.scenario.document import MAX_BYTES
from testbed.scenario.lint import find_schema, lint
from testbed.scenario.model import Lan, Node, Scenario, Shape

TWO_NODES = Scenario(
    name="two",
    nodes=(
        Node(
            name="n1",
            address=IPv4Interface("10.10.0.1/24"),
            shape=Shape(rate_bps=10**7, delay_us=20_000, loss=0.01),
            cpu_cores=0.4,
        ),
        Node(name="n2", address=IPv4Interface("10.10.0.2/24"), memory_bytes=512 * 1024**2),
    ),
    lan=Lan(host_address=IPv4Interface("10.10.0.254/24"), switch="virtual_bridge"),
)


def test_a_scenario_renders_as_this_file() -> None:
    expected = Path(__file__).with_name("two_nodes.xml").read_bytes()
    assert vnx.render(TWO_NODES) == expected


@given(scenarios())
def test_every_scenario_survives_its_file(scenario: Scenario) -> None:
    content = vnx.render(scenario)
    assert vnx.parse(content, source="s.xml") == scenario
    assert vnx.render(vnx.parse(content, source="s.xml")) == content


@given(scenarios())
@settings(max_examples=50)
def test_every_rendered_file_is_free_of_errors_and_warnings(scenario: Scenario) -> None:
    findings = lint(vnx.render(scenario), source="s.xml")
    assert [finding for finding in findings if finding.severity != "note"] == []


@pytest.mark.skipif(
    find_schema() is None, reason="VNX's official schema was not found; set VNX_XSD"
)
@given(scenario=scenarios())
@settings(max_examples=50)
def test_every_rendered_file_is_valid_by_the_official_schema(scenario: Scenario) -> None:
    path = find_schema()
    assert path is not None
    schema = etree.XMLSchema(etree.parse(path))
    schema.assertValid(etree.fromstring(vnx.render(scenario)))


def test_the_largest_cluster_survives_its_file_within_the_size_that_is_read() -> None:
    scenario = generate.star(250, Shape(rate_bps=10**9), cpu_cores=0.01)
    content = vnx.render(scenario)
    assert len(content) < MAX_BYTES // 10
    assert vnx.parse(content, source="s.xml") == scenario


def test_the_order_of_hashes_does_not_reach_the_file() -> None:
    code = (
        "from testbed.scenario import generate, vnx; from testbed.scenario.model import Shape;"
        "import hashlib; print(hashlib.sha256("
        "vnx.render(generate.star(3, Shape(rate_bps=10**7)))).hexdigest())"
    )
    digests = {
        subprocess.run(
            (sys.executable, "-c", code),
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_the_file_names_its_own_schema_first() -> None:
    content = vnx.render(TWO_NODES)
    assert content.index(b'.xsd"') == content.index(b'/usr/share/xml/vnx/vnx-2.00.xsd"') + 27


def test_a_key_for_vnx_is_written_and_changes_nothing_else() -> None:
    content = vnx.render(TWO_NODES, ssh_key=Path("/root/.ssh/id.pub"))
    assert b"<ssh_key>/root/.ssh/id.pub</ssh_key>" in content
    assert vnx.parse(content, source="s.xml") == TWO_NODES
    assert not [f for f in lint(content, source="s.xml") if f.severity != "note"]


def test_memory_and_share_may_be_left_out() -> None:
    content = vnx.render(TWO_NODES).replace(b"<mem>512M</mem>", b"")
    assert vnx.parse(content, source="s.xml").nodes[1].memory_bytes == 2 * 1024**3
    assert vnx.parse(content, source="s.xml").nodes[1].cpu_cores is None


@pytest.mark.parametrize(
    "ipv4",
    [
        '<ipv4 mask="255.255.255.0">10.10.0.2</ipv4>',
        '<ipv4 mask="/24">10.10.0.2</ipv4>',
        "<ipv4>10.10.0.2</ipv4>",
        "<ipv4> 10.10.0.2/24 <!-- the second --></ipv4>",
    ],
)
def test_an_address_reads_alike_in_all_of_vnx_forms(ipv4: str) -> None:
    content = vnx.render(TWO_NODES).replace(b"<ipv4>10.10.0.2/24</ipv4>", ipv4.encode())
    assert vnx.parse(content, source="s.xml") == TWO_NODES


def test_all_errors_come_at_once_with_their_lines() -> None:
    content = vnx.render(TWO_NODES)
    for good, bad in (
        (b"10mbit,", b"10mbps,"),
        (b"<mem>512M</mem>", b"<mem>much</mem>"),
        (b"10.10.0.2/24", b"10.10.0.1/24"),
        (b'name="lan" mode', b'name="net_of_13_ch" mode'),
    ):
        assert good in content
        content = content.replace(good, bad, 1)
    with pytest.raises(ScenarioError) as caught:
        vnx.parse(content, source="some/s.xml")
    lines = [int(line.split(":")[1]) for line in str(caught.value).splitlines()]
    assert all(line.startswith("some/s.xml:") for line in str(caught.value).splitlines())
    assert set(lines) == {16, 20, 26, 27, 28, 32}


def test_a_file_of_100_mb_is_refused_without_being_read(
    tmp_path: Path,
) -> None:
    path = tmp_path / "large.xml"
    with path.open("wb") as file:
        file.write(b"<vnx>")
        file.truncate(100 * 1024**2)  # sparse: takes no room
    tracemalloc.start()
    try:
        with pytest.raises(ScenarioError, match="larger than 4 MB"):
            vnx.read(path)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 3 * MAX_BYTES
    with pytest.raises(ScenarioError, match="larger than 4 MB"):
        vnx.parse(b" " * (MAX_BYTES + 1), source="large.xml")


def test_what_is_no_plain_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.xml")
    for name in ("pipe.xml", "absent.xml", "."):
        with pytest.raises(ScenarioError):
            vnx.read(tmp_path / name)


def test_nothing_outside_the_file_is_read(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("root-of-all-evil")
    content = (
        f'<!DOCTYPE vnx [<!ENTITY e SYSTEM "{secret.as_uri()}">]>\n'
        "<vnx><global><scenario_name>&e;</scenario_name></global></vnx>"
    )
    with pytest.raises(ScenarioError, match="DTD") as caught:
        vnx.parse(content.encode(), source="s.xml")
    assert "root-of-all-evil" not in str(caught.value)


def test_an_encoding_cannot_hide_a_dtd() -> None:
    text = '<?xml version="1.0" encoding="utf-16"?><!DOCTYPE vnx []><vnx/>'
    with pytest.raises(ScenarioError, match="UTF-"):
        vnx.parse(text.encode("utf-16"), source="s.xml")
    hidden = '<?xml version="1.0" encoding="utf-7"?>\n+ADwAIQ-DOCTYPE vnx []+AD4-<vnx/>'
    with pytest.raises(ScenarioError, match="not XML"):
        vnx.parse(hidden.encode(), source="s.xml")


def test_missing_skeletons_are_named_with_both_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vnx, "__file__", str(tmp_path / "a" / "b" / "vnx.py"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(MissingCapability, match="vnx_templates"):
        vnx.render(TWO_NODES)


def test_installed_skeletons_are_found_under_the_prefix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = vnx.render(TWO_NODES)
    installed = tmp_path / "share" / "testbed" / "vnx_templates"
    installed.mkdir(parents=True)
    for skeleton in vnx.templates_folder().glob("*.xml"):
        (installed / skeleton.name).write_bytes(skeleton.read_bytes())
    monkeypatch.setattr(vnx, "__file__", str(tmp_path / "a" / "b" / "vnx.py"))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert vnx.templates_folder() == installed
    assert vnx.render(TWO_NODES) == expected
