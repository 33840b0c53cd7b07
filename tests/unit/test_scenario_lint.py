from __future__ import annotations

import contextlib
import re
from pathlib import Path
from xml.sax.saxutils import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import ScenarioError
from testbed.scenario import lint as linting
from testbed.scenario import vnx
from testbed.scenario.document import Finding
from testbed.scenario.lint import find_schema, lint

FAULTS = Path(__file__).with_name("faults")
GOOD = (FAULTS / "good.xml").read_text()

# Each file has the one fault that it is named for: "line severity rule" of all but notes.
EXPECTED = {
    "251-vms": "260 error vm-count",
    "65-vms-in-a-management-24": "7 error management-room",
    "address-dhcp": "13 error ipv4",
    "address-mask-bare-24": "13 error ipv4",
    "address-of-broadcast": "13 error address",
    "address-of-the-network": "13 error address",
    "address-with-a-bad-octet": "13 error ipv4",
    "address-with-two-masks": "13 error ipv4",
    "arch-arm": "10 error arch",
    "automac-offset-256": "6 error automac",
    "bad-mac": "13 error not-realised, 13 error mac",
    "bandwidth-in-a-lan": "9 error not-realised, 9 error net-bw",
    "billion-laughs": "2 error dtd",
    "bw-a-command": "13 error bw",
    "bw-a-substitution": "13 error bw",
    "bw-burst-without-unit": "13 error bw",
    "bw-bytes-per-second": "13 error bw",
    "bw-capital": "13 error bw",
    "bw-in-words": "13 error bw",
    "bw-no-latency": "13 error bw",
    "bw-one-field": "13 error bw",
    "bw-two-fields": "13 error bw",
    "bw-unlimited": "13 error bw",
    "bw-without-unit": "13 error bw",
    "console-id-twice": "14 error id",
    "cut-off": "16 error not-xml",
    "delay-without-unit": "13 error delay",
    "dtd": "2 error dtd",
    "exec-as-a-user": "14 error not-realised, 14 warning exec",
    "exec-ending-in-and": "14 error not-realised, 14 error exec",
    "exec-from-a-file": "14 error not-realised, 14 warning exec",
    "exec-over-lines": "14 error not-realised, 14 error exec",
    "external-entity": "2 error dtd",
    "filesystem-without-type": "11 error filesystem",
    "filetree-root-relative": "14 error not-realised, 14 error root",
    "filetree-root-without-slash": "14 error not-realised, 14 warning filetree",
    "filetree-star": "14 error not-realised, 14 warning filetree",
    "filetree-without-slash": "14 error not-realised, 14 warning filetree",
    "good": "",
    "host-in-another-network": "20 error scenario",
    "host-on-a-net-that-does-not-exist": "20 error net",
    "host-with-a-nodes-address": "20 error address",
    "if-without-net": "13 error structure",
    "interface-id-0": "13 error scenario",
    "interface-id-10-of-a-long-name": "13 error device-name",
    "interface-id-twice": "14 error id",
    "loss-as-a-probability": "13 error loss",
    "management-mask-31": "7 error management",
    "management-mask-dotted": "7 error management",
    "management-net-with-only-openvswitch": (
        "7 error not-realised, 7 error not-realised, 7 error management-bridge"
    ),
    "management-none-with-mapping": "7 error not-realised, 7 error management",
    "management-of-type-none": "7 error not-realised",
    "management-offset-6": "7 error management",
    "management-overlaps-lan": "7 error scenario",
    "memory-in-defaults": "7 error not-realised",
    "memory-in-kilobytes": "12 error mem",
    "memory-without-unit": "12 error mem",
    "multicast-mac": "13 error not-realised, 13 error mac",
    "name-ending-in-a-dash": "10 error name",
    "name-not-ascii": "10 error name",
    "name-with-capital": "10 error name",
    "name-with-dot": "10 error name",
    "name-with-underscore": "10 error name",
    "net-bw-attribute": "9 error not-realised, 9 error net-shaping",
    "net-delay-and-loss": "9 error not-realised, 9 error not-realised, 9 error net-shaping",
    "net-is-uml-switch": "9 error not-realised",
    "net-mode-unknown": "9 error structure",
    "net-mtu": "9 error not-realised, 9 error mtu",
    "net-name-of-13-characters": "9 error name",
    "net-named-as-management": "9 error name",
    "net-named-lo": "9 error name",
    "net-that-does-not-exist": "13 error net",
    "no-address": "13 error not-realised",
    "no-arch": "10 warning arch",
    "no-interface": "10 error not-realised",
    "no-management": "3 error vm-mgmt",
    "no-net": "2 error not-realised, 12 error net, 17 error net",
    "no-scenario-name": "3 error scenario-name",
    "no-schema-location": "2 error schema-location",
    "no-version": "3 error version",
    "no-vms": "2 error scenario",
    "nodes-in-two-networks": "18 error scenario",
    "not-utf8": "5 error not-xml",
    "not-xml": "1 error not-xml",
    "old-schema": "2 error schema-location",
    "other-root": "1 error structure",
    "physical-interface": "20 error not-realised",
    "route-in-a-vm": "14 error not-realised",
    "route-without-mask": "14 error not-realised, 14 error route",
    "same-address-twice": "18 error address",
    "scenario-name-with-slash": "5 error scenario-name",
    "scenario-name-with-space": "5 error scenario-name",
    "schema-in-a-comment": "3 warning schema-location",
    "shareddir-root-relative": "14 error not-realised, 14 error root",
    "stray-text": "2 error structure",
    "two-addresses-of-one-interface": "13 error not-realised",
    "two-globals": "9 error structure",
    "two-interfaces": "14 error not-realised",
    "two-mems": "12 error structure",
    "two-nets": "10 error not-realised",
    "unknown-element": "14 error structure",
    "vcpu-as-a-count": "10 error not-realised, 10 error vcpu",
    "vcpu-quota-fraction": "10 error vcpu-quota",
    "vcpu-quota-without-percent": "10 error vcpu-quota",
    "version-1": "4 error version",
    "vm-is-libvirt": "10 error not-realised",
    "vm-name-of-13-characters": "10 error name",
    "vm-name-twice": "15 error name",
    "vm-name-with-space": "10 error name",
    "vm-without-name": "10 error structure",
    "wrong-order": "19 error structure",
    "xinclude": "7 error structure",
}


@pytest.fixture
def no_schema(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VNX_XSD", str(tmp_path / "none.xsd"))


def found(name: str) -> list[Finding]:
    return lint((FAULTS / f"{name}.xml").read_bytes(), source=f"{name}.xml")


def short(findings: list[Finding]) -> str:
    return ", ".join(f"{f.line} {f.severity} {f.rule}" for f in findings if f.severity != "note")


def test_every_fault_file_has_its_expectation() -> None:
    assert sorted(EXPECTED) == sorted(path.stem for path in FAULTS.glob("*.xml"))


@pytest.mark.parametrize(("name", "expected"), EXPECTED.items())
@pytest.mark.usefixtures("no_schema")
def test_a_fault_is_found_on_its_line_by_its_rule(name: str, expected: str) -> None:
    assert short(found(name)) == expected


@pytest.mark.skipif(
    find_schema() is None, reason="VNX's official schema was not found; set VNX_XSD"
)
@pytest.mark.parametrize(("name", "expected"), EXPECTED.items())
def test_the_official_schema_finds_nothing_that_our_own_checks_miss(
    name: str, expected: str
) -> None:
    assert short(found(name)) == expected


@pytest.mark.parametrize("name", EXPECTED)
def test_parse_refuses_exactly_the_files_in_which_lint_finds_errors(name: str) -> None:
    content = (FAULTS / f"{name}.xml").read_bytes()
    if "error" in EXPECTED[name]:
        with pytest.raises(ScenarioError, match=rf"(?m)^{name}\.xml:[0-9]+: error: "):
            vnx.parse(content, source=f"{name}.xml")
    else:
        vnx.parse(content, source=f"{name}.xml")


def test_every_error_and_warning_says_what_is_wrong_and_most_say_what_to_write() -> None:
    silent = [
        finding
        for name in EXPECTED
        for finding in found(name)
        if not finding.fix and "write" not in finding.message and "expected" not in finding.message
        if finding.severity != "note" and finding.rule not in ("scenario", "not-xml", "structure")
    ]
    assert silent == []


def test_the_fix_of_a_one_field_bandwidth_is_the_whole_attribute() -> None:
    (finding,) = [f for f in found("bw-one-field") if f.rule == "bw"]
    assert finding.fix == 'bw="10mbit,15kb,50ms"'
    assert "1.1 s" in finding.message


def test_all_faults_of_a_file_come_at_once() -> None:
    content = GOOD.replace("2.0<", "3<").replace('net="lan" bw', 'net="wan" bw', 1)
    content = content.replace("<mem>2G", "<mem>2", 1).replace("10.10.0.2/24", "10.10.0.1/24")
    content = content.replace("</vm>", '<route type="ipv4" gw="x">y</route></vm>', 1)
    rules = {finding.rule for finding in lint(content.encode(), source="s.xml")}
    assert {"version", "net", "mem", "address", "not-realised", "route"} <= rules


@pytest.mark.usefixtures("no_schema")
def test_a_missing_schema_is_said_in_one_note() -> None:
    notes = [f for f in found("good") if f.rule == "schema"]
    assert [(note.severity, note.line) for note in notes] == [("note", 1)]
    assert "was not found" in notes[0].message


@pytest.mark.skipif(
    find_schema() is None, reason="VNX's official schema was not found; set VNX_XSD"
)
def test_the_official_schema_is_asked() -> None:
    content = GOOD.replace("<vm_mgmt ", "<vm_mgmt color='red' ")
    content = content.replace("arch=", "colour='red' arch=", 1)
    path = find_schema()
    assert path is not None
    document, _ = linting.load(content.encode(), source="s.xml")
    assert document is not None
    assert [finding.line for finding in linting._official(document, path)] == [7, 10]


def test_a_schema_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.xsd").write_text("<nothing")
    with pytest.raises(ScenarioError, match="cannot be used"):
        lint(GOOD.encode(), source="s.xml", schema=tmp_path / "bad.xsd")


def test_the_named_schema_goes_before_the_installed_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    installed, named = tmp_path / "installed.xsd", tmp_path / "named.xsd"
    installed.write_text("")
    monkeypatch.setattr(linting, "INSTALLED_SCHEMA", installed)
    monkeypatch.delenv("VNX_XSD", raising=False)
    assert find_schema() == installed
    monkeypatch.setenv("VNX_XSD", str(named))
    assert find_schema() is None
    named.write_text("")
    assert find_schema() == named


def test_what_only_vnx_uses_is_noted_once() -> None:
    notes = [f.message for f in found("good") if f.rule == "vnx-only"]
    assert notes == [
        "only VNX uses vm@arch, filesystem; the testbed's own backends have no use for them"
    ]


def test_what_vnx_does_otherwise_is_noted_once_per_file() -> None:
    rules = [f.rule for f in found("good") if f.severity == "note" and f.rule != "schema"]
    assert rules == ["vnx-only", "vcpu-quota", "mem", "egress-only"]


def on_host(content: str, folder: Path) -> list[str]:
    findings = lint(content.encode(), source=str(folder / "s.xml"), on_vnx_host=True)
    host = ("rootfs", "ssh-key", "source")
    return [f.rule for f in findings if f.severity == "error" and f.rule in host]


def test_files_of_the_machine_are_looked_up_only_on_a_vnx_host(tmp_path: Path) -> None:
    rootfs = "/usr/share/vnx/filesystems/rootfs_lxc_ubuntu64"
    absent = GOOD.replace(rootfs, str(tmp_path / "absent"))
    assert on_host(absent, tmp_path) == ["rootfs", "rootfs"]
    assert "error" not in short(lint(absent.encode(), source="s.xml"))
    assert on_host(GOOD.replace(rootfs, str(tmp_path)), tmp_path) == []


@pytest.mark.parametrize("path", ["absent/id.pub", "~nobody-of-that-name/id.pub", "x" * 5000, ""])
def test_a_key_that_cannot_be_read_is_found_on_a_vnx_host(tmp_path: Path, path: str) -> None:
    content = GOOD.replace("<automac", f"<ssh_key>{path}</ssh_key><automac")
    content = re.sub("/usr/share/vnx/filesystems/rootfs_lxc_ubuntu64", str(tmp_path), content)
    assert on_host(content, tmp_path) == ["ssh-key"]
    (tmp_path / "id.pub").write_text("ssh-ed25519 AAAA")
    good = content.replace(f">{path}</ssh_key>", f">{tmp_path / 'id.pub'}</ssh_key>")
    assert on_host(good, tmp_path) == []


def test_what_is_copied_is_looked_for_beside_the_file(tmp_path: Path) -> None:
    tree = '<filetree seq="push" root="/opt/">code/</filetree></vm>'
    content = GOOD.replace("</vm>", tree, 1)
    content = content.replace("/usr/share/vnx/filesystems/rootfs_lxc_ubuntu64", str(tmp_path))
    assert on_host(content, tmp_path) == ["source"]
    (tmp_path / "code").mkdir()
    assert on_host(content, tmp_path) == []


def test_the_offset_of_a_running_scenario_is_noted_on_a_vnx_host() -> None:
    findings = lint(GOOD.encode(), source="s.xml", on_vnx_host=True)
    assert [f.severity for f in findings if f.rule == "automac"] == ["note"]


def test_a_finding_cannot_steer_the_terminal() -> None:
    content = GOOD.replace('mode="openvswitch"', 'mode="\u009b31mred&#10;"')
    for finding in lint(content.encode(), source="s\x1b[31m.xml"):
        assert finding.describe("s\x1b[31m.xml").isprintable()


def test_a_file_of_errors_gives_a_message_that_can_be_read() -> None:
    content = GOOD.replace("</vm>", "<gpu/>\n" * 5000 + "</vm>", 1)
    with pytest.raises(ScenarioError, match="and 4900 more") as caught:
        vnx.parse(content.encode(), source="s.xml")
    assert len(str(caught.value).splitlines()) == 101


VALUES = re.compile(r'(?<=")[^"<>]+(?=")|(?<=>)[^"<>\s]+(?=<)')
WORDS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=12)
LIKELY = st.sampled_from(
    ["", "0", "1", "-1", "1.5", "²", "1e9", "9" * 25, "/", "..", "lan", "10.10.0.2/24", "n2", "%"]
)


@given(data=st.data(), value=WORDS | LIKELY)
def test_any_value_anywhere_is_read_or_refused_and_lint_agrees(
    data: st.DataObject, value: str
) -> None:
    places = [match.span() for match in VALUES.finditer(GOOD)]
    start, end = data.draw(st.sampled_from(places))
    check_agreement(GOOD[:start] + escape(value, {'"': "&quot;"}) + GOOD[end:])


@given(
    st.integers(0, len(GOOD)),
    st.integers(0, 80),
    st.sampled_from(["", "<if/>", "<vm/>", "<vnx>", "</vm>", "&", "<!-- -->", "\x00", "<?x y?>"]),
)
def test_any_cut_is_read_or_refused_and_lint_agrees(start: int, length: int, put: str) -> None:
    check_agreement(GOOD[:start] + put + GOOD[start + length :])


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    with contextlib.suppress(ScenarioError):
        vnx.parse(content, source="s.xml")
    lint(content, source="s.xml")


def check_agreement(text: str) -> None:
    findings = lint(text.encode(), source="s.xml")
    own = [f for f in findings if f.severity == "error" and f.rule != "schema"]
    if own:
        with pytest.raises(ScenarioError):
            vnx.parse(text.encode(), source="s.xml")
    else:
        scenario = vnx.parse(text.encode(), source="s.xml")
        assert vnx.parse(vnx.render(scenario), source="s.xml") == scenario
